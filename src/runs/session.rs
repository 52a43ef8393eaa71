//! Sessions: made, changed, ended, each in a task that goes on.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tracing::{Instrument, info_span};

use super::keyed::session_fingerprint;
use super::live::Ticket;
use super::{Desk, RunError, Runs, check_env, check_metadata, in_range};
use crate::domain::claim::Key;
use crate::domain::coded::chain;
use crate::domain::id::{SessionId, Tenant};
use crate::domain::session::{EndReason, Session};
use crate::sessions::{NewSession, SessionChange, SessionError, Starting};
use crate::telemetry::SPAN_TARGET;

impl Runs {
    /// Makes a session. One that installs packages is given at once, still starting.
    pub async fn create_session(
        &self,
        tenant: &Tenant,
        new: NewSession,
    ) -> Result<Session, RunError> {
        self.desk.check_session(&new)?;
        let (runs, tenant) = (self.clone(), tenant.clone());
        self.tracked(|_| async move { Ok(runs.make_session(&tenant, new).await?) }).await
    }

    /// Makes a session once for its key.
    pub async fn create_session_once(
        &self,
        tenant: &Tenant,
        new: NewSession,
        key: Key,
    ) -> Result<Session, RunError> {
        self.desk.check_session(&new)?;
        let claim = self.desk.claim(key, &session_fingerprint(&new));
        if let Some(session) = self.desk.claimed_session(tenant, &claim).await? {
            return Ok(session);
        }
        let (runs, owner, kept) = (self.clone(), tenant.clone(), claim.clone());
        let new = NewSession { claim: Some(kept), ..new };
        self.admit()?;
        let made = async move { runs.make_session(&owner, new).await };
        let made = self.tracker.spawn(made.in_current_span());
        match made.await.map_err(RunError::Panicked)?.map_err(RunError::from) {
            Err(error) if error.is_claimed() => {
                self.desk.claimed_session(tenant, &claim).await?.ok_or(RunError::KeyInProgress)
            }
            other => other,
        }
    }

    async fn make_session(
        &self,
        tenant: &Tenant,
        new: NewSession,
    ) -> Result<Session, SessionError> {
        let starting = self.desk.sessions.begin(tenant, new).await?;
        if !starting.installs {
            return self.desk.sessions.furnish(starting).await;
        }
        let session = starting.session();
        let (desk, stop) = (Arc::clone(&self.desk), self.interrupting.clone());
        let (tenant, id) = (tenant.clone(), session.id);
        // it goes on when the request has its answer, so it has a span of its own
        let span = info_span!(target: SPAN_TARGET, "prepare", session.id = %id);
        let preparing = async move {
            let made = desk.furnish_until(&tenant, starting, &stop, EndReason::Lost).await;
            if let Err(error) = made {
                let cause = chain(&error);
                tracing::warn!(session.id = %id, error = cause, "a session was not made after it was answered");
            }
        };
        self.tracker.spawn(preparing.instrument(span));
        Ok(session)
    }

    /// Changes a session: a lifetime counts from now.
    pub async fn change_session(
        &self,
        tenant: &Tenant,
        id: SessionId,
        change: SessionChange,
    ) -> Result<Session, RunError> {
        let longest = self.desk.limits.lifetime_seconds_max;
        in_range("/lifetime_seconds", change.lifetime, longest)?;
        in_range("/idle_seconds", change.idle, longest)?;
        check_metadata(change.metadata.as_ref().unwrap_or(&BTreeMap::new()))?;
        let (desk, tenant) = (Arc::clone(&self.desk), tenant.clone());
        self.tracked(|_| async move { Ok(desk.sessions.change(&tenant, id, &change).await?) }).await
    }

    /// Ends a session. What has begun to end it is brought to its end.
    pub async fn end_session(&self, tenant: &Tenant, id: SessionId) -> Result<(), RunError> {
        let (desk, tenant) = (Arc::clone(&self.desk), tenant.clone());
        self.tracked(|_| async move {
            desk.sessions.end(&tenant, id, EndReason::Deleted).await?;
            Ok(())
        })
        .await
    }
}

impl Desk {
    /// Makes a session for one piece of work, which may be cancelled meanwhile.
    pub(super) async fn make_own(
        &self,
        ticket: &Ticket,
        new: NewSession,
    ) -> Result<SessionId, RunError> {
        let starting = self.sessions.begin(&ticket.tenant, new).await?;
        let reason = EndReason::Deleted;
        let session = self.furnish_until(&ticket.tenant, starting, &ticket.cancel, reason).await?;
        Ok(session.id)
    }

    /// Makes the sandbox of a session that was begun. Told to stop, it ends the session for the reason
    /// given; a sandbox that is being made comes to be, and is ended then.
    async fn furnish_until(
        &self,
        tenant: &Tenant,
        starting: Starting,
        stop: &CancellationToken,
        reason: EndReason,
    ) -> Result<Session, RunError> {
        let (sessions, id) = (Arc::clone(&self.sessions), starting.session().id);
        let making = async move { sessions.furnish(starting).await };
        let making = tokio::spawn(making.in_current_span());
        tokio::select! {
            made = making => Ok(made.map_err(RunError::Panicked)??),
            () = stop.cancelled() => {
                self.sessions.end(tenant, id, reason).await?;
                Err(RunError::CallerGone)
            }
        }
    }

    pub(super) fn check_session(&self, new: &NewSession) -> Result<(), RunError> {
        check_env(&new.env)?;
        check_metadata(&new.metadata)?;
        in_range("/lifetime_seconds", new.lifetime, self.limits.lifetime_seconds_max)?;
        in_range("/idle_seconds", new.idle, self.limits.lifetime_seconds_max)
    }
}
