//! The store on SQLite: one writer, some readers, write-ahead log.

use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{Connection, SqlStr, SqliteConnection};
use time::OffsetDateTime;
use uuid::Uuid;

use super::blobs::Blobs;
use super::row::{
    ClaimRow, ClaimedRow, FinishRow, OutputFileRow, RunDetail, RunRow, SessionRow, StoredRunRow,
    from_json, json, microseconds,
};
use super::writer::{KEY_MICROSECONDS, Owner, Write, Writer};
use super::{Finish, OpenSession, Store, StoreError, StoredFile, sql};
use crate::domain::claim::{Claim, Claimed, Key, Subject};
use crate::domain::execution::{Failure, FailureKind};
use crate::domain::id::{Maker, ReplicaId, RunId, SessionId, Tenant};
use crate::domain::list::{Page, RunFilter};
use crate::domain::run::{Run, RunStatus, RunSummary};
use crate::domain::session::{SandboxRecord, Session};

const BUSY_LIMIT: Duration = Duration::from_secs(5);
const READERS: u32 = 4;
/// Question and error in a list are no longer than this.
const MAX_LISTED_BYTES: usize = 1000;
/// Longer payloads go to blobs.
const MAX_ROW_BYTES: usize = 64 * 1024;

pub(super) struct SqliteStore {
    readers: SqlitePool,
    writer: Writer,
    owner: Owner,
    secret: [u8; 32],
    maker: Maker,
    blobs: Blobs,
}

impl SqliteStore {
    /// Opens the database, brings its tables up to date and begins this replica's next epoch.
    pub(super) async fn open(file: &Path, blobs: Blobs) -> Result<Self, StoreError> {
        let options = SqliteConnectOptions::new()
            .filename(file)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Normal)
            .foreign_keys(true)
            .busy_timeout(BUSY_LIMIT);
        let mut connection = SqliteConnection::connect_with(&options).await?;
        migrator().run(&mut connection).await.map_err(StoreError::Migrate)?;
        let owner = start_replica(&mut connection).await?;
        let Deployment { id, secret } = deployment(&mut connection).await?;
        let maker = Maker { deployment_id: id, replica_id: owner.replica_id };
        let readers = SqlitePoolOptions::new().max_connections(READERS);
        let readers = readers.connect_with(options.read_only(true)).await?;
        let writer = Writer::start(connection, owner);
        Ok(Self { readers, writer, owner, secret, maker, blobs })
    }

    async fn detail(&self, row: &StoredRunRow) -> Result<RunDetail, StoreError> {
        match (&row.detail, &row.detail_blob) {
            (Some(text), _) => from_json(text),
            (None, Some(blob)) => {
                let bytes = self.blobs.read_whole(blob).await?;
                serde_json::from_slice(&bytes).map_err(StoreError::Row)
            }
            (None, None) => Ok(RunDetail {
                text: String::new(),
                truncated: false,
                code_exec_results: Vec::new(),
                output_files: Vec::new(),
                missing_files: Vec::new(),
            }),
        }
    }

    /// A short payload goes into the row, a long one into a blob.
    async fn payload(
        &self,
        id: RunId,
        what: &str,
        text: String,
    ) -> Result<(Option<String>, Option<String>), StoreError> {
        if text.len() <= MAX_ROW_BYTES {
            return Ok((Some(text), None));
        }
        Ok((None, Some(self.blobs.write_whole(id, what, text.into()).await?)))
    }

    async fn end_run(
        &self,
        tenant: &str,
        epoch: i64,
        summary: RunSummary,
    ) -> Result<(), StoreError> {
        let summary = after_the_end(summary);
        let finish = FinishRow {
            run_id: summary.id.uuid(),
            tenant: tenant.to_owned(),
            status: summary.status.word(),
            summary: json(&summary)?,
            detail: None,
            detail_blob: None,
            events_blob: None,
            conversation: None,
            conversation_blob: None,
            ended_at: microseconds(OffsetDateTime::now_utc()),
            release_key: false,
            files: Vec::new(),
        };
        self.writer.write(Write::FinishRun(Box::new(finish), epoch)).await?;
        Ok(())
    }
}

