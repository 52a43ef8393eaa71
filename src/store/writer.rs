//! How writes are committed: SQLite's in groups by one task, Postgres's side by side.

use std::time::Duration;

use sqlx::postgres::PgPool;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::database::Connection;
use super::writes::{Done, Owner, Write};
use crate::domain::coded::chain;
use crate::store::StoreError;

/// Writes that may wait.
const WAITING: usize = 1024;
/// Writes in one transaction.
const TOGETHER: usize = 64;

/// Takes writes and answers when they are committed.
pub(super) enum Writer {
    Grouped(Grouped),
    Pooled(Pooled),
}

impl Writer {
    /// Writes and says what that touched.
    pub(super) async fn write(&self, write: Write) -> Result<Done, StoreError> {
        match self {
            Self::Grouped(writer) => writer.write(write).await,
            Self::Pooled(writer) => writer.write(write).await,
        }
    }

    /// Writes what waits, then closes its connections.
    pub(super) async fn close(&self) {
        match self {
            Self::Grouped(writer) => writer.close().await,
            Self::Pooled(writer) => {
                // a server that hangs would hold the end up
                let _ = tokio::time::timeout(writer.limit, writer.pool.close()).await;
            }
        }
    }
}

/// The one writer of a database in a file: what waits is committed together.
pub(super) struct Grouped {
    queue: mpsc::Sender<Asked>,
    ended: tokio::sync::watch::Receiver<bool>,
    closing: CancellationToken,
}

struct Asked {
    write: Write,
    answer: oneshot::Sender<Result<Done, StoreError>>,
}

impl Grouped {
    pub(super) fn start(connection: Connection, owner: Owner) -> Self {
        let (queue, asked) = mpsc::channel(WAITING);
        let (ending, ended) = tokio::sync::watch::channel(false);
        let closing = CancellationToken::new();
        let closed = closing.clone();
        tokio::spawn(async move {
            run(connection, owner, asked, closed).await;
            let _ = ending.send(true);
        });
        Self { queue, ended, closing }
    }

    async fn write(&self, write: Write) -> Result<Done, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.queue.send(Asked { write, answer }).await.map_err(|_| StoreError::Closed)?;
        answered.await.unwrap_or(Err(StoreError::Closed))
    }

    async fn close(&self) {
        self.closing.cancel();
        let _ = self.ended.clone().wait_for(|ended| *ended).await;
    }
}

/// Writes on connections of their own: the server commits together what comes together.
pub(super) struct Pooled {
    pool: PgPool,
    owner: Owner,
    limit: Duration,
}

impl Pooled {
    /// Each write takes `limit` at most, the waiting for a connection included.
    pub(super) fn new(pool: PgPool, owner: Owner, limit: Duration) -> Self {
        Self { pool, owner, limit }
    }

    /// In a task of its own: a caller who goes away leaves no half of a transaction.
    async fn write(&self, write: Write) -> Result<Done, StoreError> {
        let (pool, owner, limit) = (self.pool.clone(), self.owner, self.limit);
        let written = tokio::spawn(async move {
            let deadline = tokio::time::Instant::now() + limit;
            let acquired = tokio::time::timeout_at(deadline, pool.acquire()).await;
            let mut connection =
                Connection::Postgres(acquired.unwrap_or(Err(sqlx::Error::PoolTimedOut))?);
            let done = alone(&mut connection, owner, &write);
            let done = tokio::time::timeout_at(deadline, done).await;
            let done = done.unwrap_or(Err(StoreError::TooSlow));
            if done.as_ref().is_err_and(|error| !matches!(error, StoreError::Claimed)) {
                connection.give_up();
            }
            done
        });
        written.await.unwrap_or(Err(StoreError::Closed))
    }
}

/// One write, whole or not at all.
async fn alone(
    connection: &mut Connection,
    owner: Owner,
    write: &Write,
) -> Result<Done, StoreError> {
    if write.is_single() {
        return write.apply(connection, owner).await;
    }
    connection.begin().await?;
    let done = write.apply(connection, owner).await;
    connection.command(if done.is_ok() { "commit" } else { "rollback" }).await?;
    done
}

async fn run(
    mut connection: Connection,
    owner: Owner,
    mut queue: mpsc::Receiver<Asked>,
    closing: CancellationToken,
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

async fn commit(connection: &mut Connection, owner: Owner, batch: Vec<Asked>) {
    if let [Asked { write, .. }] = batch.as_slice() {
        let result = alone(connection, owner, write).await;
        if result.is_err() && !write.is_single() {
            end_broken(connection).await;
        }
        answer(batch, vec![result]);
        return;
    }
    match together(connection, owner, &batch).await {
        Ok(results) => answer(batch, results),
        Err(error) => {
            tracing::error!(error = chain(&error), "a transaction failed");
            end_broken(connection).await;
            answer(batch, Vec::new());
        }
    }
}

/// A commit that failed, as on a full disk, leaves its transaction open.
async fn end_broken(connection: &mut Connection) {
    // an error says that there is none any more, which is what is wanted
    let _ = connection.command("rollback").await;
}

/// Each answer is sent once; where there is none, the transaction as a whole has failed.
fn answer(batch: Vec<Asked>, results: Vec<Result<Done, StoreError>>) {
    let mut results = results.into_iter();
    for asked in batch {
        let failed = || Err(StoreError::NotCommitted);
        let _ = asked.answer.send(results.next().unwrap_or_else(failed));
    }
}

/// A write that fails leaves the others as they are: one statement undoes itself, several stand behind a
/// savepoint.
async fn together(
    connection: &mut Connection,
    owner: Owner,
    batch: &[Asked],
) -> Result<Vec<Result<Done, StoreError>>, sqlx::Error> {
    connection.begin().await?;
    let mut results = Vec::with_capacity(batch.len());
    for asked in batch {
        let is_single = asked.write.is_single();
        if !is_single {
            connection.command("savepoint one_write").await?;
        }
        let result = asked.write.apply(connection, owner).await;
        if let Err(StoreError::Unavailable(error)) = result {
            return Err(error); // as on a full disk: the transaction may be gone as a whole
        }
        if !is_single && result.is_err() {
            connection.command("rollback to one_write").await?;
        }
        if !is_single {
            connection.command("release one_write").await?;
        }
        results.push(result);
    }
    connection.command("commit").await?;
    Ok(results)
}
