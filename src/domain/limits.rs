//! What a session may use.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The limits that hold in a session; null where the provider does not say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Limits {
    /// Memory of the session as a whole, its files included, in bytes.
    pub memory_bytes: Option<u64>,
    /// Room for files, temporary ones included, in bytes.
    pub disk_bytes: Option<u64>,
    /// Files and folders.
    pub inodes: Option<u64>,
    /// The largest file that a program may write, in bytes.
    pub file_bytes: Option<u64>,
    /// Processes and threads together.
    pub processes: Option<u64>,
    /// Open files of each process.
    pub open_files: Option<u64>,
    /// Share of the processors, in percent of one.
    pub cpu_percent: Option<u64>,
    /// Bytes of stdout and of stderr that are kept of a cell, each.
    pub output_bytes: Option<u64>,
}

/// Lower limits that a caller asks for; what is absent stays at its default, which is also the most.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitsRequest {
    /// Memory of the session as a whole in bytes, 64 MiB at least.
    #[schema(minimum = 67_108_864)]
    pub memory_bytes: Option<u64>,
    /// Room for files in bytes, 1 MiB at least.
    #[schema(minimum = 1_048_576)]
    pub disk_bytes: Option<u64>,
    /// Files and folders, 64 at least.
    #[schema(minimum = 64)]
    pub inodes: Option<u64>,
    /// The largest file in bytes, 1 MiB at least.
    #[schema(minimum = 1_048_576)]
    pub file_bytes: Option<u64>,
    /// Processes and threads, 8 at least.
    #[schema(minimum = 8)]
    pub processes: Option<u64>,
    /// Open files of each process, 64 at least.
    #[schema(minimum = 64)]
    pub open_files: Option<u64>,
    /// Share of the processors in percent of one, 5 at least.
    #[schema(minimum = 5)]
    pub cpu_percent: Option<u64>,
    /// Bytes of stdout and of stderr that are kept of a cell, 1 KiB at least.
    #[schema(minimum = 1024)]
    pub output_bytes: Option<u64>,
}

impl LimitsRequest {
    /// True when nothing is asked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
