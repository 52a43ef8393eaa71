//! SQLite: one writer, some readers, write-ahead log.

use std::path::Path;
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{Connection as _, SqliteConnection};

use super::blobs::Blobs;
use super::database::{Connection, Pool, Readers};
use super::replica::Replica;
use super::tables::Tables;
use super::writer::{Grouped, Writer};
use super::{StoreError, migrations, sql};
use crate::domain::id::ReplicaId;
use crate::telemetry::metrics::Metrics;

const BUSY_LIMIT: Duration = Duration::from_secs(5);
const READERS: u32 = 4;

/// Brings the tables up to date.
pub(super) async fn migrate(file: &Path) -> Result<(), StoreError> {
    let mut connection = SqliteConnection::connect_with(&options(file)).await?;
    migrations::sqlite(&mut connection).await?;
    Ok(connection.close().await?)
}

/// Opens the database, brings its tables up to date and begins this replica's next epoch.
pub(super) async fn open(
    file: &Path,
    limit: Duration,
    blobs: Blobs,
    metrics: Metrics,
) -> Result<Tables, StoreError> {
    let options = options(file);
    let mut connection = SqliteConnection::connect_with(&options).await?;
    migrations::sqlite(&mut connection).await?;
    let mut connection = Connection::Sqlite(connection);
    let known: Option<(uuid::Uuid,)> = connection.one(sql::SELECT_REPLICA, &[]).await?;
    let id = known.map_or_else(|| ReplicaId::new().uuid(), |(id,)| id);
    let replica = Replica::start(&mut connection, id).await?;
    let readers = SqlitePoolOptions::new().max_connections(READERS);
    let readers = readers.connect_with(options.read_only(true)).await?;
    Ok(Tables {
        readers: Readers::new(Pool::Sqlite(readers), limit, metrics.clone()),
        writer: Writer::Grouped(Grouped::start(connection, replica.owner)),
        replica,
        blobs,
        metrics,
    })
}

fn options(file: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(file)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Normal)
        .foreign_keys(true)
        .busy_timeout(BUSY_LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::id::SessionId;
    use crate::domain::list::RunFilter;
    use crate::domain::run::{RunKind, RunStatus};

    /// How SQLite finds a page, in a database that knows nothing of its values yet.
    async fn plan(filter: &RunFilter, descending: bool) -> String {
        let mut connection = SqliteConnection::connect("sqlite::memory:").await.expect("opens");
        migrations::sqlite(&mut connection).await.expect("migrates");
        let hint: fn(&'static str) -> String = |index| format!(" indexed by {index}");
        let page = sql::select_runs(filter, descending, hint).0;
        let explained = sqlx::AssertSqlSafe(format!("explain query plan {page}"));
        let lines: Vec<(i64, i64, i64, String)> =
            sqlx::query_as(explained).fetch_all(&mut connection).await.expect("explains");
        lines.into_iter().map(|(.., line)| line).collect::<Vec<_>>().join("; ")
    }

    #[tokio::test]
    async fn each_filter_finds_its_page_in_an_index_and_sorts_nothing() {
        let none = RunFilter::default;
        let session = RunFilter { session_id: Some(SessionId::new()), ..none() };
        let cases = [
            (none(), "run_by_tenant (tenant=?"),
            (session.clone(), "run_by_session (tenant=? AND session_id=?"),
            (
                RunFilter { status: Some(RunStatus::Error), ..session },
                "run_by_session (tenant=? AND session_id=?",
            ),
            (
                RunFilter { status: Some(RunStatus::Success), ..none() },
                "run_by_status (tenant=? AND status=?",
            ),
            (RunFilter { kind: Some(RunKind::Exec), ..none() }, "run_by_kind (tenant=? AND kind=?"),
            (
                RunFilter { provider: Some("local".to_owned()), ..none() },
                "run_by_provider (tenant=? AND provider=?",
            ),
            (
                RunFilter { since: Some(time::OffsetDateTime::now_utc()), ..none() },
                "run_by_tenant (tenant=?",
            ),
        ];
        for (filter, index) in cases {
            for descending in [false, true] {
                let expected = format!("SEARCH run USING INDEX {index} AND run_id>? AND run_id<?)");
                assert_eq!(plan(&filter, descending).await, expected);
            }
        }
    }
}