/// What a run is that was open when the service ended.
fn after_the_end(mut run: RunSummary) -> RunSummary {
    let (status, retry_safe, message) = match run.status {
        RunStatus::Queued => (RunStatus::Error, true, "the service ended before the run began"),
        _ => (
            RunStatus::Unknown,
            false,
            "the service ended while it ran: it may or may not have run to its end",
        ),
    };
    run.status = status;
    run.error = Some(message.to_owned());
    run.failure =
        Some(Failure { kind: FailureKind::SandboxLost, retry_safe, message: message.to_owned() });
    run.finished_at = Some(OffsetDateTime::now_utc());
    run
}

/// A summary for a list: long texts are cut.
fn shortened(mut run: RunSummary) -> RunSummary {
    for text in [&mut run.message, &mut run.error].into_iter().flatten() {
        if text.len() > MAX_LISTED_BYTES {
            text.truncate(text.floor_char_boundary(MAX_LISTED_BYTES));
            text.push('…');
        }
    }
    run
}

/// In order; one that has been released is never changed again.
fn migrator() -> Migrator {
    let migration = |version, name: &'static str, text| {
        let text = SqlStr::from_static(text);
        Migration::new(version, name.into(), MigrationType::Simple, text, false)
    };
    let first = include_str!("../../migrations/sqlite/0001_first.sql");
    let second = include_str!("../../migrations/sqlite/0002_ends_and_keys.sql");
    let third = include_str!("../../migrations/sqlite/0003_conversations.sql");
    let fourth = include_str!("../../migrations/sqlite/0004_sandboxes.sql");
    let all = vec![
        migration(1, "first", first),
        migration(2, "ends_and_keys", second),
        migration(3, "conversations", third),
        migration(4, "sandboxes", fourth),
    ];
    Migrator { migrations: all.into(), ..Migrator::DEFAULT }
}

async fn start_replica(connection: &mut SqliteConnection) -> Result<Owner, StoreError> {
    let now = microseconds(OffsetDateTime::now_utc());
    let known: Option<Uuid> =
        sqlx::query_scalar(sql::SELECT_REPLICA).fetch_optional(&mut *connection).await?;
    let replica_id = match known {
        Some(id) => id,
        None => {
            let id = ReplicaId::new().uuid();
            sqlx::query(sql::INSERT_REPLICA).bind(id).bind(now).execute(&mut *connection).await?;
            id
        }
    };
    let epoch: i64 = sqlx::query_scalar(sql::START_REPLICA)
        .bind(replica_id)
        .bind(now)
        .fetch_one(connection)
        .await?;
    Ok(Owner { replica_id, epoch })
}

/// What all replicas of a store share.
struct Deployment {
    id: Uuid,
    secret: [u8; 32],
}

async fn deployment(connection: &mut SqliteConnection) -> Result<Deployment, StoreError> {
    let known: Option<(Uuid, Vec<u8>)> =
        sqlx::query_as(sql::SELECT_DEPLOYMENT).fetch_optional(&mut *connection).await?;
    if let Some((id, secret)) = known
        && let Ok(secret) = secret.try_into()
    {
        return Ok(Deployment { id, secret });
    }
    let id = ReplicaId::new().uuid();
    let mut secret = [0; 32];
    rustix::rand::getrandom(&mut secret, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| StoreError::Content(errno.into()))?;
    sqlx::query(sql::INSERT_DEPLOYMENT)
        .bind(id)
        .bind(secret.to_vec())
        .bind(microseconds(OffsetDateTime::now_utc()))
        .execute(connection)
        .await?;
    Ok(Deployment { id, secret })
}

/// Where a page starts when none came before.
fn start(page: Page) -> Uuid {
    page.after.unwrap_or(if page.descending { Uuid::max() } else { Uuid::nil() })
}

#[async_trait]
impl Store for SqliteStore {
    fn secret(&self) -> [u8; 32] {
        self.secret
    }

    fn maker(&self) -> Maker {
        self.maker
    }

    async fn claimed(&self, tenant: &Tenant, key: &Key) -> Result<Option<Claimed>, StoreError> {
        let oldest = microseconds(OffsetDateTime::now_utc()) - KEY_MICROSECONDS;
        let row: Option<ClaimedRow> = sqlx::query_as(sql::SELECT_CLAIM)
            .bind(tenant.name())
            .bind(key.route)
            .bind(&key.key)
            .bind(oldest)
            .fetch_optional(&self.readers)
            .await?;
        Ok(row.and_then(ClaimedRow::into_claimed))
    }

    async fn insert_session(
        &self,
        tenant: &Tenant,
        session: &Session,
        claim: Option<&Claim>,
    ) -> Result<(), StoreError> {
        let claim = claim.map(|claim| ClaimRow::of(tenant, claim, Subject::Session(session.id)));
        self.writer.write(Write::InsertSession(SessionRow::of(tenant, session)?, claim)).await?;
        Ok(())
    }

