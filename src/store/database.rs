//! One way to ask SQLite and Postgres: the same statements, the same values.

use std::time::Duration;

use futures::future::BoxFuture;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgPool, PgRow};
use sqlx::sqlite::{SqlitePool, SqliteRow};
use sqlx::{Connection as _, FromRow, Postgres, SqlSafeStr, SqliteConnection};
use uuid::Uuid;

use crate::store::StoreError;
use crate::telemetry::metrics::{Metrics, Outcome};

/// What stands for `$1` and so on.
#[derive(Debug, Clone, Copy)]
pub(super) enum Value<'a> {
    Uuid(Option<Uuid>),
    Text(Option<&'a str>),
    Integer(Option<i64>),
    Bytes(&'a [u8]),
}

/// What can be read from a row of either database.
pub(super) trait Readable:
    for<'r> FromRow<'r, SqliteRow> + for<'r> FromRow<'r, PgRow> + Send + Unpin
{
}

impl<T> Readable for T where
    T: for<'r> FromRow<'r, SqliteRow> + for<'r> FromRow<'r, PgRow> + Send + Unpin
{
}

macro_rules! bound {
    ($query:expr, $values:expr) => {{
        let mut query = $query;
        for value in $values {
            query = match value {
                Value::Uuid(uuid) => query.bind(*uuid),
                Value::Text(text) => query.bind(*text),
                Value::Integer(number) => query.bind(*number),
                Value::Bytes(bytes) => query.bind(*bytes),
            };
        }
        query
    }};
}

/// Connections that read.
#[derive(Clone)]
pub(super) struct Readers {
    pool: Pool,
    limit: Duration,
    metrics: Metrics,
}

#[derive(Clone)]
pub(super) enum Pool {
    Sqlite(SqlitePool),
    Postgres(PgPool),
}

impl Readers {
    /// Each reading takes `limit` at most, the waiting for a connection included.
    pub(super) fn new(pool: Pool, limit: Duration, metrics: Metrics) -> Self {
        Self { pool, limit, metrics }
    }

    /// All rows that a statement gives.
    pub(super) async fn all<T: Readable>(
        &self,
        statement: impl SqlSafeStr,
        values: &[Value<'_>],
    ) -> Result<Vec<T>, StoreError> {
        // Postgres cannot be asked for it, and nothing of the kind is stored
        let has_nul =
            |value: &Value<'_>| matches!(value, Value::Text(Some(text)) if text.contains('\0'));
        if values.iter().any(has_nul) {
            return Ok(Vec::new());
        }
        let statement = statement.into_sql_str();
        // what is read may be read again: the first try finds the connections that a server which
        // was started anew does not know
        let twice = async {
            match self.pool.all(statement.clone(), values).await.map_err(StoreError::from) {
                Err(StoreError::Unavailable(error))
                    if !matches!(error, sqlx::Error::PoolTimedOut) =>
                {
                    Ok(self.pool.all(statement, values).await?)
                }
                rows => rows,
            }
        };
        let timed = self.metrics.query("read");
        let rows = tokio::time::timeout(self.limit, twice).await;
        let rows = rows.unwrap_or(Err(StoreError::TooSlow));
        timed.done(Outcome::of(&rows));
        rows
    }

    /// The one row that a statement gives, or none.
    pub(super) async fn one<T: Readable>(
        &self,
        statement: impl SqlSafeStr,
        values: &[Value<'_>],
    ) -> Result<Option<T>, StoreError> {
        Ok(self.all(statement, values).await?.pop())
    }

    /// How an index is named to the planner. That of SQLite guesses badly while it knows nothing of the
    /// values, that of Postgres knows them and takes no hint.
    pub(super) fn hint(&self) -> fn(&'static str) -> String {
        match &self.pool {
            Pool::Sqlite(_) => |index| format!(" indexed by {index}"),
            Pool::Postgres(_) => |_| String::new(),
        }
    }

    pub(super) async fn close(&self) {
        match &self.pool {
            Pool::Sqlite(pool) => pool.close().await,
            Pool::Postgres(pool) => {
                // a server that hangs would hold the end up
                let _ = tokio::time::timeout(self.limit, pool.close()).await;
            }
        }
    }
}

impl Pool {
    async fn all<T: Readable>(
        &self,
        statement: impl SqlSafeStr,
        values: &[Value<'_>],
    ) -> Result<Vec<T>, sqlx::Error> {
        match self {
            Self::Sqlite(pool) => bound!(sqlx::query_as(statement), values).fetch_all(pool).await,
            Self::Postgres(pool) => {
                let mut asked = Asked::of(pool).await?;
                let query = bound!(sqlx::query_as(statement), values);
                let rows = query.fetch_all(&mut *asked.connection).await;
                asked.answered = rows.is_ok();
                rows
            }
        }
    }
}

/// A connection of Postgres while it is asked. One that is left before its answer, or that failed, is
/// closed: the pool would wait for it, without a limit when its host is gone.
pub(super) struct Asked {
    pub(super) connection: PoolConnection<Postgres>,
    pub(super) answered: bool,
}

impl Asked {
    pub(super) async fn of(pool: &PgPool) -> Result<Self, sqlx::Error> {
        Ok(Self { connection: pool.acquire().await?, answered: false })
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if !self.answered {
            self.connection.close_on_drop();
        }
    }
}

/// A connection that writes.
pub(super) enum Connection {
    Sqlite(SqliteConnection),
    Postgres(PoolConnection<Postgres>),
}

impl Connection {
    /// Gives the number of rows that were touched.
    pub(super) async fn execute(
        &mut self,
        statement: &'static str,
        values: &[Value<'_>],
    ) -> Result<u64, sqlx::Error> {
        Ok(match self {
            Self::Sqlite(connection) => {
                bound!(sqlx::query(statement), values).execute(connection).await?.rows_affected()
            }
            Self::Postgres(connection) => {
                let query = bound!(sqlx::query(statement), values);
                query.execute(&mut **connection).await?.rows_affected()
            }
        })
    }

    /// All rows that a statement gives.
    pub(super) async fn all<T: Readable>(
        &mut self,
        statement: &'static str,
        values: &[Value<'_>],
    ) -> Result<Vec<T>, sqlx::Error> {
        match self {
            Self::Sqlite(connection) => {
                bound!(sqlx::query_as(statement), values).fetch_all(connection).await
            }
            Self::Postgres(connection) => {
                bound!(sqlx::query_as(statement), values).fetch_all(&mut **connection).await
            }
        }
    }

    /// The one row that a statement gives, or none.
    pub(super) async fn one<T: Readable>(
        &mut self,
        statement: &'static str,
        values: &[Value<'_>],
    ) -> Result<Option<T>, sqlx::Error> {
        Ok(self.all(statement, values).await?.pop())
    }

    /// Begins a transaction; one of SQLite's takes the right to write at once, for it would not wait
    /// for it later.
    pub(super) async fn begin(&mut self) -> Result<(), sqlx::Error> {
        let statement = match self {
            Self::Sqlite(_) => "begin immediate",
            Self::Postgres(_) => "begin",
        };
        self.command(statement).await
    }

    /// Says what needs no answer but that it was done: `commit`, `rollback` and their like.
    pub(super) async fn command(&mut self, statement: &'static str) -> Result<(), sqlx::Error> {
        match self {
            Self::Sqlite(connection) => {
                sqlx::raw_sql(statement).execute(connection).await.map(drop)
            }
            Self::Postgres(connection) => {
                sqlx::raw_sql(statement).execute(&mut **connection).await.map(drop)
            }
        }
    }

    /// Never to be used again: what it was doing may go on.
    pub(super) fn give_up(&mut self) {
        if let Self::Postgres(connection) = self {
            connection.close_on_drop();
        }
    }

    pub(super) fn close(self) -> BoxFuture<'static, Result<(), sqlx::Error>> {
        match self {
            Self::Sqlite(connection) => Box::pin(connection.close()),
            Self::Postgres(connection) => Box::pin(connection.close()),
        }
    }
}

impl From<Uuid> for Value<'_> {
    fn from(uuid: Uuid) -> Self {
        Self::Uuid(Some(uuid))
    }
}

impl From<Option<Uuid>> for Value<'_> {
    fn from(uuid: Option<Uuid>) -> Self {
        Self::Uuid(uuid)
    }
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(Some(text))
    }
}

impl<'a> From<&'a String> for Value<'a> {
    fn from(text: &'a String) -> Self {
        Self::Text(Some(text))
    }
}

impl<'a> From<&'a Option<String>> for Value<'a> {
    fn from(text: &'a Option<String>) -> Self {
        Self::Text(text.as_deref())
    }
}

impl From<i64> for Value<'_> {
    fn from(number: i64) -> Self {
        Self::Integer(Some(number))
    }
}

impl From<Option<i64>> for Value<'_> {
    fn from(number: Option<i64>) -> Self {
        Self::Integer(number)
    }
}
