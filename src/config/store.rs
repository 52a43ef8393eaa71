//! Settings of the store: which database remembers runs and sessions.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use secrecy::{ExposeSecret, SecretString};

use super::seconds;

/// The database.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Store")]
pub struct StoreSettings {
    /// Database, as postgres://USER:PASSWORD@HOST/NAME; none: SQLite in the data folder
    #[arg(long, env = "INTERPRETERD_DATABASE_URL", hide_env_values = true)]
    pub database_url: Option<SecretString>,
    /// Connections to Postgres that are open at once
    #[arg(long, env = "INTERPRETERD_DATABASE_CONNECTIONS", default_value_t = 16, value_parser = clap::value_parser!(u32).range(3..=1000))]
    pub database_connections: u32,
    /// Time for one reading or writing of the database, in seconds
    #[arg(long, env = "INTERPRETERD_DATABASE_SECONDS", default_value = "5", value_parser = seconds)]
    pub database_seconds: Duration,
    /// Time for which a replica serves its sessions once Postgres has seen it, in seconds; others take over when it has not been seen for half as long again
    #[arg(long, env = "INTERPRETERD_REPLICA_LEASE_SECONDS", default_value = "30", value_parser = seconds)]
    pub replica_lease_seconds: Duration,
}

/// Where the database is.
#[derive(Debug, Clone)]
pub enum Database {
    /// A file.
    Sqlite(PathBuf),
    /// A server, by its URL.
    Postgres(SecretString),
}

/// Why a database cannot be named so. The URL itself is not told: a password may stand in it.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    /// Not one of Postgres.
    #[error("it does not begin with postgres://; without it, SQLite in the data folder is used")]
    Scheme,
}

impl Default for StoreSettings {
    fn default() -> Self {
        Self {
            database_url: None,
            database_connections: 16,
            database_seconds: Duration::from_secs(5),
            replica_lease_seconds: Duration::from_secs(30),
        }
    }
}

impl StoreSettings {
    /// The database that these settings name.
    ///
    /// # Errors
    /// [`DatabaseError`] when the URL names none.
    pub fn database(&self, data_dir: &Path) -> Result<Database, DatabaseError> {
        let Some(url) = &self.database_url else {
            return Ok(Database::Sqlite(data_dir.join("interpreterd.db")));
        };
        let text = url.expose_secret();
        if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            return Ok(Database::Postgres(url.clone()));
        }
        Err(DatabaseError::Scheme)
    }

    pub(super) fn check(&self) -> Result<(), DatabaseError> {
        self.database(Path::new("")).map(drop)
    }
}