    async fn update_session(&self, tenant: &Tenant, session: &Session) -> Result<(), StoreError> {
        self.writer.write(Write::UpdateSession(SessionRow::of(tenant, session)?)).await?;
        Ok(())
    }

    async fn session(&self, tenant: &Tenant, id: SessionId) -> Result<Option<Session>, StoreError> {
        let body: Option<String> = sqlx::query_scalar(sql::SELECT_SESSION)
            .bind(id.uuid())
            .bind(tenant.name())
            .fetch_optional(&self.readers)
            .await?;
        body.map(|body| from_json(&body)).transpose()
    }

    async fn sessions(&self, tenant: &Tenant, page: Page) -> Result<Vec<Session>, StoreError> {
        let statement =
            if page.descending { sql::SELECT_SESSIONS_NEWEST } else { sql::SELECT_SESSIONS_OLDEST };
        let bodies: Vec<String> = sqlx::query_scalar(statement)
            .bind(tenant.name())
            .bind(start(page))
            .bind(page.limit)
            .fetch_all(&self.readers)
            .await?;
        bodies.iter().map(|body| from_json(body)).collect()
    }

    async fn begin_run(
        &self,
        tenant: &Tenant,
        run: &RunSummary,
        claim: Option<&Claim>,
    ) -> Result<(), StoreError> {
        let claim = claim.map(|claim| ClaimRow::of(tenant, claim, Subject::Run(run.id)));
        self.writer.write(Write::BeginRun(RunRow::of(tenant, run)?, claim)).await?;
        Ok(())
    }

    fn epoch(&self) -> i64 {
        self.owner.epoch
    }

    async fn finish_run(&self, tenant: &Tenant, finish: &Finish<'_>) -> Result<bool, StoreError> {
        let run = finish.run;
        let id = run.summary.id;
        let (detail, detail_blob) = self.payload(id, "detail", RunDetail::of(run)?).await?;
        let (conversation, conversation_blob) = match &finish.conversation {
            Some(text) => self.payload(id, "conversation", text.clone()).await?,
            None => (None, None),
        };
        let events_blob = match finish.events.as_ref().filter(|events| !events.is_empty()) {
            Some(events) => {
                let events = Bytes::copy_from_slice(events);
                Some(self.blobs.write_whole(id, "events", events).await?)
            }
            None => None,
        };
        let ended_at = run.summary.finished_at.unwrap_or_else(OffsetDateTime::now_utc);
        let row = FinishRow {
            run_id: id.uuid(),
            tenant: tenant.name().to_owned(),
            status: run.summary.status.word(),
            summary: json(&run.summary)?,
            detail,
            detail_blob,
            events_blob,
            conversation,
            conversation_blob,
            ended_at: microseconds(ended_at),
            release_key: finish.release_key,
            files: finish.files.to_vec(),
        };
        let write = Write::FinishRun(Box::new(row), finish.epoch);
        Ok(self.writer.write(write).await? > 0)
    }

    async fn start_run(&self, tenant: &Tenant, run: &RunSummary) -> Result<bool, StoreError> {
        Ok(self.writer.write(Write::StartRun(RunRow::of(tenant, run)?)).await? > 0)
    }

    async fn events(&self, tenant: &Tenant, id: RunId) -> Result<Option<Bytes>, StoreError> {
        let blob: Option<Option<String>> = sqlx::query_scalar(sql::SELECT_EVENTS)
            .bind(id.uuid())
            .bind(tenant.name())
            .fetch_optional(&self.readers)
            .await?;
        match blob.flatten() {
            Some(blob) => Ok(Some(self.blobs.read_whole(&blob).await?)),
            None => Ok(None),
        }
    }

    async fn conversation(&self, tenant: &Tenant, id: RunId) -> Result<Option<Bytes>, StoreError> {
        let row: Option<(Option<String>, Option<String>)> =
            sqlx::query_as(sql::SELECT_CONVERSATION)
                .bind(id.uuid())
                .bind(tenant.name())
                .fetch_optional(&self.readers)
                .await?;
        Ok(match row {
            Some((Some(text), _)) => Some(text.into()),
            Some((None, Some(blob))) => Some(self.blobs.read_whole(&blob).await?),
            Some((None, None)) | None => None,
        })
    }

