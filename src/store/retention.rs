//! What need not be kept any more, a few at a time.

use uuid::Uuid;

use super::database::Readers;
use super::row::microseconds;
use super::{Keep, StoreError, sql};

/// Runs, sessions and keys that one step forgets, each: a transaction of a few milliseconds.
pub(super) const STEP: i64 = 32;

/// How those that are kept are found, and those that are not.
pub(super) struct Kind {
    old: &'static str,
    tenants: &'static str,
    surplus: &'static str,
    at_most: fn(&Keep) -> Option<u64>,
}

pub(super) const RUNS: Kind = Kind {
    old: sql::SELECT_OLD_RUNS,
    tenants: sql::SELECT_RUN_TENANTS,
    surplus: sql::SELECT_SURPLUS_RUNS,
    at_most: |keep| keep.runs,
};

pub(super) const SESSIONS: Kind = Kind {
    old: sql::SELECT_OLD_SESSIONS,
    tenants: sql::SELECT_SESSION_TENANTS,
    surplus: sql::SELECT_SURPLUS_SESSIONS,
    at_most: |keep| keep.sessions,
};

impl Kind {
    /// Some of those that are too old, else some of those that are too many.
    pub(super) async fn outlived(
        &self,
        readers: &Readers,
        keep: &Keep,
    ) -> Result<Vec<Uuid>, StoreError> {
        let values = [microseconds(keep.since).into(), STEP.into()];
        let mut found: Vec<(Uuid,)> = readers.all(self.old, &values).await?;
        if let Some(at_most) = (self.at_most)(keep).filter(|_| found.is_empty()) {
            let at_most = i64::try_from(at_most).unwrap_or(i64::MAX);
            let tenants: Vec<(String,)> = readers.all(self.tenants, &[]).await?;
            for (tenant,) in &tenants {
                let values = [tenant.into(), at_most.into(), STEP.into()];
                found.extend(readers.all::<(Uuid,)>(self.surplus, &values).await?);
                if found.len() as i64 >= STEP {
                    break;
                }
            }
        }
        Ok(found.into_iter().map(|(id,)| id).collect())
    }
}
