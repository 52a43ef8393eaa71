//! What is remembered: runs, sessions and the files that runs made.

pub mod blobs;
pub mod connect;
mod database;
mod error;
mod migrations;
mod postgres;
mod replica;
mod retention;
mod row;
mod sql;
mod sqlite;
mod tables;
mod writer;
mod writes;

use async_trait::async_trait;
use bytes::Bytes;
pub use error::StoreError;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use crate::domain::claim::{Claim, Claimed, Key};
use crate::domain::id::{Maker, RunId, SessionId, Tenant};
use crate::domain::list::{Page, RunFilter};
use crate::domain::run::{Run, RunSummary};
use crate::domain::session::{SandboxRecord, Session};

/// Where runs and sessions are written down. Each write is whole or not at all.
#[async_trait]
pub trait Store: Send + Sync {
    /// What keyed hashes are keyed with: random, the same for as long as the store lives.
    fn secret(&self) -> [u8; 32];

    /// Who this replica is for those who make sandboxes elsewhere; the same at each start.
    fn maker(&self) -> Maker;

    /// What an idempotency key was used for within the last 24 hours.
    async fn claimed(&self, tenant: &Tenant, key: &Key) -> Result<Option<Claimed>, StoreError>;

    /// Writes a session down before its sandbox is made, with the key that it was asked for with.
    /// Neither is written when the key is taken: [`StoreError::Claimed`].
    async fn insert_session(
        &self,
        tenant: &Tenant,
        session: &Session,
        claim: Option<&Claim>,
    ) -> Result<(), StoreError>;

    /// Writes down how a session stands now; an ended one stays as it ended. The key of one that has
    /// failed is free again.
    async fn update_session(&self, tenant: &Tenant, session: &Session) -> Result<(), StoreError>;

    /// A session as it was last written down.
    async fn session(&self, tenant: &Tenant, id: SessionId) -> Result<Option<Session>, StoreError>;

    /// Sessions, a page at a time.
    async fn sessions(&self, tenant: &Tenant, page: Page) -> Result<Vec<Session>, StoreError>;

    /// Writes a run down before its code is handed over, with the key that it was asked for with.
    /// Neither is written when the key is taken: [`StoreError::Claimed`].
    async fn begin_run(
        &self,
        tenant: &Tenant,
        run: &RunSummary,
        claim: Option<&Claim>,
    ) -> Result<(), StoreError>;

    /// Writes down that a queued run begins. False when it has been ended meanwhile.
    async fn start_run(&self, tenant: &Tenant, run: &RunSummary) -> Result<bool, StoreError>;

    /// Which start of this replica this is, in rows that it writes.
    fn epoch(&self) -> i64;

