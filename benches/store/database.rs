//! What is asked of a database beside its store.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sqlx::{Connection, PgConnection};
use tokio::sync::Mutex;

use crate::Failure;

/// A server's processes tell what they have counted when they have been idle for ten seconds.
const TOLD_AFTER: Duration = Duration::from_millis(10_500);
/// Where the header of SQLite's wal-index counts transactions: <https://sqlite.org/walformat.html>, 2.1.
const CHANGES: std::ops::Range<usize> = 8..12;

/// A database that a store is on.
pub enum Database {
    /// Its wal-index.
    Sqlite(PathBuf),
    /// A connection of our own.
    Postgres(Mutex<PgConnection>),
}

/// What a database has done since it was made.
#[derive(Debug, Clone, Copy)]
pub struct Done {
    /// Transactions that were committed.
    pub transactions: u64,
    /// How often the log was brought to the disk; None where that is not told.
    pub syncs: Option<u64>,
}

impl Database {
    /// The database of a store that is open.
    pub async fn of(url: &str, data_dir: &Path) -> Result<Self, Failure> {
        if url == "sqlite" {
            return Ok(Self::Sqlite(data_dir.join("interpreterd.db-shm")));
        }
        Ok(Self::Postgres(Mutex::new(PgConnection::connect(url).await?)))
    }

    /// How it stands in tables.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Sqlite(_) => "SQLite",
            Self::Postgres(_) => "Postgres",
        }
    }

    /// Does at once what autovacuum and the checkpointer would do in their own time.
    pub async fn settle(&self) -> Result<(), Failure> {
        let Self::Postgres(connection) = self else { return Ok(()) };
        let mut connection = connection.lock().await;
        for statement in ["vacuum (analyze)", "checkpoint"] {
            sqlx::query(statement).execute(&mut *connection).await?;
        }
        Ok(())
    }

    /// What it has done, once all of that has been told.
    pub async fn done(&self) -> Result<Done, Failure> {
        let connection = match self {
            Self::Sqlite(index) => {
                let header = std::fs::read(index)?;
                let changes = header.get(CHANGES).ok_or("SQLite's wal-index is cut off")?;
                let transactions = u32::from_ne_bytes(changes.try_into()?).into();
                return Ok(Done { transactions, syncs: None });
            }
            Self::Postgres(connection) => connection,
        };
        tokio::time::sleep(TOLD_AFTER).await;
        let mut connection = connection.lock().await;
        let transactions: i64 = sqlx::query_scalar(
            "select xact_commit from pg_stat_database where datname = current_database()",
        )
        .fetch_one(&mut *connection)
        .await?;
        // Postgres 18 tells it elsewhere
        let syncs = sqlx::query_scalar::<_, i64>("select wal_sync from pg_stat_wal")
            .fetch_one(&mut *connection)
            .await;
        Ok(Done {
            transactions: transactions.try_into()?,
            syncs: syncs.ok().and_then(|syncs| syncs.try_into().ok()),
        })
    }
}
