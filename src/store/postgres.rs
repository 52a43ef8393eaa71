//! Postgres: a pool that reads, a pool that writes, and a lease among replicas.

use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use secrecy::ExposeSecret;
use secrecy::SecretString;
use sqlx::pool::PoolConnectionMetadata;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection as _};

use super::blobs::Blobs;
use super::database::{Connection, Pool, Readers};
use super::replica::{Replica, id_in};
use super::tables::Tables;
use super::writer::{Pooled, Writer};
use super::{StoreError, migrations};
use crate::config::StoreSettings;
use crate::domain::build::VERSION;
use crate::telemetry::metrics::Metrics;

/// A connection that lay unused for longer is tried before it is used.
const TRUSTED: Duration = Duration::from_secs(1);
/// How long the first connection may take, a server that is just being started included.
const START_LIMIT: Duration = Duration::from_secs(30);
const START_TRIES: u32 = 15;
const START_PAUSE: Duration = Duration::from_secs(1);

/// Opens the database, brings its tables up to date and begins this replica's next epoch.
pub(super) async fn open(
    url: &SecretString,
    settings: &StoreSettings,
    data_dir: &Path,
    blobs: Blobs,
    metrics: Metrics,
) -> Result<Tables, StoreError> {
    let options = PgConnectOptions::from_str(url.expose_secret())?
        .application_name(&format!("interpreterd/{VERSION}"));
    let limit = settings.database_seconds;
    migrate(url).await?;
    let reading = settings.database_connections / 4;
    let readers = pool(reading.max(1), limit, &options);
    let writers = pool(settings.database_connections - reading.max(1) - 1, limit, &options);
    let id = id_in(data_dir).map_err(|error| StoreError::Folder(data_dir.to_owned(), error))?;
    let mut connection = Connection::Postgres(writers.acquire().await?);
    connection.begin().await?;
    // replicas that start at once agree on who makes the deployment
    connection.command("lock table deployment in share row exclusive mode").await?;
    let replica = Replica::start(&mut connection, id).await?;
    let beating = pool(1, limit, &options);
    let replica = replica.among_others(&mut connection, beating, writers.clone(), settings).await?;
    connection.command("commit").await?;
    drop(connection);
    Ok(Tables {
        readers: Readers::new(Pool::Postgres(readers), limit, metrics.clone()),
        writer: Writer::Pooled(Pooled::new(writers, replica.owner, limit)),
        replica,
        blobs,
        metrics,
    })
}

/// Brings the tables up to date, on a connection without a limit for a statement: an index over many
/// rows takes its time.
pub(super) async fn migrate(url: &SecretString) -> Result<(), StoreError> {
    let options = PgConnectOptions::from_str(url.expose_secret())?;
    let connecting = tokio::time::timeout(START_LIMIT, first_connection(&options)).await;
    let mut connection = connecting.unwrap_or(Err(sqlx::Error::PoolTimedOut))?;
    migrations::postgres(&mut connection).await?;
    Ok(connection.close().await?)
}

/// A server that is started together with this service may come later.
async fn first_connection(options: &PgConnectOptions) -> Result<PgConnection, sqlx::Error> {
    let mut tries = 0;
    loop {
        match PgConnection::connect_with(options).await {
            Err(error) if tries < START_TRIES && is_starting(&error) => {
                tracing::info!(%error, "the database cannot be reached yet");
                tries += 1;
                tokio::time::sleep(START_PAUSE).await;
            }
            connected => return connected,
        }
    }
}

fn is_starting(error: &sqlx::Error) -> bool {
    const CANNOT_CONNECT_NOW: &str = "57P03";
    match error {
        sqlx::Error::Io(_) => true,
        sqlx::Error::Database(error) => error.code().is_some_and(|code| code == CANNOT_CONNECT_NOW),
        _ => false,
    }
}

/// The server gives up what takes too long, too: what was given up here does not go on there.
fn pool(connections: u32, limit: Duration, options: &PgConnectOptions) -> PgPool {
    let milliseconds = limit.as_millis();
    let set = format!(
        "set statement_timeout = {milliseconds}; set lock_timeout = {milliseconds}; \
         set idle_in_transaction_session_timeout = {milliseconds}; \
         set plan_cache_mode = force_custom_plan"
    );
    PgPoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(limit)
        .test_before_acquire(false)
        .before_acquire(|connection, PoolConnectionMetadata { idle_for, .. }| {
            Box::pin(async move { Ok(idle_for < TRUSTED || connection.ping().await.is_ok()) })
        })
        .after_connect(move |connection, _| {
            let set = AssertSqlSafe(set.clone()); // of numbers alone
            Box::pin(async move {
                sqlx::raw_sql(set).execute(connection).await?;
                Ok(())
            })
        })
        .connect_lazy_with(options.clone())
}
