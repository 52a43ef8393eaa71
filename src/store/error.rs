//! How the store fails.

use std::path::PathBuf;

use crate::domain::coded::{Class, Code, Coded};

/// What the store could not do.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database did not do it.
    #[error("the database failed")]
    Database(#[source] sqlx::Error),
    /// The tables could not be brought up to date.
    #[error("the database could not be migrated")]
    Migrate(#[source] sqlx::migrate::MigrateError),
    /// A row does not hold what this version writes.
    #[error("a stored row cannot be read")]
    Row(#[source] serde_json::Error),
    /// The content of a file could not be written or read.
    #[error("a blob failed")]
    Blob(#[source] object_store::Error),
    /// A blob of an older run is gone.
    #[error("a blob is missing")]
    BlobMissing,
    /// What was to become a blob broke off.
    #[error("the content of a blob broke off")]
    Content(#[source] std::io::Error),
    /// The data folder cannot be used.
    #[error("the data folder {} cannot be used", .0.display())]
    Folder(PathBuf, #[source] std::io::Error),
    /// Another process uses the data folder.
    #[error("the data folder {} is used by another process", .0.display())]
    Locked(PathBuf),
    /// The idempotency key is taken.
    #[error("the idempotency key is taken")]
    Claimed,
    /// The store has been closed.
    #[error("the store is closed")]
    Closed,
}

impl Coded for StoreError {
    fn code(&self) -> Code {
        match self {
            Self::Claimed => Class::Conflict.named("idempotency_in_progress"),
            Self::Closed => Class::Unavailable.named("shutting_down"),
            Self::Database(_)
            | Self::Migrate(_)
            | Self::Row(_)
            | Self::Blob(_)
            | Self::BlobMissing
            | Self::Content(_)
            | Self::Folder(..)
            | Self::Locked(_) => Class::Internal.named("store_failed"),
        }
    }
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}
