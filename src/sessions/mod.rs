//! The registry of sessions: create, find, lease, end.

mod error;
mod files;
pub mod lease;
mod making;
mod now;
pub mod reaper;
mod recovery;
mod slot;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

pub use error::SessionError;
use lease::Lease;
pub use making::Starting;
pub use recovery::RecoveredSessions;
use slot::{Ended, Slot};

use crate::config::LimitSettings;
use crate::domain::claim::Claim;
use crate::domain::coded::chain;
use crate::domain::id::{SessionId, Tenant};
use crate::domain::limits::LimitsRequest;
use crate::domain::list::Page;
use crate::domain::package::PackageSet;
use crate::domain::provider::{Capabilities, Isolation, ProviderInfo};
use crate::domain::session::{EndReason, Session};
use crate::sandbox::connect::Providers;
use crate::sandbox::{ProviderReport, Sandbox, SandboxError, SandboxProvider};
use crate::store::Store;

/// What a caller asks a session to be; what is None is taken from the settings.
#[derive(Clone, Default)]
pub struct NewSession {
    /// Its id, where that was told before.
    pub id: Option<SessionId>,
    /// The provider entry.
    pub provider: Option<String>,
    /// Packages that must be there.
    pub packages: PackageSet,
    /// Environment of all its cells; never stored.
    pub env: BTreeMap<String, String>,
    /// Lower limits.
    pub limits: LimitsRequest,
    /// How long it lives.
    pub lifetime: Option<Duration>,
    /// How long it may lie unused.
    pub idle: Option<Duration>,
    /// What the caller notes.
    pub metadata: BTreeMap<String, String>,
    /// It is made for one piece of work, and ends with it.
    pub one_shot: bool,
    /// The key that it was asked for with.
    pub claim: Option<Claim>,
}

/// What a caller changes of a session; what is None stays.
#[derive(Clone, Default)]
pub struct SessionChange {
    /// How long it lives from now on.
    pub lifetime: Option<Duration>,
    /// How long it may lie unused.
    pub idle: Option<Duration>,
    /// What the caller notes, in place of what was noted.
    pub metadata: Option<BTreeMap<String, String>>,
}

/// All sessions of this process.
pub struct Sessions {
    live: Mutex<HashMap<SessionId, Arc<Slot>>>,
    providers: Vec<Entry>,
    default_provider: String,
    store: Arc<dyn Store>,
    limits: LimitSettings,
    /// Rung when a deadline has come nearer.
    deadlines: Notify,
}

struct Entry {
    name: String,
    provider: Arc<dyn SandboxProvider>,
    /// What the last check found, or why it failed.
    report: Mutex<Result<ProviderReport, String>>,
}

impl Sessions {
    /// A registry that knows no session yet.
    #[must_use]
    pub fn new(
        providers: Providers,
        default_provider: String,
        store: Arc<dyn Store>,
        limits: LimitSettings,
    ) -> Self {
        let entry = |(name, provider)| Entry {
            name,
            provider,
            report: Mutex::new(Err("it has not been tried yet".to_owned())),
        };
        Self {
            live: Mutex::new(HashMap::new()),
            providers: providers.into_iter().map(entry).collect(),
            default_provider,
            store,
            limits,
            deadlines: Notify::new(),
        }
    }

    /// Tries every provider. An error is the default one's: the service cannot start with it.
    pub async fn check(&self) -> Result<(), SandboxError> {
        let mut default = Err(SandboxError::UnknownProvider(self.default_provider.clone()));
        for entry in &self.providers {
            let found = entry.provider.check().await;
            let report = match &found {
                Ok(report) => Ok(report.clone()),
                Err(error) => Err(chain(error)),
            };
            *entry.report.lock().expect("no panic while the report is held") = report;
            if entry.name == self.default_provider {
                default = found.map(drop);
            }
        }
        default
    }

    /// Lets every provider begin what it does by itself.
    pub fn start(&self) {
        for entry in &self.providers {
            entry.provider.start();
        }
    }

    /// Whether the default provider can make sandboxes, as its last check found.
    pub fn ready(&self) -> Result<(), SandboxError> {
        let entry = self.entry(None)?;
        let report = entry.report.lock().expect("no panic while the report is held");
        match report.as_ref() {
            Ok(_) => Ok(()),
            Err(reason) => Err(SandboxError::NotReady(reason.clone().into())),
        }
    }

    /// The configured providers.
    #[must_use]
    pub fn providers(&self) -> Vec<ProviderInfo> {
        self.providers.iter().map(|entry| entry.info(&self.default_provider)).collect()
    }

