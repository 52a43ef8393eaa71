//! Which part of a list is wanted.

use time::OffsetDateTime;
use uuid::Uuid;

use crate::domain::id::SessionId;
use crate::domain::run::{RunKind, RunStatus};

/// One page of a list. Ids sort by the time they were made.
#[derive(Debug, Clone, Copy)]
pub struct Page {
    /// How many at most.
    pub limit: u32,
    /// The last one of the page before.
    pub after: Option<Uuid>,
    /// The newest first.
    pub descending: bool,
}

/// Which runs to list; what is None does not matter.
#[derive(Debug, Clone, Default)]
pub struct RunFilter {
    /// Of this kind.
    pub kind: Option<RunKind>,
    /// With this status.
    pub status: Option<RunStatus>,
    /// In this session.
    pub session_id: Option<SessionId>,
    /// Of this provider entry.
    pub provider: Option<String>,
    /// Asked for at this time or later.
    pub since: Option<OffsetDateTime>,
    /// Asked for before this time.
    pub until: Option<OffsetDateTime>,
}
