//! The tables' history, in each database's words.

use sqlx::SqlStr;
use sqlx::migrate::{Migrate, MigrateError, Migration, MigrationType, Migrator};

use crate::store::StoreError;

/// In order; one that has been released is never changed again.
const SQLITE: [(&str, &str); 5] = [
    ("first", include_str!("../../migrations/sqlite/0001_first.sql")),
    ("ends_and_keys", include_str!("../../migrations/sqlite/0002_ends_and_keys.sql")),
    ("conversations", include_str!("../../migrations/sqlite/0003_conversations.sql")),
    ("sandboxes", include_str!("../../migrations/sqlite/0004_sandboxes.sql")),
    ("a_million_runs", include_str!("../../migrations/sqlite/0005_a_million_runs.sql")),
];

/// Begins where SQLite's tables stood when Postgres came.
const POSTGRES: [(&str, &str); 1] =
    [("first", include_str!("../../migrations/postgres/0001_first.sql"))];

/// Brings the tables of SQLite up to date.
pub(super) async fn sqlite<C: Migrate>(connection: &mut C) -> Result<(), StoreError> {
    run(&SQLITE, connection).await
}

/// Brings the tables of Postgres up to date; a lock of the database lets one replica at a time.
pub(super) async fn postgres<C: Migrate>(connection: &mut C) -> Result<(), StoreError> {
    run(&POSTGRES, connection).await
}

async fn run<C: Migrate>(
    history: &[(&'static str, &'static str)],
    connection: &mut C,
) -> Result<(), StoreError> {
    let migration = |(version, (name, text)): (i64, &(&'static str, &'static str))| {
        let text = SqlStr::from_static(text);
        Migration::new(version, (*name).into(), MigrationType::Simple, text, false)
    };
    let migrations = (1..).zip(history).map(migration).collect();
    let migrator = Migrator { migrations, ..Migrator::DEFAULT };
    migrator.run_direct(None, connection, false).await.map_err(|error| match error {
        MigrateError::VersionMissing(version) => StoreError::Newer(version),
        other => StoreError::Migrate(other),
    })
}
