//! What goes on beside the answering, until told to stop.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::domain::coded::chain;
use crate::domain::id::{RunId, SessionId};
use crate::runs::Runs;
use crate::runs::journal::Journal;
use crate::sessions::Sessions;
use crate::store::blobs::Blobs;
use crate::store::{Store, StoreError};

/// How often a lease is renewed while it lasts.
const BEATS: u32 = 6;
/// How soon it is tried again after a failure, at the latest.
const AGAIN: Duration = Duration::from_secs(1);
/// How often rows are compared with what goes on.
const LOOK: Duration = Duration::from_secs(5);
/// How often blobs that nothing speaks of are looked for.
const SWEEP: Duration = Duration::from_secs(6 * 3600);

/// What the duties are done with.
pub(super) struct Duties {
    pub(super) sessions: Arc<Sessions>,
    pub(super) runs: Runs,
    pub(super) store: Arc<dyn Store>,
    pub(super) blobs: Blobs,
    pub(super) journal: Journal,
    pub(super) stop: CancellationToken,
}

impl Duties {
    /// Each in a task of its own.
    pub(super) fn begin(self) -> [JoinHandle<()>; 6] {
        let Self { sessions, runs, store, blobs, journal, stop } = self;
        let (reaped, reaping) = (Arc::clone(&sessions), stop.clone());
        let (forgotten, forgetting) = (runs.clone(), stop.clone());
        let (journaled, writing) = (Arc::clone(&store), stop.clone());
        let sweeping = sweep(blobs.clone(), Arc::clone(&store), journal.clone(), stop.clone());
        let uploading = stop.clone();
        let comparing = Comparing { sessions, runs, store };
        [
            tokio::spawn(async move { reaped.reap(reaping).await }),
            tokio::spawn(async move { forgotten.forget(forgetting).await }),
            tokio::spawn(async move { journal.keep_up(journaled, writing).await }),
            tokio::spawn(async move { blobs.keep_up(uploading).await }),
            tokio::spawn(sweeping),
            tokio::spawn(async move { comparing.go_on(stop).await }),
        ]
    }
}

/// Says that this replica is there, from the moment when it is one until all that it did is over. One
/// that was replaced tells the whole service to stop.
pub(super) async fn be_seen(
    store: Arc<dyn Store>,
    lease: Duration,
    stop: CancellationToken,
    over: CancellationToken,
) -> Result<(), StoreError> {
    let beat = lease / BEATS;
    let mut pause = beat;
    loop {
        tokio::select! {
            () = over.cancelled() => return Ok(()),
            () = tokio::time::sleep(pause) => {}
        }
        pause = beat;
        match store.beat().await {
            Ok(()) => {}
            Err(StoreError::Replaced) => {
                stop.cancel();
                return Err(StoreError::Replaced);
            }
            Err(error) => {
                tracing::warn!(error = chain(&error), "other replicas do not see this one");
                pause = beat.min(AGAIN);
            }
        }
    }
}

/// Removes blobs that nothing speaks of, unless ends of runs wait that may.
async fn sweep(blobs: Blobs, store: Arc<dyn Store>, journal: Journal, stop: CancellationToken) {
    loop {
        let swept =
            async { if journal.is_empty() { blobs.sweep(store.as_ref()).await } else { Ok(0) } };
        tokio::select! {
            () = stop.cancelled() => return,
            swept = swept => match swept {
                Ok(0) => {}
                Ok(blobs) => tracing::warn!(blobs, "removed blobs that nothing speaks of"),
                Err(error) => tracing::warn!(error = chain(&error), "blobs were not looked through"),
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(SWEEP) => {}
        }
    }
}

/// Compares rows with what goes on: nothing that has ended stays open.
struct Comparing {
    sessions: Arc<Sessions>,
    runs: Runs,
    store: Arc<dyn Store>,
}

/// What the last look found astray; what the next one finds again is.
#[derive(Default)]
struct Suspects {
    runs: HashSet<RunId>,
    sessions: HashSet<SessionId>,
}

impl Comparing {
    async fn go_on(self, stop: CancellationToken) {
        let mut suspects = Suspects::default();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(LOOK) => {}
            }
            // a store that cannot be read is told of elsewhere, and looked at again
            let looked = async {
                self.end_strays(&mut suspects).await?;
                self.take_over().await
            };
            if let Err(error) = looked.await {
                tracing::debug!(error = chain(error.as_ref()), "rows were not compared");
            }
        }
    }

    async fn end_strays(
        &self,
        suspects: &mut Suspects,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let open = self.store.open().await?;
        let runs = self.runs.strays(open.runs);
        let sessions = self.sessions.strays(open.sessions);
        for (tenant, id) in runs.iter().filter(|(_, id)| suspects.runs.contains(id)) {
            tracing::warn!(run.id = %id, "ended a run that nobody works on");
            self.runs.end_stray(tenant, *id).await?;
        }
        for (tenant, id) in sessions.iter().filter(|(_, id)| suspects.sessions.contains(id)) {
            tracing::warn!(session.id = %id, "ended a session that has no sandbox");
            self.sessions.end_stray(tenant, *id).await?;
        }
        suspects.runs = runs.into_iter().map(|(_, id)| id).collect();
        suspects.sessions = sessions.into_iter().map(|(_, id)| id).collect();
        Ok(())
    }

    async fn take_over(&self) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let replicas = self.store.take_over().await?;
        let runs = self.store.recover_runs().await?;
        let sessions = self.sessions.take_up_left().await?;
        if replicas + runs + sessions.kept + sessions.lost > 0 {
            tracing::warn!(
                replicas,
                runs,
                kept = sessions.kept,
                lost = sessions.lost,
                "took over from replicas that are gone"
            );
        }
        Ok(())
    }
}
