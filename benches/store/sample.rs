//! Times and where they lie.

use std::fmt;
use std::time::{Duration, Instant};

use crate::Failure;

/// How long each of a kind of call took.
#[derive(Debug, Clone, Default)]
pub struct Times(Vec<f64>);

impl Times {
    /// Runs a call and keeps how long it took.
    pub async fn of<T>(
        &mut self,
        call: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let started = Instant::now();
        let answer = call.await?;
        self.0.push(started.elapsed().as_secs_f64() * 1000.0);
        Ok(answer)
    }

    /// Takes over what another has kept.
    pub fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// All of them together.
    pub fn whole(&self) -> Duration {
        Duration::from_secs_f64(self.0.iter().sum::<f64>() / 1000.0)
    }

    /// The time below which that share of the times lies, in milliseconds, linear between neighbours.
    fn percentile(&self, percent: f64) -> f64 {
        let mut ordered = self.0.clone();
        ordered.sort_unstable_by(f64::total_cmp);
        let Some(last) = ordered.len().checked_sub(1) else { return f64::NAN };
        #[expect(clippy::cast_precision_loss, reason = "there are thousands at most")]
        let place = last as f64 * percent / 100.0;
        let below = place as usize;
        let above = (below + 1).min(last);
        ordered[below] + (ordered[above] - ordered[below]) * place.fract()
    }
}

/// p50, p95, p99 and how many: four columns.
impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [p50, p95, p99] = [50.0, 95.0, 99.0].map(|percent| self.percentile(percent));
        write!(f, "{p50:.4},{p95:.4},{p99:.4},{}", self.count())
    }
}
