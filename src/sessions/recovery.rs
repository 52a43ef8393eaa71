//! Sessions of an earlier start: found again where the provider can, ended else.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use time::OffsetDateTime;

use super::slot::Slot;
use super::{SessionError, Sessions};
use crate::domain::id::Tenant;
use crate::domain::session::{EndReason, Session, SessionState};
use crate::sandbox::{Sandbox, SandboxRecord};

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
    /// Takes up sessions that an earlier start of this replica left open, ends those whose sandbox is
    /// gone, and reaps sandboxes that no row speaks of. Before any call is answered.
    pub async fn recover(&self) -> Result<RecoveredSessions, SessionError> {
        let mut recovered = RecoveredSessions::default();
        for (tenant, session) in self.store.open_sessions().await? {
            match self.find_again(&session).await {
                Some(sandbox) => {
                    self.take_up(tenant, session, &sandbox).await?;
                    recovered.kept += 1;
                }
                None => {
                    self.lose(&tenant, session).await?;
                    recovered.lost += 1;
                }
            }
        }
        recovered.reaped = self.reap_strangers().await;
        Ok(recovered)
    }

    async fn find_again(&self, session: &Session) -> Option<Arc<dyn Sandbox>> {
        let sandbox_id = session.sandbox_id.clone()?;
        let entry = self.entry(Some(&session.provider)).ok()?;
        if session.expires_at <= OffsetDateTime::now_utc() {
            return None;
        }
        let found = entry.provider.attach(&SandboxRecord { sandbox_id }).await;
        found.inspect_err(|error| {
            tracing::warn!(session.id = %session.id, error = error as &dyn std::error::Error, "a sandbox was not found again");
        }).ok()?
    }

    async fn take_up(
        &self,
        tenant: Tenant,
        mut session: Session,
        sandbox: &Arc<dyn Sandbox>,
    ) -> Result<(), SessionError> {
        session.state = SessionState::Starting;
        let left = session.expires_at - OffsetDateTime::now_utc();
        let lifetime = Duration::try_from(left).unwrap_or_default();
        let idle = self.limits.idle_seconds;
        let id = session.id;
        let slot = Arc::new(Slot::new(tenant, session, lifetime, idle, self.limits.session_queue));
        slot.furnish(sandbox);
        self.store.adopt_session(&slot.tenant, &slot.snapshot()).await?;
        self.live().insert(id, slot);
        Ok(())
    }

    async fn lose(&self, tenant: &Tenant, mut session: Session) -> Result<(), SessionError> {
        session.state = SessionState::Ended;
        session.end_reason = Some(EndReason::Lost);
        session.ended_at = Some(OffsetDateTime::now_utc());
        Ok(self.store.update_session(tenant, &session).await?)
    }

    /// A provider lists what this deployment has made: what is in no live session is ended.
    async fn reap_strangers(&self) -> usize {
        let known: HashSet<String> =
            self.live().values().filter_map(|slot| slot.snapshot().sandbox_id).collect();
        let mut reaped = 0;
        for entry in &self.providers {
            let listed = entry.provider.list().await.unwrap_or_default();
            for record in listed.into_iter().filter(|record| !known.contains(&record.sandbox_id)) {
                if let Ok(Some(sandbox)) = entry.provider.attach(&record).await {
                    sandbox.terminate().await;
                    reaped += 1;
                }
            }
        }
        reaped
    }
}
