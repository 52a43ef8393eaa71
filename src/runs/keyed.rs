//! Keyed requests: what was begun under a key is not begun again.

use std::sync::Arc;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tracing::Instrument;

use super::live::Ticket;
use super::spool::NewFile;
use super::{Answer, Desk, NewCell, Order, RunError, Runs, note_run};
use crate::domain::claim::{Claim, Key, Subject};
use crate::domain::execution::{Cell, Execution, ExecutionStatus, FailureKind, Language};
use crate::domain::id::{ExecutionId, RunId, Tenant};
use crate::domain::run::{Run, RunKind, RunStatus};
use crate::domain::session::{Session, SessionState};
use crate::llm::LlmError;
use crate::sessions::NewSession;

impl Runs {
    /// Does the work once for its key: the same request again gets the stored answer. Work under a
    /// key goes on when its caller is gone.
    pub async fn answer_once(
        &self,
        tenant: &Tenant,
        order: Order,
        key: Key,
    ) -> Result<Answer, RunError> {
        self.desk.check(&order)?;
        let claim = self.desk.claim(key, &fingerprint(&order));
        if let Some(id) = self.desk.claimed_run(tenant, &claim).await? {
            return self.desk.stored_answer(tenant, id, &order).await;
        }
        let again = Replay::of(&order);
        let (desk, owner, kept) = (Arc::clone(&self.desk), tenant.clone(), claim.clone());
        let cancel = self.admit()?;
        let work = async move {
            let mut ticket = Ticket::new(&owner, cancel, false);
            note_run(&ticket);
            ticket.claim = Some(kept);
            let _registered = desk.live.register(&ticket, order.kind());
            desk.work(&ticket, order).await
        };
        let work = self.tracker.spawn(work.in_current_span());
        match work.await.map_err(RunError::Panicked)? {
            // another request with this key was quicker
            Err(error) if error.is_claimed() => {
                match self.desk.claimed_run(tenant, &claim).await? {
                    Some(id) => self.desk.replay(tenant, id, &again).await,
                    None => Err(RunError::KeyInProgress),
                }
            }
            other => other,
        }
    }

    /// The run that a key stands for, if it was used before with the same request.
    pub async fn claimed(
        &self,
        tenant: &Tenant,
        claim: Option<&Claim>,
    ) -> Result<Option<RunId>, RunError> {
        match claim {
            Some(claim) => self.desk.claimed_run(tenant, claim).await,
            None => Ok(None),
        }
    }

    /// The claim that work under this key must write.
    #[must_use]
    pub fn claim(&self, order: &Order, key: Key) -> Claim {
        self.desk.claim(key, &fingerprint(order))
    }
}

/// What is needed of an order to answer it from what is stored.
struct Replay {
    code: String,
    language: Language,
    include_content: bool,
}

impl Replay {
    fn of(order: &Order) -> Self {
        let (code, language, include_content) = match order {
            Order::Exec(_, cell) => (cell.code.clone(), cell.language, false),
            Order::Execute(new) => (new.cell.code.clone(), new.cell.language, new.include_content),
            Order::Interpret(new) => (String::new(), Language::Python, new.include_content),
        };
        Self { code, language, include_content }
    }
}

impl Desk {
    pub(super) fn claim(&self, key: Key, fingerprint: &Value) -> Claim {
        let mut hash = Sha256::new();
        hash.update(self.store.secret());
        hash.update(fingerprint.to_string());
        let request_hash = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Claim { key, request_hash }
    }

    async fn claimed(&self, tenant: &Tenant, claim: &Claim) -> Result<Option<Subject>, RunError> {
        match self.store.claimed(tenant, &claim.key).await? {
            None => Ok(None),
            Some(claimed) if claimed.request_hash == claim.request_hash => {
                Ok(Some(claimed.subject))
            }
            Some(_) => Err(RunError::KeyReused),
        }
    }

    async fn claimed_run(&self, tenant: &Tenant, claim: &Claim) -> Result<Option<RunId>, RunError> {
        match self.claimed(tenant, claim).await? {
            Some(Subject::Run(id)) => Ok(Some(id)),
            Some(Subject::Session(_)) => Err(RunError::KeyReused),
            None => Ok(None),
        }
    }

