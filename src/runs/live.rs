//! Runs that go on now: who may stop them and who listens.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};

use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;

use crate::domain::claim::Claim;
use crate::domain::event::{EventLog, OutputSink};
use crate::domain::id::{RunId, SessionId, Tenant};
use crate::domain::run::{RunKind, RunSummary};

/// What a run carries with it from the moment when it is asked for.
pub(super) struct Ticket {
    pub(super) tenant: Tenant,
    pub(super) run_id: RunId,
    pub(super) asked_at: OffsetDateTime,
    /// Says that it should end.
    pub(super) cancel: CancellationToken,
    /// Its events; a quiet one has none but its end.
    pub(super) log: Arc<EventLog>,
    /// True when its events are wanted.
    pub(super) loud: bool,
    /// The key that it was asked for with.
    pub(super) claim: Option<Claim>,
    /// Its row, when it was written down as queued.
    pub(super) queued: Option<RunSummary>,
    /// The id of the session that it makes for itself, where that was told already.
    pub(super) own_session: Option<SessionId>,
}

impl Ticket {
    pub(super) fn new(tenant: &Tenant, cancel: CancellationToken, loud: bool) -> Self {
        Self {
            tenant: tenant.clone(),
            run_id: RunId::new(),
            asked_at: OffsetDateTime::now_utc(),
            cancel,
            log: Arc::default(),
            loud,
            claim: None,
            queued: None,
            own_session: None,
        }
    }

    /// Where events of this run go.
    pub(super) fn sink(&self) -> OutputSink {
        if self.loud { OutputSink::into_log(Arc::clone(&self.log)) } else { OutputSink::discard() }
    }
}

/// A run that goes on now.
#[derive(Clone)]
pub(super) struct Live {
    pub(super) tenant: Tenant,
    pub(super) cancel: CancellationToken,
    pub(super) log: Arc<EventLog>,
    pub(super) loud: bool,
    pub(super) kind: RunKind,
}

/// All runs that go on now.
#[derive(Default)]
pub(super) struct LiveRuns {
    runs: Mutex<HashMap<RunId, Live>>,
    /// Runs whose code may have been handed over and whose end is not written down anywhere: longer
    /// than they go on when it was lost, or something of ours panicked.
    begun: Mutex<HashSet<RunId>>,
}

/// Keeps a run in the register until dropped.
pub(super) struct Registered {
    runs: Arc<LiveRuns>,
    id: RunId,
    log: Arc<EventLog>,
}

impl LiveRuns {
    pub(super) fn register(self: &Arc<Self>, ticket: &Ticket, kind: RunKind) -> Registered {
        let live = Live {
            tenant: ticket.tenant.clone(),
            cancel: ticket.cancel.clone(),
            log: Arc::clone(&ticket.log),
            loud: ticket.loud,
            kind,
        };
        self.lock().insert(ticket.run_id, live);
        Registered { runs: Arc::clone(self), id: ticket.run_id, log: Arc::clone(&ticket.log) }
    }

    pub(super) fn get(&self, tenant: &Tenant, id: RunId) -> Option<Live> {
        self.lock().get(&id).filter(|live| live.tenant == *tenant).cloned()
    }

    pub(super) fn has(&self, id: RunId) -> bool {
        self.lock().contains_key(&id)
    }

    /// How many of a kind go on.
    pub(super) fn count(&self, kind: RunKind) -> usize {
        self.lock().values().filter(|live| live.kind == kind).count()
    }

    /// From now on its code may be handed over.
    pub(super) fn note_begun(&self, id: RunId) {
        self.begun().insert(id);
    }

    /// Its end is written down, or waits to be.
    pub(super) fn note_ended(&self, id: RunId) {
        self.begun().remove(&id);
    }

    /// Whether its code may have been handed over, and its end is nowhere.
    pub(super) fn has_begun(&self, id: RunId) -> bool {
        self.begun().contains(&id)
    }

    fn begun(&self) -> MutexGuard<'_, HashSet<RunId>> {
        self.begun.lock().expect("no panic while the set is held")
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RunId, Live>> {
        self.runs.lock().expect("no panic while the register is held")
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.runs.lock().remove(&self.id);
        self.log.close();
    }
}
