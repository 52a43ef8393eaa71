//! Sole use of a session's sandbox, first come first served.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::OwnedMutexGuard;

use super::SessionError;
use super::slot::Slot;
use crate::domain::id::Tenant;
use crate::domain::session::Session;
use crate::sandbox::Sandbox;

/// Holds a session's sandbox until dropped.
pub struct Lease {
    slot: Arc<Slot>,
    sandbox: Arc<dyn Sandbox>,
    _turn: OwnedMutexGuard<()>,
}

/// One caller in the line.
struct Waiting<'a>(&'a Slot);

impl Lease {
    /// Stands in line. Refused at once when the line is full.
    pub(super) async fn wait(slot: Arc<Slot>) -> Result<Self, SessionError> {
        let turn = match Arc::clone(&slot.turn).try_lock_owned() {
            Ok(turn) => turn,
            Err(_) => {
                let _waiting = Waiting::enter(&slot)?;
                Arc::clone(&slot.turn).lock_owned().await
            }
        };
        slot.settled().await; // the first in line waits for the sandbox
        if slot.is_over() {
            return Err(slot.gone()); // it ended while we stood in line
        }
        let sandbox = slot.sandbox()?;
        slot.set_busy(true);
        Ok(Self { slot, sandbox, _turn: turn })
    }

    /// The sandbox.
    #[must_use]
    pub fn sandbox(&self) -> &dyn Sandbox {
        self.sandbox.as_ref()
    }

    /// The session, where its sandbox has become another one.
    pub(super) fn moved(&self) -> Option<Session> {
        self.slot.moved(self.sandbox())
    }

    pub(super) fn tenant(&self) -> &Tenant {
        &self.slot.tenant
    }

    /// The session as it is now.
    #[must_use]
    pub fn session(&self) -> Session {
        self.slot.snapshot()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.slot.set_busy(false);
    }
}

impl<'a> Waiting<'a> {
    fn enter(slot: &'a Slot) -> Result<Self, SessionError> {
        if slot.waiting.fetch_add(1, Ordering::SeqCst) >= slot.max_waiting {
            slot.waiting.fetch_sub(1, Ordering::SeqCst);
            return Err(SessionError::Busy(slot.max_waiting));
        }
        Ok(Self(slot))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}
