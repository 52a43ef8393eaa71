//! What is written, statement by statement; each write is whole or not at all.

use uuid::Uuid;

use super::database::Connection;
use super::row::{ClaimRow, FinishRow, RunRow, SessionRow};
use super::sql;
use crate::store::StoreError;

/// How long a key stands for its request: 24 hours.
pub(super) const KEY_MICROSECONDS: i64 = 24 * 3600 * 1_000_000;

/// One thing to write.
pub(super) enum Write {
    InsertSession(SessionRow, Option<ClaimRow>),
    UpdateSession(SessionRow),
    BeginRun(RunRow, Option<ClaimRow>),
    StartRun(RunRow),
    FurnishSession(SessionRow),
    Expire(Expiring),
    FinishRun(Box<FinishRow>, i64),
}

/// What is to be forgotten in one short transaction.
pub(super) struct Expiring {
    pub(super) runs: Vec<Uuid>,
    pub(super) sessions: Vec<Uuid>,
    /// Keys that are older.
    pub(super) keys_before: i64,
    pub(super) keys_at_most: i64,
}

/// What was written.
#[derive(Debug, Default)]
pub(super) struct Done {
    /// The rows that were touched.
    pub(super) rows: u64,
    /// The blobs that nothing speaks of any more.
    pub(super) blobs: Vec<String>,
}

/// Who is writing, in `owner` and `epoch`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Owner {
    pub(super) replica_id: Uuid,
    pub(super) epoch: i64,
}

impl Write {
    /// True when it is one statement, which is whole by itself.
    pub(super) fn is_single(&self) -> bool {
        match self {
            Self::InsertSession(_, claim) | Self::BeginRun(_, claim) => claim.is_none(),
            Self::UpdateSession(session) => !session.release_key,
            Self::StartRun(_) | Self::FurnishSession(_) => true,
            Self::Expire(_) => false,
            Self::FinishRun(finish, _) => finish.files.is_empty() && !finish.release_key,
        }
    }

    /// Writes it, in a transaction that the caller has begun where it is not single.
    pub(super) async fn apply(
        &self,
        connection: &mut Connection,
        owner: Owner,
    ) -> Result<Done, StoreError> {
        let rows = match self {
            Self::InsertSession(row, claim) => {
                take_key(connection, claim.as_ref()).await?;
                own_session(connection, sql::INSERT_SESSION, row, owner).await?
            }
            Self::UpdateSession(row) => update_session(connection, row, owner).await?,
            Self::FurnishSession(row) => {
                own_session(connection, sql::FURNISH_SESSION, row, owner).await?
            }
            Self::BeginRun(row, claim) => {
                take_key(connection, claim.as_ref()).await?;
                insert_run(connection, row, owner).await?
            }
            Self::StartRun(row) => {
                let values = [
                    row.run_id.into(),
                    (&row.tenant).into(),
                    owner.epoch.into(),
                    (&row.summary).into(),
                ];
                connection.execute(sql::START_RUN, &values).await?
            }
            Self::FinishRun(row, epoch) => finish(connection, row, *epoch).await?,
            Self::Expire(expiring) => return expire(connection, expiring).await,
        };
        Ok(Done { rows, ..Done::default() })
    }
}

async fn insert_run(
    connection: &mut Connection,
    row: &RunRow,
    owner: Owner,
) -> Result<u64, sqlx::Error> {
    let values = [
        row.run_id.into(),
        (&row.tenant).into(),
        owner.replica_id.into(),
        owner.epoch.into(),
        row.kind.into(),
        row.status.into(),
        row.session_id.into(),
        (&row.provider).into(),
        row.created_at.into(),
        (&row.summary).into(),
    ];
    connection.execute(sql::INSERT_RUN, &values).await
}

/// A session's row with whose it is.
async fn own_session(
    connection: &mut Connection,
    statement: &'static str,
    row: &SessionRow,
    owner: Owner,
) -> Result<u64, sqlx::Error> {
    let values = [
        row.session_id.into(),
        (&row.tenant).into(),
        owner.replica_id.into(),
        owner.epoch.into(),
        row.state.into(),
        (&row.body).into(),
        (&row.sandbox).into(),
    ];
    connection.execute(statement, &values).await
}

