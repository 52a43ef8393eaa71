//! The one writer of SQLite: what waits is committed together.

use sqlx::{Connection, SqliteConnection};
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use super::row::{ClaimRow, FinishRow, RunRow, SessionRow};
use super::sql;
use crate::domain::coded::chain;
use crate::store::StoreError;

/// Writes that may wait.
const WAITING: usize = 1024;
/// How long a key stands for its request: 24 hours.
pub(super) const KEY_MICROSECONDS: i64 = 24 * 3600 * 1_000_000;
/// Writes in one transaction.
const TOGETHER: usize = 64;

/// One thing to write.
pub(super) enum Write {
    InsertSession(SessionRow, Option<ClaimRow>),
    UpdateSession(SessionRow),
    BeginRun(RunRow, Option<ClaimRow>),
    StartRun(RunRow),
    FurnishSession(SessionRow),
    Expire { before: i64, now: i64 },
    FinishRun(Box<FinishRow>, i64),
}

struct Asked {
    write: Write,
    answer: oneshot::Sender<Result<u64, StoreError>>,
}

/// Who is writing, in `owner` and `epoch`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Owner {
    pub(super) replica_id: Uuid,
    pub(super) epoch: i64,
}

/// Takes writes and answers when they are committed.
pub(super) struct Writer {
    queue: mpsc::Sender<Asked>,
    ended: tokio::sync::watch::Receiver<bool>,
    closing: tokio_util::sync::CancellationToken,
}

impl Writer {
    pub(super) fn start(connection: SqliteConnection, owner: Owner) -> Self {
        let (queue, asked) = mpsc::channel(WAITING);
        let (ending, ended) = tokio::sync::watch::channel(false);
        let closing = tokio_util::sync::CancellationToken::new();
        let closed = closing.clone();
        tokio::spawn(async move {
            run(connection, owner, asked, closed).await;
            let _ = ending.send(true);
        });
        Self { queue, ended, closing }
    }

    /// Writes and gives the number of rows that it touched.
    pub(super) async fn write(&self, write: Write) -> Result<u64, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.queue.send(Asked { write, answer }).await.map_err(|_| StoreError::Closed)?;
        answered.await.unwrap_or(Err(StoreError::Closed))
    }

    /// Writes what waits, then closes the connection.
    pub(super) async fn close(&self) {
        self.closing.cancel();
        let _ = self.ended.clone().wait_for(|ended| *ended).await;
    }
}

async fn run(
    mut connection: SqliteConnection,
    owner: Owner,
    mut queue: mpsc::Receiver<Asked>,
    closing: tokio_util::sync::CancellationToken,
) {
    let mut batch = Vec::new();
    loop {
        let received = tokio::select! {
            biased;
            received = queue.recv_many(&mut batch, TOGETHER) => received,
            () = closing.cancelled() => {
                queue.close();
                continue;
            }
        };
        if received == 0 {
            break;
        }
        commit(&mut connection, owner, std::mem::take(&mut batch)).await;
    }
    if let Err(error) = connection.close().await {
        tracing::error!(error = chain(&error), "the database was not closed");
    }
}

async fn commit(connection: &mut SqliteConnection, owner: Owner, batch: Vec<Asked>) {
    if let [Asked { write, .. }] = batch.as_slice()
        && is_single(write)
    {
        let result = apply(connection, owner, write).await;
        answer(batch, vec![result]);
        return;
    }
    match together(connection, owner, &batch).await {
        Ok(results) => answer(batch, results),
        Err(error) => {
            tracing::error!(error = chain(&error), "a transaction failed");
            answer(batch, Vec::new());
        }
    }
}

/// Each answer is sent once; where there is none, the transaction as a whole has failed.
fn answer(batch: Vec<Asked>, results: Vec<Result<u64, StoreError>>) {
    let mut results = results.into_iter();
    for asked in batch {
        let failed = || Err(StoreError::Database(sqlx::Error::WorkerCrashed));
        let _ = asked.answer.send(results.next().unwrap_or_else(failed));
    }
}

/// A failed statement of one write leaves the others as they are.
async fn together(
    connection: &mut SqliteConnection,
    owner: Owner,
    batch: &[Asked],
) -> Result<Vec<Result<u64, StoreError>>, sqlx::Error> {
    let mut transaction = connection.begin_with("begin immediate").await?;
    let mut results = Vec::with_capacity(batch.len());
    for asked in batch {
        let mut savepoint = transaction.begin().await?;
        let result = apply(&mut savepoint, owner, &asked.write).await;
        if result.is_ok() {
            savepoint.commit().await?;
        } else {
            savepoint.rollback().await?;
        }
        results.push(result);
    }
    transaction.commit().await?;
    Ok(results)
}

fn is_single(write: &Write) -> bool {
    match write {
        Write::InsertSession(_, claim) | Write::BeginRun(_, claim) => claim.is_none(),
        Write::UpdateSession(session) => !session.release_key,
        Write::StartRun(_) | Write::FurnishSession(_) => true,
        Write::Expire { .. } => false,
        Write::FinishRun(finish, _) => finish.files.is_empty() && !finish.release_key,
    }
}

