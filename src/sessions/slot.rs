//! What the registry keeps of one session.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{SessionChange, SessionError};
use crate::domain::coded::Coded;
use crate::domain::id::{SessionId, Tenant};
use crate::domain::session::{EndReason, Session, SessionFailure, SessionState};
use crate::sandbox::{Progress, Sandbox, SandboxError};

/// A session, its sandbox and the line of those who wait for it.
pub(super) struct Slot {
    pub(super) id: SessionId,
    pub(super) tenant: Tenant,
    /// First come, first served.
    pub(super) turn: Arc<tokio::sync::Mutex<()>>,
    pub(super) waiting: AtomicU32,
    pub(super) max_waiting: u32,
    /// True from its end on until the store knows of it.
    pub(super) unwritten: AtomicBool,
    /// Cancelled once it has a sandbox, or never will.
    settled: CancellationToken,
    /// What is being done until then.
    pub(super) progress: Progress,
    inside: Mutex<Inside>,
}

/// What there was to end.
pub(super) enum Ended {
    /// It was over before.
    Before,
    /// Its sandbox was still being made.
    Empty,
    /// Its sandbox, which must be ended too.
    With(Arc<dyn Sandbox>),
}

struct Inside {
    session: Session,
    sandbox: Option<Arc<dyn Sandbox>>,
    expires: Instant,
    idle: Duration,
    last_used: Instant,
    /// Why it is to end, where that was refused for now.
    doomed: Option<EndReason>,
}

impl Inside {
    /// No session outlives its sandbox.
    fn end_by(&mut self, ends_at: Option<OffsetDateTime>) {
        if let Some(ends_at) = ends_at.filter(|ends_at| *ends_at < self.session.expires_at) {
            self.session.expires_at = ends_at;
            let left = ends_at - OffsetDateTime::now_utc();
            self.expires = Instant::now() + Duration::try_from(left).unwrap_or_default();
        }
    }
}

impl Slot {
    pub(super) fn new(
        tenant: Tenant,
        session: Session,
        lifetime: Duration,
        idle: Duration,
        max_waiting: u32,
    ) -> Self {
        let now = Instant::now();
        Self {
            id: session.id,
            tenant,
            turn: Arc::default(),
            waiting: AtomicU32::new(0),
            max_waiting,
            unwritten: AtomicBool::new(false),
            settled: CancellationToken::new(),
            progress: Progress::default(),
            inside: Mutex::new(Inside {
                idle,
                session,
                sandbox: None,
                expires: now + lifetime,
                last_used: now,
                doomed: None,
            }),
        }
    }

