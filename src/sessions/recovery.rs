//! Sessions of an earlier start: found again where the provider can, ended else.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use time::OffsetDateTime;

use super::slot::Slot;
use super::{SessionError, Sessions};
use crate::domain::coded::chain;
use crate::domain::id::{SessionId, Tenant};
use crate::domain::session::{EndReason, Session, SessionState};
use crate::sandbox::{Sandbox, SandboxError};
use crate::store::OpenSession;

/// Sandboxes elsewhere that are looked for at once.
const FOUND_AT_ONCE: usize = 8;

/// What became of what was open at start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RecoveredSessions {
    /// Sessions that live on.
    pub kept: usize,
    /// Sessions that are lost.
    pub lost: usize,
    /// Sandboxes that nobody owned.
    pub reaped: usize,
}

impl Sessions {
    /// Takes up what was left open, and reaps sandboxes that no row speaks of. Before any call is
    /// answered.
    pub async fn recover(&self) -> Result<RecoveredSessions, SessionError> {
        let taken_up = self.take_up_left().await?;
        Ok(RecoveredSessions { reaped: self.reap_strangers().await, ..taken_up })
    }

    /// Takes up sessions that an earlier start of this replica left open, or another replica that is
    /// gone, and ends those whose sandbox is gone.
    pub async fn take_up_left(&self) -> Result<RecoveredSessions, SessionError> {
        let mut recovered = RecoveredSessions::default();
        let (known, open): (Vec<_>, Vec<_>) = self
            .store
            .left_sessions()
            .await?
            .into_iter()
            .partition(|open| self.live().contains_key(&open.session.id));
        for OpenSession { tenant, session, .. } in known {
            // it was taken up, and that was not written
            if let Ok(slot) = self.slot(&tenant, session.id)
                && let Err(error) = self.write_taken_up(&slot).await
            {
                let (id, cause) = (session.id, chain(&error));
                tracing::warn!(session.id = %id, error = cause, "a session that was taken up is not written yet");
            }
        }
        let open = open.into_iter();
        let finding = open.map(|open| async {
            let found = self.find_again(&open).await;
            (open, found)
        });
        let mut found = stream::iter(finding).buffer_unordered(FOUND_AT_ONCE);
        while let Some((open, sandbox)) = found.next().await {
            match sandbox {
                // the work that it was made for is over
                Some(sandbox) if open.session.one_shot => {
                    sandbox.terminate().await;
                    self.lose(&open.tenant, open.session).await?;
                    recovered.lost += 1;
                }
                Some(sandbox) => {
                    self.take_up(open, &sandbox).await?;
                    recovered.kept += 1;
                }
                None => {
                    self.lose(&open.tenant, open.session).await?;
                    recovered.lost += 1;
                }
            }
        }
        Ok(recovered)
    }

    /// Of sessions whose rows are open, those that are not here: their begin was written though the
    /// store did not say so.
    #[must_use]
    pub fn strays(&self, open: Vec<(Tenant, SessionId)>) -> Vec<(Tenant, SessionId)> {
        let live = self.live();
        open.into_iter().filter(|(_, id)| !live.contains_key(id)).collect()
    }

    /// Ends a stray: it never had a sandbox, and its key is free.
    pub async fn end_stray(&self, tenant: &Tenant, id: SessionId) -> Result<(), SessionError> {
        let Some(mut session) = self.store.session(tenant, id).await? else { return Ok(()) };
        session.state = SessionState::Failed;
        session.end_reason = Some(EndReason::Failed);
        session.ended_at = Some(OffsetDateTime::now_utc());
        Ok(self.store.update_session(tenant, &session).await?)
    }

    async fn find_again(&self, open: &OpenSession) -> Option<Arc<dyn Sandbox>> {
        let session = &open.session;
        let record = open.sandbox.as_ref()?;
        let entry = self.entry(Some(&session.provider)).ok()?;
        if session.expires_at <= OffsetDateTime::now_utc() {
            return None;
        }
        let found = entry.provider.attach(record).await;
        found.inspect_err(|error| {
            tracing::warn!(session.id = %session.id, error = chain(error), "a sandbox was not found again");
        }).ok()?
    }

    async fn take_up(
        &self,
        open: OpenSession,
        sandbox: &Arc<dyn Sandbox>,
    ) -> Result<(), SessionError> {
        let OpenSession { tenant, mut session, .. } = open;
        session.state = SessionState::Starting;
        let left = session.expires_at - OffsetDateTime::now_utc();
        let lifetime = Duration::try_from(left).unwrap_or_default();
        let idle = self.limits.idle_seconds;
        let id = session.id;
        let slot = Arc::new(Slot::new(tenant, session, lifetime, idle, self.limits.session_queue));
        slot.furnish(sandbox);
        // before it is written: what is here is no stray
        self.live().insert(id, Arc::clone(&slot));
        self.write_taken_up(&slot).await
    }

    async fn write_taken_up(&self, slot: &Slot) -> Result<(), SessionError> {
        let record = slot.sandbox()?.record();
        Ok(self.store.furnish_session(&slot.tenant, &slot.snapshot(), &record).await?)
    }

    async fn lose(&self, tenant: &Tenant, mut session: Session) -> Result<(), SessionError> {
        session.state = SessionState::Ended;
        session.end_reason = Some(EndReason::Lost);
        session.ended_at = Some(OffsetDateTime::now_utc());
        Ok(self.store.update_session(tenant, &session).await?)
    }

    /// A provider lists what this deployment has made: what is in no live session is ended.
    async fn reap_strangers(&self) -> usize {
        // another replica may go on with what this one has made
        let of_rows = match self.store.sandboxes().await {
            Ok(of_rows) => of_rows,
            Err(error) => {
                tracing::warn!(error = chain(&error), "it is not known which sandboxes are in use");
                return 0;
            }
        };
        let mut known: HashSet<String> =
            self.live().values().filter_map(|slot| slot.snapshot().sandbox_id).collect();
        known.extend(of_rows.into_iter().map(|record| record.sandbox_id));
        let mut reaped = 0;
        for entry in &self.providers {
            let listed = entry.provider.list().await;
            let listed = listed.inspect_err(|error| tell(&entry.name, error)).unwrap_or_default();
            for record in listed.into_iter().filter(|record| !known.contains(&record.sandbox_id)) {
                match entry.provider.end(&record).await {
                    Ok(()) => reaped += 1,
                    Err(error) => tell(&entry.name, &error),
                }
            }
        }
        reaped
    }
}

fn tell(provider: &str, error: &SandboxError) {
    let cause = chain(error);
    tracing::warn!(provider, error = cause, "sandboxes that nobody owns could not be ended");
}