    fn admit(&self, slot: &Arc<Slot>) -> Result<(), SessionError> {
        let mut live = self.live();
        if live.len() >= self.limits.max_sessions as usize {
            return Err(SessionError::TooMany(self.limits.max_sessions));
        }
        live.insert(slot.id, Arc::clone(slot));
        Ok(())
    }

    fn forget(&self, id: SessionId) {
        self.live().remove(&id);
    }

    /// A session as it is now, ended ones included.
    pub async fn get(&self, tenant: &Tenant, id: SessionId) -> Result<Session, SessionError> {
        if let Ok(slot) = self.slot(tenant, id) {
            self.end_if_lost(&slot).await?;
            return Ok(slot.snapshot());
        }
        self.store.session(tenant, id).await?.ok_or(SessionError::NotFound(id))
    }

    /// Changes a living session.
    pub async fn change(
        &self,
        tenant: &Tenant,
        id: SessionId,
        change: &SessionChange,
    ) -> Result<Session, SessionError> {
        let slot = self.living(tenant, id).await?;
        if let Some(lifetime) = change.lifetime {
            slot.sandbox()?.extend(lifetime).await?;
        }
        let session = slot.change(change).ok_or_else(|| slot.gone())?;
        self.deadlines.notify_one();
        self.store.update_session(tenant, &session).await?;
        Ok(session)
    }

    /// Stops the running cell, its state kept where the provider can. Does nothing when none runs.
    pub async fn interrupt(&self, tenant: &Tenant, id: SessionId) -> Result<(), SessionError> {
        let slot = self.living(tenant, id).await?;
        if let Ok(sandbox) = slot.sandbox() {
            sandbox.interrupt().await;
        }
        Ok(())
    }

    /// Sessions, a page at a time, ended ones included.
    pub async fn list(&self, tenant: &Tenant, page: Page) -> Result<Vec<Session>, SessionError> {
        let mut sessions = self.store.sessions(tenant, page).await?;
        for session in &mut sessions {
            if let Ok(slot) = self.slot(tenant, session.id) {
                *session = slot.snapshot();
            }
        }
        Ok(sessions)
    }

    /// The sandbox of a living session, for its files: a cell may be running in it. Waits while the
    /// session is starting.
    pub async fn sandbox(
        &self,
        tenant: &Tenant,
        id: SessionId,
    ) -> Result<Arc<dyn Sandbox>, SessionError> {
        let slot = self.living(tenant, id).await?;
        slot.settled().await;
        slot.touch();
        slot.sandbox().map_err(|error| if slot.is_over() { slot.gone() } else { error })
    }

    /// Waits for its turn, then holds the session's sandbox until dropped.
    pub async fn lease(&self, tenant: &Tenant, id: SessionId) -> Result<Lease, SessionError> {
        let slot = self.living(tenant, id).await?;
        Lease::wait(slot).await
    }

    /// Ends a session, busy or not. True when it was not over before.
    pub async fn end(
        &self,
        tenant: &Tenant,
        id: SessionId,
        reason: EndReason,
    ) -> Result<bool, SessionError> {
        let Ok(slot) = self.slot(tenant, id) else {
            return match self.store.session(tenant, id).await? {
                Some(session) if session.ended_at.is_none() => Err(SessionError::Elsewhere(id)),
                Some(_) => Ok(false),
                None => Err(SessionError::NotFound(id)),
            };
        };
        // another replica may have its sandbox by now
        if slot.sandbox().is_ok()
            && self.outlives(&slot)
            && let Err(error) = self.store.may_serve()
        {
            slot.doom(reason);
            return Err(error.into());
        }
        match slot.end(reason) {
            Ended::Before => return Ok(false),
            Ended::Empty => {}
            Ended::With(sandbox) => {
                let limit = self.limits.teardown_seconds;
                if tokio::time::timeout(limit, sandbox.terminate()).await.is_err() {
                    tracing::error!(session.id = %id, "a sandbox did not end in time");
                }
            }
        }
        self.write_end(&slot).await?;
        Ok(true)
    }

    /// Whether its sandbox can live on without this process.
    fn outlives(&self, slot: &Slot) -> bool {
        let entry = self.entry(Some(&slot.snapshot().provider));
        entry.is_ok_and(|entry| entry.provider.outlives())
    }

    /// Forgets an ended session once its end is written; until then it is known by its slot.
    async fn write_end(&self, slot: &Slot) -> Result<(), SessionError> {
        slot.unwritten.store(true, Ordering::SeqCst);
        self.store.update_session(&slot.tenant, &slot.snapshot()).await?;
        self.forget(slot.id);
        Ok(())
    }

