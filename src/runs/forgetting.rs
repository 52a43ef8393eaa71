//! What has been over for long enough is forgotten, a little at a time.

use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Runs;
use crate::domain::coded::chain;
use crate::store::{Expired, Keep, StoreError};

/// Least and longest time between two rounds.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(600));

impl Runs {
    /// Forgets what need not be kept, again and again until told to stop.
    pub async fn forget(&self, stop: CancellationToken) {
        let pause = (self.desk.limits.retention_seconds / 2).clamp(PAUSES.0, PAUSES.1);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                forgotten = self.forget_all() => if let Err(error) = forgotten {
                    tracing::error!(error = chain(&error), "what is over was not forgotten");
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Step after step, each followed by a pause as long: others have half of the store at least.
    async fn forget_all(&self) -> Result<(), StoreError> {
        let limits = &self.desk.limits;
        let most = |number: u64| (number > 0).then_some(number);
        loop {
            let keep = Keep {
                since: OffsetDateTime::now_utc() - limits.retention_seconds,
                runs: most(limits.retention_runs),
                sessions: most(limits.retention_sessions),
            };
            let begun = Instant::now();
            let Expired { rows, blobs } = self.desk.store.expire(&keep).await?;
            self.desk.blobs.remove(blobs).await;
            if rows == 0 {
                return Ok(());
            }
            tokio::time::sleep(begun.elapsed()).await;
        }
    }
}
