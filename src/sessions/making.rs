//! How a session is made: written down first, then furnished.

use std::sync::Arc;
use std::time::Duration;

use time::OffsetDateTime;

use super::lease::Lease;
use super::slot::Slot;
use super::{NewSession, SessionError, Sessions};
use crate::domain::coded::chain;
use crate::domain::crash;
use crate::domain::id::{SessionId, Tenant};
use crate::domain::session::{EndReason, Session, SessionState};
use crate::sandbox::{PackagesError, SandboxError, SandboxProvider, SandboxSpec};

/// A session that is written down and has no sandbox yet.
pub struct Starting {
    slot: Arc<Slot>,
    provider: Arc<dyn SandboxProvider>,
    spec: SandboxSpec,
    /// Packages are installed first, which takes its time.
    pub installs: bool,
}

impl Starting {
    /// The session as it is now.
    #[must_use]
    pub fn session(&self) -> Session {
        self.slot.snapshot()
    }
}

impl Sessions {
    /// Makes a session and waits until it is ready for its first cell.
    pub async fn create(&self, tenant: &Tenant, new: NewSession) -> Result<Session, SessionError> {
        let starting = self.begin(tenant, new).await?;
        self.furnish(starting).await
    }

    /// Writes a session down, whose sandbox must then be made.
    pub async fn begin(&self, tenant: &Tenant, new: NewSession) -> Result<Starting, SessionError> {
        let entry = self.entry(new.provider.as_deref())?;
        let limits = entry.provider.limits(&new.limits)?;
        let lifetime = self.lifetime(new.lifetime, entry.provider.longest())?;
        let idle = new.idle.unwrap_or(self.limits.idle_seconds);
        let now = OffsetDateTime::now_utc();
        let session = Session {
            id: new.id.unwrap_or_else(SessionId::new),
            provider: entry.name.clone(),
            sandbox_id: None,
            state: SessionState::Starting,
            isolation: entry.isolation(),
            capabilities: entry.provider.capabilities(),
            limits,
            files_dir: None,
            packages: new.packages.texts(),
            created_at: now,
            last_used_at: now,
            expires_at: now + lifetime,
            ended_at: None,
            end_reason: None,
            progress: None,
            failure: None,
            one_shot: new.one_shot,
            metadata: new.metadata,
        };
        let id = session.id;
        let slot =
            Arc::new(Slot::new(tenant.clone(), session, lifetime, idle, self.limits.session_queue));
        let spec = SandboxSpec {
            session_id: id,
            limits,
            env: new.env,
            packages: new.packages,
            lifetime,
            primed: false,
        };
        self.admit(&slot)?;
        let asked = entry.provider.installs(&spec.packages);
        let installs = tokio::time::timeout(self.limits.create_seconds, asked).await;
        let installs = installs.unwrap_or(false); // one that is so slow now fails to be made
        // the row stands before the sandbox does: whatever happens between, the session is known
        if let Err(error) =
            self.store.insert_session(tenant, &slot.snapshot(), new.claim.as_ref()).await
        {
            self.forget(id);
            return Err(error.into());
        }
        crash::point("session.inserted");
        self.deadlines.notify_one();
        Ok(Starting { slot, provider: Arc::clone(&entry.provider), spec, installs })
    }

    /// Makes the sandbox of a session that was written down.
    pub async fn furnish(&self, starting: Starting) -> Result<Session, SessionError> {
        let Starting { slot, provider, spec, installs } = starting;
        let installed =
            if installs { self.install(&slot, &*provider, &spec).await } else { Ok(()) };
        if slot.is_over() {
            return Err(slot.gone());
        }
        let made = match installed {
            Ok(()) => {
                // some providers install into the sandbox itself
                let installing =
                    if installs { self.limits.install_seconds } else { Duration::ZERO };
                let limit = self.limits.create_seconds + installing;
                let made = tokio::time::timeout(limit, provider.create(&spec)).await;
                made.unwrap_or(Err(SandboxError::TooSlow))
            }
            Err(error) => Err(error),
        };
        let made = match made {
            Ok(sandbox) => {
                crash::point("session.made");
                if !slot.furnish(&sandbox) {
                    sandbox.terminate().await; // deleted while it was being made
                    return Err(slot.gone());
                }
                let session = slot.snapshot();
                let record = sandbox.record();
                match self.store.furnish_session(&slot.tenant, &session, &record).await {
                    Ok(()) => Ok(session),
                    // its caller is told to try again: nobody will use this one
                    Err(error) => {
                        let ended = self.end(&slot.tenant, slot.id, EndReason::Failed).await;
                        tell_unwritten(slot.id, ended);
                        Err(error.into())
                    }
                }
            }
            Err(error) => {
                if installs {
                    // it was answered before: there is no other place to say why
                    slot.note_failure(&error);
                }
                let ended = self.end(&slot.tenant, slot.id, EndReason::Failed).await;
                tell_unwritten(slot.id, ended);
                Err(error.into())
            }
        };
        self.deadlines.notify_one();
        made
    }

    /// How long a session lives. What is asked for is never shortened in silence, the default is.
    fn lifetime(
        &self,
        asked: Option<Duration>,
        longest: Option<Duration>,
    ) -> Result<Duration, SandboxError> {
        let longest = longest.unwrap_or(Duration::MAX);
        match asked {
            Some(asked) if asked > longest => Err(SandboxError::LimitOutOfRange {
                limit: "/lifetime_seconds",
                least: 1,
                most: longest.as_secs(),
            }),
            Some(asked) => Ok(asked),
            None => Ok(self.limits.lifetime_seconds.min(longest)),
        }
    }

    /// Writes down the sandbox that a session has by now, where that is another one than before.
    pub async fn note_sandbox(&self, lease: &Lease) {
        let Some(session) = lease.moved() else { return };
        let record = lease.sandbox().record();
        if let Err(error) = self.store.furnish_session(lease.tenant(), &session, &record).await {
            let (id, cause) = (session.id, chain(&error));
            tracing::error!(session.id = %id, error = cause, "a session's sandbox was not written");
        }
    }

    /// Nobody waits for the packages of a session that is over.
    async fn install(
        &self,
        slot: &Slot,
        provider: &dyn SandboxProvider,
        spec: &SandboxSpec,
    ) -> Result<(), SandboxError> {
        let limit = self.limits.install_seconds + self.limits.create_seconds;
        tokio::select! {
            () = slot.settled() => Err(SandboxError::Lost),
            installed = tokio::time::timeout(limit, provider.install(&spec.packages, &slot.progress)) => {
                installed.unwrap_or(Err(PackagesError::TooSlow.into()))
            }
        }
    }
}

/// An end that the store did not take is tried again by the reaper.
fn tell_unwritten(id: SessionId, ended: Result<bool, SessionError>) {
    if let Err(error) = ended {
        tracing::warn!(session.id = %id, error = chain(&error), "a session's end waits for the store");
    }
}
