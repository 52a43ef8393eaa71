//! How things stand, for those who operate the service.

use std::time::Duration;

use super::Runs;
use crate::domain::run::RunKind;
use crate::telemetry::Now;

/// Whoever looks does not wait for a database that hangs.
const STORE_LIMIT: Duration = Duration::from_secs(2);
const KINDS: [RunKind; 4] = [RunKind::Exec, RunKind::Shell, RunKind::Execute, RunKind::Interpret];

impl Runs {
    /// How things stand in this replica, within some two seconds.
    pub async fn now(&self) -> Now {
        let desk = &self.desk;
        let journal = desk.journal.clone();
        let entries = tokio::task::spawn_blocking(move || journal.count()).await;
        let checked = tokio::time::timeout(STORE_LIMIT, desk.store.check()).await;
        Now {
            runs: KINDS.map(|kind| (kind.word(), desk.live.count(kind))).to_vec(),
            store_up: matches!(checked, Ok(Ok(()))),
            journal_entries: entries.unwrap_or_default(),
            blobs_waiting: desk.blobs.waiting().0,
            ..desk.sessions.now()
        }
    }
}