async fn apply(
    connection: &mut SqliteConnection,
    owner: Owner,
    write: &Write,
) -> Result<u64, StoreError> {
    let done = match write {
        Write::InsertSession(row, claim) => {
            take_key(connection, claim.as_ref()).await?;
            return own_session(connection, sql::INSERT_SESSION, row, owner).await;
        }
        Write::UpdateSession(row) => return update_session(connection, row).await,
        Write::FurnishSession(row) => {
            return own_session(connection, sql::FURNISH_SESSION, row, owner).await;
        }
        Write::Expire { before, now } => return expire(connection, *before, *now).await,
        Write::BeginRun(row, claim) => {
            take_key(connection, claim.as_ref()).await?;
            sqlx::query(sql::INSERT_RUN)
                .bind(row.run_id)
                .bind(&row.tenant)
                .bind(owner.replica_id)
                .bind(owner.epoch)
                .bind(row.kind)
                .bind(row.status)
                .bind(row.session_id)
                .bind(&row.provider)
                .bind(row.created_at)
                .bind(&row.summary)
                .execute(&mut *connection)
                .await?
        }
        Write::StartRun(row) => {
            sqlx::query(sql::START_RUN)
                .bind(row.run_id)
                .bind(&row.tenant)
                .bind(owner.epoch)
                .bind(&row.summary)
                .execute(&mut *connection)
                .await?
        }
        Write::FinishRun(row, epoch) => return finish(connection, row, *epoch).await,
    };
    Ok(done.rows_affected())
}

/// A session's row with whose it is.
async fn own_session(
    connection: &mut SqliteConnection,
    statement: &'static str,
    row: &SessionRow,
    owner: Owner,
) -> Result<u64, StoreError> {
    let done = sqlx::query(statement)
        .bind(row.session_id)
        .bind(&row.tenant)
        .bind(owner.replica_id)
        .bind(owner.epoch)
        .bind(row.state)
        .bind(&row.body)
        .bind(&row.sandbox)
        .execute(connection)
        .await?;
    Ok(done.rows_affected())
}

async fn update_session(
    connection: &mut SqliteConnection,
    row: &SessionRow,
) -> Result<u64, StoreError> {
    if row.release_key {
        let release = sqlx::query(sql::RELEASE_SESSION_KEY).bind(row.session_id);
        release.execute(&mut *connection).await?;
    }
    let done = sqlx::query(sql::UPDATE_SESSION)
        .bind(row.session_id)
        .bind(&row.tenant)
        .bind(row.state)
        .bind(&row.body)
        .bind(row.ended_at)
        .execute(connection)
        .await?;
    Ok(done.rows_affected())
}

/// Rows only: blobs go after this is committed.
async fn expire(
    connection: &mut SqliteConnection,
    before: i64,
    now: i64,
) -> Result<u64, StoreError> {
    let mut gone = 0;
    for (statement, limit) in [
        (sql::DELETE_EXPIRED_FILES, before),
        (sql::DELETE_KEYS_OF_EXPIRED_RUNS, before),
        (sql::DELETE_EXPIRED_RUNS, before),
        (sql::DELETE_KEYS_OF_EXPIRED_SESSIONS, before),
        (sql::DELETE_EXPIRED_SESSIONS, before),
        (sql::DELETE_EXPIRED_KEYS, now - KEY_MICROSECONDS),
    ] {
        gone += sqlx::query(statement).bind(limit).execute(&mut *connection).await?.rows_affected();
    }
    Ok(gone)
}

/// Takes the key first: when it is taken, nothing of the rest is written.
async fn take_key(
    connection: &mut SqliteConnection,
    claim: Option<&ClaimRow>,
) -> Result<(), StoreError> {
    let Some(row) = claim else { return Ok(()) };
    let taken = sqlx::query(sql::INSERT_CLAIM)
        .bind(&row.tenant)
        .bind(row.route)
        .bind(&row.key)
        .bind(&row.request_hash)
        .bind(row.run_id)
        .bind(row.session_id)
        .bind(row.now)
        .bind(row.now - KEY_MICROSECONDS)
        .execute(&mut *connection)
        .await?;
    if taken.rows_affected() == 0 { Err(StoreError::Claimed) } else { Ok(()) }
}

/// The run's end and its files, or neither: a run that has ended gets no more files.
async fn finish(
    connection: &mut SqliteConnection,
    row: &FinishRow,
    epoch: i64,
) -> Result<u64, StoreError> {
    let done = sqlx::query(sql::FINISH_RUN)
        .bind(row.run_id)
        .bind(&row.tenant)
        .bind(epoch)
        .bind(row.status)
        .bind(&row.summary)
        .bind(&row.detail)
        .bind(&row.detail_blob)
        .bind(&row.events_blob)
        .bind(row.ended_at)
        .bind(&row.conversation)
        .bind(&row.conversation_blob)
        .execute(&mut *connection)
        .await?;
    if done.rows_affected() == 0 {
        return Ok(0);
    }
    if row.release_key {
        sqlx::query(sql::RELEASE_RUN_KEY).bind(row.run_id).execute(&mut *connection).await?;
    }
    for file in &row.files {
        sqlx::query(sql::INSERT_OUTPUT_FILE)
            .bind(row.run_id)
            .bind(&file.path)
            .bind(&row.tenant)
            .bind(&file.blob)
            .bind(i64::try_from(file.size_bytes).unwrap_or(i64::MAX))
            .bind(&file.mime)
            .bind(&file.sha256)
            .execute(&mut *connection)
            .await?;
    }
    Ok(done.rows_affected())
}
