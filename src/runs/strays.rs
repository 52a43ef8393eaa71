//! Runs whose rows are open and that nobody works on any more.

use time::OffsetDateTime;

use super::{RunError, Runs};
use crate::domain::execution::{Failure, FailureKind};
use crate::domain::id::{RunId, Tenant};
use crate::domain::run::{Run, RunStatus};
use crate::store::Finish;

impl Runs {
    /// Of runs whose rows are open, those that are not worked on, and whose end does not wait.
    #[must_use]
    pub fn strays(&self, open: Vec<(Tenant, RunId)>) -> Vec<(Tenant, RunId)> {
        let desk = &self.desk;
        let is_stray = |id| !desk.live.has(id) && !desk.journal.holds(id);
        open.into_iter().filter(|(_, id)| is_stray(*id)).collect()
    }

    /// Ends a stray. Its begin was written though the store did not say so: its code was not handed
    /// over, its caller was told to try again, and its key is free. One that had begun is unknown.
    pub async fn end_stray(&self, tenant: &Tenant, id: RunId) -> Result<(), RunError> {
        let mut summary = self.get(tenant, id).await?.summary;
        let lost = self.desk.live.has_begun(id);
        let message = if lost {
            "how it ended could not be written: it may or may not have run to its end"
        } else {
            "the store failed before the run began"
        };
        summary.status = if lost { RunStatus::Unknown } else { RunStatus::Error };
        summary.error = Some(message.to_owned());
        summary.failure = Some(Failure {
            kind: FailureKind::SandboxLost,
            retry_safe: !lost,
            message: message.to_owned(),
        });
        summary.finished_at = Some(OffsetDateTime::now_utc());
        let finish = Finish {
            run: &Run::empty(summary),
            files: &[],
            events: None,
            conversation: None,
            epoch: self.desk.store.epoch(),
            release_key: !lost,
        };
        self.desk.store.finish_run(tenant, &finish).await?;
        self.desk.live.note_ended(id);
        Ok(())
    }
}
