//! Durations as numbers of seconds.

use std::time::Duration;

use serde::{Deserialize, Deserializer};
use utoipa::ToSchema;

/// A number of seconds, fractions included.
#[derive(Debug, Clone, Copy, ToSchema)]
#[schema(value_type = f64, exclusive_minimum = 0.0)]
pub(super) struct Seconds(pub(super) Duration);

impl<'de> Deserialize<'de> for Seconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let seconds = f64::deserialize(deserializer)?;
        let wrong = |_| serde::de::Error::custom("a number of seconds, 0 or more, is needed");
        Duration::try_from_secs_f64(seconds).map(Self).map_err(wrong)
    }
}