async fn update_session(
    connection: &mut Connection,
    row: &SessionRow,
    owner: Owner,
) -> Result<u64, sqlx::Error> {
    if row.release_key {
        connection.execute(sql::RELEASE_SESSION_KEY, &[row.session_id.into()]).await?;
    }
    let values = [
        row.session_id.into(),
        (&row.tenant).into(),
        row.state.into(),
        (&row.body).into(),
        row.ended_at.into(),
        owner.replica_id.into(),
    ];
    connection.execute(sql::UPDATE_SESSION, &values).await
}

/// Takes the key first: when it is taken, nothing of the rest is written.
async fn take_key(connection: &mut Connection, claim: Option<&ClaimRow>) -> Result<(), StoreError> {
    let Some(row) = claim else { return Ok(()) };
    let values = [
        (&row.tenant).into(),
        row.route.into(),
        (&row.key).into(),
        (&row.request_hash).into(),
        row.run_id.into(),
        row.session_id.into(),
        row.now.into(),
        (row.now - KEY_MICROSECONDS).into(),
    ];
    let taken = connection.execute(sql::INSERT_CLAIM, &values).await?;
    if taken == 0 { Err(StoreError::Claimed) } else { Ok(()) }
}

/// The run's end and its files, or neither: a run that has ended gets no more files.
async fn finish(
    connection: &mut Connection,
    row: &FinishRow,
    epoch: i64,
) -> Result<u64, sqlx::Error> {
    let values = [
        row.run_id.into(),
        (&row.tenant).into(),
        epoch.into(),
        row.status.into(),
        (&row.summary).into(),
        (&row.detail).into(),
        (&row.detail_blob).into(),
        (&row.events_blob).into(),
        row.ended_at.into(),
        (&row.conversation).into(),
        (&row.conversation_blob).into(),
    ];
    let finished = connection.execute(sql::FINISH_RUN, &values).await?;
    if finished == 0 {
        return Ok(0);
    }
    if row.release_key {
        connection.execute(sql::RELEASE_RUN_KEY, &[row.run_id.into()]).await?;
    }
    for file in &row.files {
        let values = [
            row.run_id.into(),
            (&file.path).into(),
            (&row.tenant).into(),
            (&file.blob).into(),
            i64::try_from(file.size_bytes).unwrap_or(i64::MAX).into(),
            (&file.mime).into(),
            (&file.sha256).into(),
        ];
        connection.execute(sql::INSERT_OUTPUT_FILE, &values).await?;
    }
    Ok(finished)
}

/// Rows only: blobs go after this is committed. A key never stands for what is not there any more.
async fn expire(connection: &mut Connection, expiring: &Expiring) -> Result<Done, StoreError> {
    let mut done = Done::default();
    for run_id in &expiring.runs {
        let run_id = [(*run_id).into()];
        let files: Vec<(String,)> = connection.all(sql::DELETE_OUTPUT_FILES, &run_id).await?;
        done.blobs.extend(files.into_iter().map(|(blob,)| blob));
        done.rows += connection.execute(sql::RELEASE_RUN_KEY, &run_id).await?;
        let run: Vec<[Option<String>; 3]> = connection
            .all(sql::DELETE_RUN, &run_id)
            .await?
            .into_iter()
            .map(|(detail, events, conversation)| [detail, events, conversation])
            .collect();
        done.rows += run.len() as u64;
        done.blobs.extend(run.into_iter().flatten().flatten());
    }
    for session_id in &expiring.sessions {
        let session_id = [(*session_id).into()];
        done.rows += connection.execute(sql::RELEASE_SESSION_KEY, &session_id).await?;
        done.rows += connection.execute(sql::DELETE_SESSION, &session_id).await?;
    }
    let keys = [expiring.keys_before.into(), expiring.keys_at_most.into()];
    done.rows += connection.execute(sql::DELETE_OLD_KEYS, &keys).await?;
    Ok(done)
}
