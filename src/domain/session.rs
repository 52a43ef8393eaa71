//! A session as its caller sees it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::domain::id::SessionId;
use crate::domain::limits::Limits;
use crate::domain::provider::{Capabilities, Isolation};

/// What a caller holds: a sandbox with its files and the state of its kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Session {
    /// Names this session.
    pub id: SessionId,
    /// The provider entry that its sandbox comes from.
    pub provider: String,
    /// What the provider calls the sandbox; null while it is starting.
    pub sandbox_id: Option<String>,
    /// Where it stands.
    pub state: SessionState,
    /// How it is kept apart; absent where the provider does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
    /// What its sandbox can do.
    pub capabilities: Capabilities,
    /// What it may use.
    pub limits: Limits,
    /// The absolute name of the files folder inside the sandbox; null while it is starting.
    pub files_dir: Option<String>,
    /// Packages that were asked for.
    pub packages: Vec<String>,
    /// When it was asked for.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// When it was last used.
    #[serde(with = "time::serde::rfc3339")]
    pub last_used_at: OffsetDateTime,
    /// When it ends, unless it is extended or falls idle before.
    #[serde(with = "time::serde::rfc3339")]
    pub expires_at: OffsetDateTime,
    /// When it ended.
    #[serde(
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none",
        default
    )]
    pub ended_at: Option<OffsetDateTime>,
    /// Why it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_reason: Option<EndReason>,
    /// What is being done while it is starting, such as `installing packages`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub progress: Option<String>,
    /// Why its sandbox could not be made.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub failure: Option<SessionFailure>,
    /// True where it was made for one piece of work, and ends with it.
    #[serde(skip_serializing_if = "is_false", default)]
    pub one_shot: bool,
    /// What the caller noted.
    pub metadata: BTreeMap<String, String>,
}

impl Session {
    /// The name of its files folder for its code; the folder that cells start in has this one too.
    #[must_use]
    pub fn folder(&self) -> &str {
        self.files_dir.as_deref().unwrap_or(".")
    }
}

/// All that is needed to find a sandbox again. It holds no key: it is written down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxRecord {
    /// What the provider calls it.
    pub sandbox_id: String,
    /// What the provider needs besides, for itself alone.
    #[serde(default)]
    pub detail: serde_json::Value,
}

/// Why a session's sandbox could not be made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionFailure {
    /// The code that a problem would have, such as `package_not_found`.
    pub code: String,
    /// What happened, for people.
    pub message: String,
}

/// Where a session stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionState {
    /// Its sandbox is being made; cells wait.
    Starting,
    /// Nothing runs.
    Ready,
    /// A cell runs.
    Busy,
    /// Over; `end_reason` says why.
    Ended,
    /// Its sandbox could not be made.
    Failed,
}

/// Why a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// By its caller, or with the one-shot run that it was made for.
    Deleted,
    /// Its lifetime was over.
    Expired,
    /// Nobody used it.
    Idle,
    /// Its sandbox or the service was lost.
    Lost,
    /// Its sandbox could not be made.
    Failed,
}

impl EndReason {
    /// The word that stands in JSON.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Deleted => "deleted",
            Self::Expired => "expired",
            Self::Idle => "idle",
            Self::Lost => "lost",
            Self::Failed => "failed",
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_false(value: &bool) -> bool {
    !value
}
