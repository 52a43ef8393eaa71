//! How the store fails.

use std::path::PathBuf;

use crate::config::{BlobError, DatabaseError};
use crate::domain::coded::{Class, Code, Coded};
use crate::net::ClientError;

/// What the store could not do.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database did not do it.
    #[error("the database failed")]
    Database(#[source] sqlx::Error),
    /// The database cannot be reached, or has no room: it did not do it, as far as is known.
    #[error("the database cannot be used now")]
    Unavailable(#[source] sqlx::Error),
    /// The database took too long; it may have done it.
    #[error("the database took too long")]
    TooSlow,
    /// The transaction that it was part of was not committed.
    #[error("the transaction was not committed")]
    NotCommitted,
    /// The database has not seen this replica for so long that another may serve its sessions.
    #[error("the database has not seen this replica for too long")]
    Unseen,
    /// Another replica serves the sessions of this one.
    #[error("another replica has taken over from this one")]
    Replaced,
    /// The setting does not name a database.
    #[error("the setting database_url cannot be used")]
    Setting(#[source] DatabaseError),
    /// A later version of this program has changed the tables.
    #[error(
        "the database was written by a later version of this program: it has the migration {0}, which this one does not know"
    )]
    Newer(i64),
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
    /// A blob is not what was written.
    #[error("a blob has not the size that was written")]
    BlobSize,
    /// The bucket did not do it.
    #[error("the bucket cannot be used now")]
    Bucket(#[source] object_store::Error),
    /// The bucket does not take what requests are signed with.
    #[error("the bucket refuses the key: {0}")]
    BucketRefused(BucketFault),
    /// There is no such bucket.
    #[error("there is no such bucket")]
    NoBucket,
    /// The bucket took too long.
    #[error("the bucket does not answer in time")]
    BucketSlow,
    /// What waits for the bucket has used up its room.
    #[error("no more blobs may wait for the bucket")]
    BlobsFull,
    /// The bucket's client cannot be set up.
    #[error("the client of the bucket cannot be set up")]
    BucketClient(#[source] ClientError),
    /// The settings name no place for blobs.
    #[error("the place for blobs cannot be used")]
    BlobSetting(#[source] BlobError),
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

/// What a bucket calls a fault: a word of its protocol, such as `InvalidAccessKeyId`.
#[derive(Debug)]
pub struct BucketFault(pub(in crate::store) Option<String>);

impl std::fmt::Display for BucketFault {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(self.0.as_deref().unwrap_or("it says not why"))
    }
}

impl Coded for StoreError {
    fn code(&self) -> Code {
        match self {
            Self::Claimed => Class::Conflict.named("idempotency_in_progress"),
            Self::Unavailable(_)
            | Self::TooSlow
            | Self::NotCommitted
            | Self::Unseen
            | Self::Replaced
            | Self::Bucket(_)
            | Self::BucketRefused(_)
            | Self::NoBucket
            | Self::BucketSlow => Class::Unavailable.named("store_unavailable"),
            Self::BlobsFull => Class::Unavailable.named("blobs_full"),
            Self::Closed => Class::Unavailable.named("shutting_down"),
            Self::Database(_)
            | Self::Setting(_)
            | Self::Newer(_)
            | Self::Migrate(_)
            | Self::Row(_)
            | Self::Blob(_)
            | Self::BlobMissing
            | Self::BlobSize
            | Self::BucketClient(_)
            | Self::BlobSetting(_)
            | Self::Content(_)
            | Self::Folder(..)
            | Self::Locked(_) => Class::Internal.named("store_failed"),
        }
    }
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        if is_passing(&error) { Self::Unavailable(error) } else { Self::Database(error) }
    }
}

/// Whether the same may work later: the fault is the database's state, not what it was told.
fn is_passing(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed => true,
        sqlx::Error::Database(error) => error.code().is_some_and(|code| is_state(&code)),
        _ => false,
    }
}

/// Codes of Postgres (its manual, appendix A) have five characters, those of SQLite are numbers whose
/// last byte is the primary one (its "Result and Error Codes").
fn is_state(code: &str) -> bool {
    const BUSY: i32 = 5;
    const LOCKED: i32 = 6;
    const READ_ONLY: i32 = 8;
    const IO: i32 = 10;
    const FULL: i32 = 13;
    const CANNOT_OPEN: i32 = 14;
    if code.len() == 5 {
        // connection, authorization, limits of the server, rollback, intervention, system; a server
        // that only reads after a change of roles; a database that is gone
        let classes = ["08", "28", "3D", "40", "53", "57", "58"];
        return classes.contains(&&code[..2]) || code == "25006";
    }
    let primary = code.parse::<i32>().map(|code| code & 0xff);
    primary.is_ok_and(|code| [BUSY, LOCKED, READ_ONLY, IO, FULL, CANNOT_OPEN].contains(&code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_and_a_stopped_server_pass_and_a_wrong_statement_does_not() {
        for code in ["13", "10", "778", "5", "57P01", "53100", "08006", "25006"] {
            assert!(is_state(code), "{code}");
        }
        for code in ["1", "19", "2067", "23505", "42601", "25001"] {
            assert!(!is_state(code), "{code}");
        }
    }
}