    fn inside(&self) -> std::sync::MutexGuard<'_, Inside> {
        self.inside.lock().expect("no panic while a slot is held")
    }

    pub(super) fn snapshot(&self) -> Session {
        let mut session = self.inside().session.clone();
        if session.state == SessionState::Starting {
            session.progress = self.progress.now().map(str::to_owned);
        }
        session
    }

    /// Waits until it has a sandbox, or never will.
    pub(super) async fn settled(&self) {
        self.settled.cancelled().await;
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.inside().session.state, SessionState::Ended | SessionState::Failed)
    }

    pub(super) fn gone(&self) -> SessionError {
        SessionError::gone(&self.inside().session)
    }

    /// Sets what a caller changes; the lifetime counts from now. None when the session is over.
    pub(super) fn change(&self, change: &SessionChange) -> Option<Session> {
        let mut inside = self.inside();
        if matches!(inside.session.state, SessionState::Ended | SessionState::Failed) {
            return None;
        }
        if let Some(lifetime) = change.lifetime {
            inside.expires = Instant::now() + lifetime;
            inside.session.expires_at = OffsetDateTime::now_utc() + lifetime;
        }
        if let Some(idle) = change.idle {
            inside.idle = idle;
        }
        if let Some(metadata) = &change.metadata {
            inside.session.metadata.clone_from(metadata);
        }
        inside.last_used = Instant::now();
        Some(inside.session.clone())
    }

    /// Puts the sandbox in. False when the session has ended meanwhile.
    pub(super) fn furnish(&self, sandbox: &Arc<dyn Sandbox>) -> bool {
        let mut inside = self.inside();
        if inside.session.state != SessionState::Starting {
            return false;
        }
        inside.session.state = SessionState::Ready;
        inside.session.sandbox_id = Some(sandbox.record().sandbox_id);
        inside.session.files_dir = Some(sandbox.files_dir());
        inside.end_by(sandbox.ends_at());
        inside.sandbox = Some(Arc::clone(sandbox));
        inside.last_used = Instant::now();
        self.settled.cancel();
        true
    }

    /// The session, where its sandbox has become another one than it knows of.
    pub(super) fn moved(&self, sandbox: &dyn Sandbox) -> Option<Session> {
        let sandbox_id = Some(sandbox.record().sandbox_id);
        let mut inside = self.inside();
        if inside.session.sandbox_id == sandbox_id {
            return None;
        }
        inside.session.sandbox_id = sandbox_id;
        inside.session.files_dir = Some(sandbox.files_dir());
        Some(inside.session.clone())
    }

    pub(super) fn sandbox(&self) -> Result<Arc<dyn Sandbox>, SessionError> {
        self.inside().sandbox.clone().ok_or(SessionError::Starting)
    }

    pub(super) fn touch(&self) {
        let mut inside = self.inside();
        inside.last_used = Instant::now();
        inside.session.last_used_at = OffsetDateTime::now_utc();
    }

    /// A cell begins, or ends.
    pub(super) fn set_busy(&self, busy: bool) {
        self.touch();
        let mut inside = self.inside();
        inside.session.state = match (inside.session.state, busy) {
            (SessionState::Ready | SessionState::Busy, true) => SessionState::Busy,
            (SessionState::Ready | SessionState::Busy, false) => SessionState::Ready,
            (over @ (SessionState::Starting | SessionState::Ended | SessionState::Failed), _) => {
                over
            }
        };
    }

    /// Notes why its sandbox could not be made; its end comes next.
    pub(super) fn note_failure(&self, error: &SandboxError) {
        let mut inside = self.inside();
        if inside.session.state == SessionState::Starting {
            inside.session.failure = Some(SessionFailure {
                code: error.code().name.to_owned(),
                message: error.to_string(),
            });
        }
    }

    /// Ends it and gives its sandbox away.
    pub(super) fn end(&self, reason: EndReason) -> Ended {
        let mut inside = self.inside();
        inside.session.state = match inside.session.state {
            SessionState::Ended | SessionState::Failed => return Ended::Before,
            _ if reason == EndReason::Failed => SessionState::Failed,
            _ => SessionState::Ended,
        };
        inside.session.ended_at = Some(OffsetDateTime::now_utc());
        inside.session.end_reason = Some(reason);
        self.settled.cancel(); // who wakes now sees how it ended
        match inside.sandbox.take() {
            Some(sandbox) => Ended::With(sandbox),
            None => Ended::Empty,
        }
    }

    /// When it ends if nothing happens before; None when it is over.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let inside = self.inside();
        match inside.session.state {
            SessionState::Ended | SessionState::Failed => None,
            SessionState::Starting => Some(inside.expires),
            _ if self.is_used(&inside) => Some(inside.expires),
            _ => Some(inside.expires.min(inside.last_used + inside.idle)),
        }
    }

    /// A running cell counts as use, and so does one that waits.
    fn is_used(&self, inside: &Inside) -> bool {
        inside.session.state == SessionState::Busy || self.waiting.load(Ordering::SeqCst) > 0
    }

    /// Why it must end now. Use puts off falling idle, but a lifetime is a lifetime.
    /// It ends as soon as it may.
    pub(super) fn doom(&self, reason: EndReason) {
        self.inside().doomed = Some(reason);
    }

    pub(super) fn overdue(&self, now: Instant) -> Option<EndReason> {
        let due = self.deadline()?;
        if let Some(reason) = self.inside().doomed {
            return Some(reason);
        }
        if now < due {
            return None;
        }
        Some(if now >= self.inside().expires { EndReason::Expired } else { EndReason::Idle })
    }
}
