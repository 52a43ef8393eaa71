//! Rows as they stand in the tables.

use serde::{Deserialize, Serialize};
use sqlx::FromRow;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::domain::claim::{Claim, Claimed, Subject};
use crate::domain::file::OutputFile;
use crate::domain::id::{RunId, SessionId, Tenant};
use crate::domain::run::{CodeExecResult, Run, RunSummary};
use crate::domain::session::{Session, SessionState};
use crate::store::{StoreError, StoredFile};

/// A key to be written.
#[derive(Debug, Clone)]
pub(super) struct ClaimRow {
    pub(super) tenant: String,
    pub(super) route: &'static str,
    pub(super) key: String,
    pub(super) request_hash: String,
    pub(super) run_id: Option<Uuid>,
    pub(super) session_id: Option<Uuid>,
    pub(super) now: i64,
}

/// What a key was used for, as it is read.
#[derive(Debug, FromRow)]
pub(super) struct ClaimedRow {
    request_hash: String,
    run_id: Option<Uuid>,
    session_id: Option<Uuid>,
}

/// A session to be written.
#[derive(Debug, Clone)]
pub(super) struct SessionRow {
    pub(super) session_id: Uuid,
    pub(super) tenant: String,
    pub(super) state: &'static str,
    pub(super) body: String,
    /// What is needed to find its sandbox again; None where that is not told now.
    pub(super) sandbox: Option<String>,
    pub(super) ended_at: Option<i64>,
    /// It was never ready: the key that it was asked for with may be used again.
    pub(super) release_key: bool,
}

/// A run at its begin.
#[derive(Debug, Clone)]
pub(super) struct RunRow {
    pub(super) run_id: Uuid,
    pub(super) tenant: String,
    pub(super) kind: &'static str,
    pub(super) status: &'static str,
    pub(super) session_id: Uuid,
    pub(super) provider: String,
    pub(super) created_at: i64,
    pub(super) summary: String,
}

/// A run at its end.
#[derive(Debug, Clone)]
pub(super) struct FinishRow {
    pub(super) run_id: Uuid,
    pub(super) tenant: String,
    pub(super) status: &'static str,
    pub(super) summary: String,
    pub(super) detail: Option<String>,
    pub(super) detail_blob: Option<String>,
    pub(super) events_blob: Option<String>,
    pub(super) conversation: Option<String>,
    pub(super) conversation_blob: Option<String>,
    pub(super) ended_at: i64,
    pub(super) release_key: bool,
    pub(super) files: Vec<StoredFile>,
}

/// What a run put out; long ones stand in a blob.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RunDetail {
    pub(super) text: String,
    #[serde(default)]
    pub(super) truncated: bool,
    pub(super) code_exec_results: Vec<CodeExecResult>,
    pub(super) output_files: Vec<OutputFile>,
    #[serde(default)]
    pub(super) missing_files: Vec<String>,
}

/// A run as it is read.
#[derive(Debug, FromRow)]
pub(super) struct StoredRunRow {
    pub(super) summary: String,
    pub(super) detail: Option<String>,
    pub(super) detail_blob: Option<String>,
}

/// A run's file as it is read.
#[derive(Debug, FromRow)]
pub(super) struct OutputFileRow {
    path: String,
    blob: String,
    size_bytes: i64,
    mime: String,
    sha256: String,
}

impl ClaimRow {
    pub(super) fn of(tenant: &Tenant, claim: &Claim, subject: Subject) -> Self {
        let (run_id, session_id) = match subject {
            Subject::Run(id) => (Some(id.uuid()), None),
            Subject::Session(id) => (None, Some(id.uuid())),
        };
        Self {
            tenant: tenant.name().to_owned(),
            route: claim.key.route,
            key: claim.key.key.clone(),
            request_hash: claim.request_hash.clone(),
            run_id,
            session_id,
            now: microseconds(OffsetDateTime::now_utc()),
        }
    }
}

impl ClaimedRow {
    pub(super) fn into_claimed(self) -> Option<Claimed> {
        let run = self.run_id.map(|id| Subject::Run(RunId::from_uuid(id)));
        let session = self.session_id.map(|id| Subject::Session(SessionId::from_uuid(id)));
        Some(Claimed { request_hash: self.request_hash, subject: run.or(session)? })
    }
}

impl SessionRow {
    pub(super) fn of(tenant: &Tenant, session: &Session) -> Result<Self, StoreError> {
        Ok(Self {
            session_id: session.id.uuid(),
            tenant: tenant.name().to_owned(),
            state: match session.state {
                SessionState::Starting => "starting",
                SessionState::Ready | SessionState::Busy => "ready",
                SessionState::Ended => "ended",
                SessionState::Failed => "failed",
            },
            body: json(session)?,
            sandbox: None,
            ended_at: session.ended_at.map(microseconds),
            // one that was answered before it failed keeps its key
            release_key: session.state == SessionState::Failed && session.failure.is_none(),
        })
    }
}

impl RunRow {
    pub(super) fn of(tenant: &Tenant, run: &RunSummary) -> Result<Self, StoreError> {
        Ok(Self {
            run_id: run.id.uuid(),
            tenant: tenant.name().to_owned(),
            kind: run.kind.word(),
            status: run.status.word(),
            session_id: run.session_id.uuid(),
            provider: run.provider.clone(),
            created_at: microseconds(run.created_at),
            summary: json(run)?,
        })
    }
}

impl FinishRow {
    /// The end of a run of which nothing is known but its summary.
    pub(super) fn of(tenant: &str, summary: &RunSummary) -> Result<Self, StoreError> {
        Ok(Self {
            run_id: summary.id.uuid(),
            tenant: tenant.to_owned(),
            status: summary.status.word(),
            summary: json(summary)?,
            detail: None,
            detail_blob: None,
            events_blob: None,
            conversation: None,
            conversation_blob: None,
            ended_at: microseconds(summary.finished_at.unwrap_or_else(OffsetDateTime::now_utc)),
            release_key: false,
            files: Vec::new(),
        })
    }
}

impl RunDetail {
    pub(super) fn of(run: &Run) -> Result<String, StoreError> {
        #[derive(Serialize)]
        struct Borrowed<'a> {
            text: &'a str,
            truncated: bool,
            code_exec_results: &'a [CodeExecResult],
            output_files: &'a [OutputFile],
            missing_files: &'a [String],
        }
        json(&Borrowed {
            text: &run.text,
            truncated: run.truncated,
            code_exec_results: &run.code_exec_results,
            output_files: &run.output_files,
            missing_files: &run.missing_files,
        })
    }
}

impl From<OutputFileRow> for StoredFile {
    fn from(row: OutputFileRow) -> Self {
        Self {
            path: row.path,
            blob: row.blob,
            size_bytes: u64::try_from(row.size_bytes).unwrap_or(0),
            mime: row.mime,
            sha256: row.sha256,
        }
    }
}

pub(super) fn json<T: Serialize>(value: &T) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(StoreError::Row)
}

pub(super) fn from_json<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(StoreError::Row)
}

/// Times are stored as microseconds: text of varying length would not sort.
pub(super) fn microseconds(time: OffsetDateTime) -> i64 {
    (time.unix_timestamp_nanos() / 1000) as i64
}