    /// Writes down how a run ended. False when it had ended before: the first end stays.
    async fn finish_run(&self, tenant: &Tenant, finish: &Finish<'_>) -> Result<bool, StoreError>;

    /// The events that were kept of a run.
    async fn events(&self, tenant: &Tenant, id: RunId) -> Result<Option<Bytes>, StoreError>;

    /// What was said in an interpret, as JSON.
    async fn conversation(&self, tenant: &Tenant, id: RunId) -> Result<Option<Bytes>, StoreError>;

    /// A run whole.
    async fn run(&self, tenant: &Tenant, id: RunId) -> Result<Option<Run>, StoreError>;

    /// Runs without what they put out, a page at a time. A run was asked for at the time that its id
    /// tells, to the second: the times of a filter are looked up by it.
    async fn runs(
        &self,
        tenant: &Tenant,
        filter: &RunFilter,
        page: Page,
    ) -> Result<Vec<RunSummary>, StoreError>;

    /// Where the content of a run's file is.
    async fn output_file(
        &self,
        tenant: &Tenant,
        id: RunId,
        path: &str,
    ) -> Result<Option<StoredFile>, StoreError>;

    /// Ends the runs that earlier starts of this replica left open, or replicas that it took over:
    /// running ones as unknown, queued ones as an error that is safe to retry. Says how many.
    async fn recover_runs(&self) -> Result<usize, StoreError>;

    /// The sessions that earlier starts of this replica left open, or replicas that it took over.
    async fn left_sessions(&self) -> Result<Vec<OpenSession>, StoreError>;

    /// The sandboxes of all open sessions, those of other replicas too.
    async fn sandboxes(&self) -> Result<Vec<SandboxRecord>, StoreError>;

    /// Whether this replica still serves its sessions, as far as it knows.
    ///
    /// # Errors
    /// [`StoreError::Unseen`] when another may serve them by now.
    fn may_serve(&self) -> Result<(), StoreError>;

    /// What this start has begun and not ended, as the rows say.
    async fn open(&self) -> Result<Open, StoreError>;

    /// Writes down which sandbox a session has, and that it is this start's now.
    async fn furnish_session(
        &self,
        tenant: &Tenant,
        session: &Session,
        sandbox: &SandboxRecord,
    ) -> Result<(), StoreError>;

    /// Forgets a few of the ended runs and sessions that need not be kept, and of the keys whose time
    /// is over: one short step. There is more to forget until a step finds nothing.
    async fn expire(&self, keep: &Keep) -> Result<Expired, StoreError>;

    /// The blobs that rows speak of, of those whose names begin so.
    async fn blobs_in_use(&self, shelf: &str) -> Result<Vec<String>, StoreError>;

    /// Says that this replica is there, which others wait for before they take over what it serves.
    ///
    /// # Errors
    /// [`StoreError::Replaced`] when one has: this process must end.
    async fn beat(&self) -> Result<(), StoreError>;

    /// Makes its own what replicas that are gone have left open, and says how many those are. It is
    /// then what an earlier start has left.
    async fn take_over(&self) -> Result<usize, StoreError>;

    /// Whether the store answers.
    async fn check(&self) -> Result<(), StoreError>;

    /// Writes what is waiting and closes.
    async fn close(&self);
}

/// A session that has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenSession {
    /// Whose it is.
    pub tenant: Tenant,
    /// As it was last written down.
    pub session: Session,
    /// Its sandbox, where one was made.
    pub sandbox: Option<SandboxRecord>,
}

/// What has begun and not ended, as rows say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Open {
    /// Runs, with whose they are.
    pub runs: Vec<(Tenant, RunId)>,
    /// Sessions, with whose they are.
    pub sessions: Vec<(Tenant, SessionId)>,
}

/// What is kept of what has ended.
#[derive(Debug, Clone, Copy)]
pub struct Keep {
    /// What ended at this time or later.
    pub since: OffsetDateTime,
    /// Of it, so many runs of each tenant, the newest; none: all.
    pub runs: Option<u64>,
    /// Of it, so many sessions of each tenant, the newest; none: all.
    pub sessions: Option<u64>,
}

/// What a step has forgotten.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Expired {
    /// Runs, sessions and keys; none: there is nothing more to forget now.
    pub rows: u64,
    /// The blobs that nothing speaks of any more.
    pub blobs: Vec<String>,
}

/// A run's file and the blob that holds its content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredFile {
    /// Relative to the files folder.
    pub path: String,
    /// The blob's name, which never comes from the file's.
    pub blob: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Judged by the name.
    pub mime: String,
    /// Lower-case hexadecimal.
    pub sha256: String,
}

/// How a run ended.
pub struct Finish<'a> {
    /// The run whole.
    pub run: &'a Run,
    /// The files that it made.
    pub files: &'a [StoredFile],
    /// The events that are kept of it.
    pub events: Option<Vec<u8>>,
    /// What was said in it, as JSON.
    pub conversation: Option<String>,
    /// The start of the replica that began it.
    pub epoch: i64,
    /// True when nothing was begun and its caller is told to try again: its key is free again.
    pub release_key: bool,
}
