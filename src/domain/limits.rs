//! What a session may use.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The limits that hold in a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Limits {
    /// Memory that one process may map beyond the warm Python, in bytes; null when the provider does not say.
    pub memory_bytes: Option<u64>,
    /// Room for files, temporary ones included, in bytes; null when the provider does not say.
    pub disk_bytes: Option<u64>,
    /// Processes and threads together; null when the provider does not say.
    pub processes: Option<u64>,
}

/// Lower limits that a caller asks for; what is absent stays at its default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitsRequest {
    /// Memory in bytes, 64 MiB at least, the default at most.
    #[schema(minimum = 67_108_864)]
    pub memory_bytes: Option<u64>,
    /// Room for files in bytes, 1 MiB at least, the default at most.
    #[schema(minimum = 1_048_576)]
    pub disk_bytes: Option<u64>,
    /// Processes and threads, 8 at least, the default at most.
    #[schema(minimum = 8)]
    pub processes: Option<u64>,
}

impl LimitsRequest {
    /// True when nothing is asked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