    async fn run(&self, tenant: &Tenant, id: RunId) -> Result<Option<Run>, StoreError> {
        let row: Option<StoredRunRow> = sqlx::query_as(sql::SELECT_RUN)
            .bind(id.uuid())
            .bind(tenant.name())
            .fetch_optional(&self.readers)
            .await?;
        let Some(row) = row else { return Ok(None) };
        let summary = from_json(&row.summary)?;
        let detail = self.detail(&row).await?;
        let RunDetail { text, truncated, code_exec_results, output_files, missing_files } = detail;
        let run = Run { summary, text, truncated, code_exec_results, output_files, missing_files };
        Ok(Some(run))
    }

    async fn runs(
        &self,
        tenant: &Tenant,
        filter: &RunFilter,
        page: Page,
    ) -> Result<Vec<RunSummary>, StoreError> {
        let statement =
            if page.descending { sql::SELECT_RUNS_NEWEST } else { sql::SELECT_RUNS_OLDEST };
        let summaries: Vec<String> = sqlx::query_scalar(statement)
            .bind(tenant.name())
            .bind(start(page))
            .bind(page.limit)
            .bind(filter.kind.map(crate::domain::run::RunKind::word))
            .bind(filter.status.map(RunStatus::word))
            .bind(filter.session_id.map(SessionId::uuid))
            .bind(&filter.provider)
            .bind(filter.since.map(microseconds))
            .bind(filter.until.map(microseconds))
            .fetch_all(&self.readers)
            .await?;
        summaries.iter().map(|summary| Ok(shortened(from_json(summary)?))).collect()
    }

    async fn output_file(
        &self,
        tenant: &Tenant,
        id: RunId,
        path: &str,
    ) -> Result<Option<StoredFile>, StoreError> {
        let row: Option<OutputFileRow> = sqlx::query_as(sql::SELECT_OUTPUT_FILE)
            .bind(id.uuid())
            .bind(tenant.name())
            .bind(path)
            .fetch_optional(&self.readers)
            .await?;
        Ok(row.map(Into::into))
    }

    async fn recover_runs(&self) -> Result<usize, StoreError> {
        let runs: Vec<(String, i64, String)> = sqlx::query_as(sql::SELECT_OPEN_RUNS)
            .bind(self.owner.replica_id)
            .fetch_all(&self.readers)
            .await?;
        for (tenant, epoch, summary) in &runs {
            self.end_run(tenant, *epoch, from_json(summary)?).await?;
        }
        Ok(runs.len())
    }

    async fn open_sessions(&self) -> Result<Vec<OpenSession>, StoreError> {
        let sessions: Vec<(String, String, Option<String>)> =
            sqlx::query_as(sql::SELECT_OPEN_SESSIONS)
                .bind(self.owner.replica_id)
                .fetch_all(&self.readers)
                .await?;
        let open = |(tenant, body, sandbox): (String, String, Option<String>)| {
            Ok(OpenSession {
                tenant: Tenant::named(tenant),
                session: from_json(&body)?,
                sandbox: sandbox.map(|text| from_json(&text)).transpose()?,
            })
        };
        sessions.into_iter().map(open).collect()
    }

    async fn furnish_session(
        &self,
        tenant: &Tenant,
        session: &Session,
        sandbox: &SandboxRecord,
    ) -> Result<(), StoreError> {
        let row = SessionRow { sandbox: Some(json(sandbox)?), ..SessionRow::of(tenant, session)? };
        self.writer.write(Write::FurnishSession(row)).await?;
        Ok(())
    }

    async fn expire(&self, before: OffsetDateTime) -> Result<Vec<String>, StoreError> {
        let before = microseconds(before);
        let blobs = sqlx::query_scalar(sql::SELECT_EXPIRED_BLOBS)
            .bind(before)
            .fetch_all(&self.readers)
            .await?;
        let now = microseconds(OffsetDateTime::now_utc());
        self.writer.write(Write::Expire { before, now }).await?;
        Ok(blobs)
    }

    async fn blobs_in_use(&self) -> Result<Vec<String>, StoreError> {
        Ok(sqlx::query_scalar(sql::SELECT_BLOBS).fetch_all(&self.readers).await?)
    }

    async fn check(&self) -> Result<(), StoreError> {
        sqlx::query("select 1").execute(&self.readers).await?;
        Ok(())
    }

    async fn close(&self) {
        self.readers.close().await;
        self.writer.close().await;
    }
}