    pub(super) async fn claimed_session(
        &self,
        tenant: &Tenant,
        claim: &Claim,
    ) -> Result<Option<Session>, RunError> {
        match self.claimed(tenant, claim).await? {
            Some(Subject::Session(id)) => {
                let session = self.sessions.get(tenant, id).await?;
                match session.state {
                    // one that installs packages was answered before it was ready
                    SessionState::Starting if session.packages.is_empty() => {
                        Err(RunError::KeyInProgress)
                    }
                    // its key is free once its end is written
                    SessionState::Failed if session.failure.is_none() => {
                        Err(RunError::KeyInProgress)
                    }
                    SessionState::Starting
                    | SessionState::Ready
                    | SessionState::Busy
                    | SessionState::Ended
                    | SessionState::Failed => Ok(Some(session)),
                }
            }
            Some(Subject::Run(_)) => Err(RunError::KeyReused),
            None => Ok(None),
        }
    }

    async fn stored_answer(
        &self,
        tenant: &Tenant,
        id: RunId,
        order: &Order,
    ) -> Result<Answer, RunError> {
        self.replay(tenant, id, &Replay::of(order)).await
    }

    /// The answer that a run was, or would have been, given.
    async fn replay(&self, tenant: &Tenant, id: RunId, order: &Replay) -> Result<Answer, RunError> {
        let mut run = self.store.run(tenant, id).await?.ok_or(RunError::NotFound(id))?;
        if matches!(run.summary.status, RunStatus::Queued | RunStatus::Running) {
            return Err(RunError::KeyInProgress);
        }
        if run.summary.kind != RunKind::Interpret {
            let mut execution = execution_of(&run, order);
            if order.include_content
                && let Some(files) = &mut execution.output_files
            {
                self.include_content(tenant, id, files).await;
            }
            return Ok(execution.into());
        }
        let kind = run.summary.failure.as_ref().map(|failure| failure.kind);
        if kind == Some(FailureKind::ModelUnavailable) {
            return Err(RunError::ModelFailed { run_id: id, source: LlmError::FailedBefore });
        }
        if order.include_content {
            self.include_content(tenant, id, &mut run.output_files).await;
        }
        Ok(run.into())
    }
}

/// The execution of a run; one that never began, or whose end nobody saw, says so.
fn execution_of(run: &Run, order: &Replay) -> Execution {
    if let Some(result) = run.code_exec_results.first() {
        return result.execution.clone();
    }
    let cell = Cell {
        id: ExecutionId::from_uuid(run.summary.id.uuid()),
        run_id: run.summary.id,
        session_id: run.summary.session_id,
        code: order.code.clone(),
        language: order.language,
        timeout: std::time::Duration::ZERO,
        env: std::collections::BTreeMap::new(),
        stdin: None,
    };
    let mut execution = Execution::of(&cell);
    if run.summary.status != RunStatus::Unknown {
        execution.status = ExecutionStatus::Error;
    }
    execution.state_lost = run.summary.status == RunStatus::Unknown;
    execution.error.clone_from(&run.summary.error);
    execution.failure.clone_from(&run.summary.failure);
    execution.text = execution.display_text();
    execution
}

/// Everything that makes a request what it is.
fn fingerprint(order: &Order) -> Value {
    match order {
        Order::Exec(id, cell) => json!(["exec", id, cell_fingerprint(cell)]),
        Order::Execute(new) => json!([
            "execute",
            cell_fingerprint(&new.cell),
            session_fingerprint(&new.session),
            files_fingerprint(&new.files),
            new.include_content,
        ]),
        Order::Interpret(new) => json!([
            "interpret",
            new.message,
            files_fingerprint(&new.files),
            new.session_id,
            new.previous_run_id,
            session_fingerprint(&new.session),
            new.env,
            new.model,
            new.instructions,
            new.max_turns,
            new.timeout.map(|timeout| timeout.as_secs_f64()),
            new.include_content,
            new.metadata,
        ]),
    }
}

fn cell_fingerprint(cell: &NewCell) -> Value {
    let timeout = cell.timeout.map(|timeout| timeout.as_secs_f64());
    let shell = cell.language == Language::Shell;
    json!([cell.code, shell, timeout, cell.env, cell.stdin, cell.keep_files])
}

pub(super) fn session_fingerprint(new: &NewSession) -> Value {
    let seconds =
        |duration: Option<std::time::Duration>| duration.map(|duration| duration.as_secs_f64());
    json!([
        new.provider,
        new.packages,
        new.env,
        new.limits,
        seconds(new.lifetime),
        seconds(new.idle),
        new.metadata
    ])
}

fn files_fingerprint(files: &[NewFile]) -> Value {
    files.iter().map(|file| json!([file.path.as_str(), file.content.sha256()])).collect()
}