    /// Sessions whose end the store could not take.
    fn unwritten(&self) -> Vec<Arc<Slot>> {
        let live = self.live();
        let unwritten = live.values().filter(|slot| slot.unwritten.load(Ordering::SeqCst));
        unwritten.cloned().collect()
    }

    /// Ends every session whose sandbox ends with this process, and then what the providers keep
    /// running. The others are taken up by the next start.
    pub async fn close(&self) {
        let outlives =
            |slot: &Arc<Slot>| slot.snapshot().sandbox_id.is_some() && self.outlives(slot);
        let slots: Vec<_> = self.live().values().map(Arc::clone).collect();
        let slots: Vec<_> = slots.into_iter().filter(|slot| !outlives(slot)).collect();
        let end = |slot: Arc<Slot>| async move {
            let ended = self.end(&slot.tenant, slot.id, EndReason::Lost).await;
            if let Err(error) = ended {
                tracing::error!(session.id = %slot.id, error = chain(&error), "a session's end was not written");
            }
        };
        futures::future::join_all(slots.into_iter().map(end)).await;
        for entry in &self.providers {
            entry.provider.close().await;
        }
    }

    /// How many sessions live.
    #[must_use]
    pub fn count(&self) -> usize {
        self.live().len()
    }

    /// The name of a provider entry, or of the default one.
    pub fn provider_name(&self, name: Option<&str>) -> Result<&str, SandboxError> {
        Ok(&self.entry(name)?.name)
    }

    fn entry(&self, name: Option<&str>) -> Result<&Entry, SandboxError> {
        let name = name.unwrap_or(&self.default_provider);
        let found = self.providers.iter().find(|entry| entry.name == name);
        found.ok_or_else(|| SandboxError::UnknownProvider(name.to_owned()))
    }

    fn live(&self) -> std::sync::MutexGuard<'_, HashMap<SessionId, Arc<Slot>>> {
        self.live.lock().expect("no panic while the registry is held")
    }

    /// Another tenant's session is not there.
    fn slot(&self, tenant: &Tenant, id: SessionId) -> Result<Arc<Slot>, SessionError> {
        let found = self.live().get(&id).filter(|slot| slot.tenant == *tenant).cloned();
        found.ok_or(SessionError::NotFound(id))
    }

    async fn living(&self, tenant: &Tenant, id: SessionId) -> Result<Arc<Slot>, SessionError> {
        match self.slot(tenant, id) {
            Ok(slot) => {
                self.end_if_lost(&slot).await?;
                if slot.is_over() { Err(slot.gone()) } else { Ok(slot) }
            }
            Err(_) => match self.store.session(tenant, id).await? {
                Some(session) if session.ended_at.is_none() => Err(SessionError::Elsewhere(id)),
                Some(session) => Err(SessionError::gone(&session)),
                None => Err(SessionError::NotFound(id)),
            },
        }
    }

    /// A session is over when its sandbox is known to be gone.
    async fn end_if_lost(&self, slot: &Slot) -> Result<(), SessionError> {
        if slot.sandbox().is_ok_and(|sandbox| sandbox.is_lost()) {
            self.end(&slot.tenant, slot.id, EndReason::Lost).await?;
        }
        Ok(())
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.live().values().filter_map(|slot| slot.deadline()).min()
    }

    fn overdue(&self, now: Instant) -> Vec<(Arc<Slot>, EndReason)> {
        let live = self.live();
        let due = live.values().filter_map(|slot| Some((Arc::clone(slot), slot.overdue(now)?)));
        due.collect()
    }
}

impl Entry {
    fn info(&self, default: &str) -> ProviderInfo {
        let report = self.report.lock().expect("no panic while the report is held").clone();
        let (report, reason) = match report {
            Ok(report) => (Some(report), None),
            Err(reason) => (None, Some(reason)),
        };
        let report = report.map(|report| self.provider.seen().unwrap_or(report));
        let isolation = report.as_ref().and_then(|report| report.isolation.clone());
        ProviderInfo {
            name: self.name.clone(),
            kind: self.provider.kind().to_owned(),
            default: self.name == default,
            ready: report.is_some(),
            reason,
            capabilities: self.capabilities(),
            isolation,
            python: report.as_ref().and_then(|report| report.python.clone()),
            packages: report.map(|report| report.packages).unwrap_or_default(),
            pool: self.provider.pool(),
        }
    }

    fn capabilities(&self) -> Capabilities {
        self.provider.capabilities()
    }

    fn isolation(&self) -> Option<Isolation> {
        let report = self.report.lock().expect("no panic while the report is held");
        report.as_ref().ok().and_then(|report| report.isolation.clone())
    }
}
