//! Ends sessions whose time is over.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::Sessions;
use crate::domain::coded::chain;

/// A deadline that has been moved on by use is looked at again at the latest after this.
const LOOK: Duration = Duration::from_millis(500);

impl Sessions {
    /// Ends sessions as their time is over, until told to stop.
    pub async fn reap(&self, stop: CancellationToken) {
        loop {
            // one time for both bounds: a machine may stand still between two
            let now = Instant::now();
            let (near, far) = (now + Duration::from_millis(1), now + LOOK);
            let is_served = self.store.may_serve().is_ok();
            let deadline = self.next_deadline().filter(|_| is_served);
            let next = deadline.map_or(far, |deadline| deadline.clamp(near, far));
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.deadlines.notified() => continue,
                () = sleep_until(next) => {}
            }
            for slot in self.unwritten() {
                if let Err(error) = self.write_end(&slot).await {
                    tracing::debug!(session.id = %slot.id, error = chain(&error), "a session's end waits for the store");
                    break;
                }
            }
            // what another replica may have by now is not ended here
            let mut overdue = self.overdue(Instant::now());
            overdue.retain(|(slot, _)| is_served || !self.outlives(slot));
            let ends = overdue.into_iter().map(|(slot, reason)| async move {
                if let Err(error) = self.end(&slot.tenant, slot.id, reason).await {
                    tracing::error!(session.id = %slot.id, error = chain(&error), "a session's end was not written");
                }
            });
            futures::future::join_all(ends).await;
        }
    }
}
