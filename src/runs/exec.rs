//! One cell in a session.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::live::Ticket;
use super::record::{Beside, KeptFiles, begun, of_execution};
use super::{Desk, RunError, check_env, in_range};
use crate::domain::event::Event;
use crate::domain::execution::{Cell, Execution, Language};
use crate::domain::id::{ExecutionId, SessionId, Tenant};
use crate::domain::run::RunKind;
use crate::domain::session::EndReason;
use crate::sandbox::{SandboxError, execute_until};
use crate::sessions::SessionError;
use crate::sessions::lease::Lease;

/// The longest standard input of a cell.
const MAX_STDIN_BYTES: usize = 1 << 20;

/// A cell as a caller asks for it.
#[derive(Clone)]
pub struct NewCell {
    /// Python, or a command line.
    pub code: String,
    /// Which of the two.
    pub language: Language,
    /// How long it may run.
    pub timeout: Option<Duration>,
    /// Environment for this cell alone.
    pub env: BTreeMap<String, String>,
    /// Standard input for this cell alone.
    pub stdin: Option<String>,
    /// Keep the files that it makes beyond the session.
    pub keep_files: bool,
}

impl Desk {
    pub(super) fn check_cell(&self, new: &NewCell) -> Result<(), RunError> {
        self.check_code(&new.code)?;
        check_env(&new.env)?;
        if new.stdin.as_ref().is_some_and(|stdin| stdin.len() > MAX_STDIN_BYTES) {
            return Err(RunError::StdinTooLong(MAX_STDIN_BYTES));
        }
        in_range("/timeout_seconds", new.timeout, self.limits.cell_seconds_max)
    }

    pub(super) async fn exec(
        &self,
        ticket: &Ticket,
        id: SessionId,
        new: NewCell,
    ) -> Result<Execution, RunError> {
        let lease = self.lease(&ticket.tenant, id, &ticket.cancel).await?;
        let kind = match new.language {
            Language::Python => RunKind::Exec,
            Language::Shell => RunKind::Shell,
        };
        self.run_cell(ticket, &lease, kind, new).await
    }

    /// The session, when its turn has come; a caller who is gone before loses nothing.
    pub(super) async fn lease(
        &self,
        tenant: &Tenant,
        id: SessionId,
        cancel: &CancellationToken,
    ) -> Result<Lease, RunError> {
        tokio::select! {
            biased;
            () = cancel.cancelled() => Err(RunError::CallerGone),
            lease = self.sessions.lease(tenant, id) => Ok(lease?),
        }
    }

    /// What is told of a session whose sandbox is gone: the session ends with it.
    async fn gone(&self, tenant: &Tenant, lease: &Lease) -> RunError {
        let ended = self.sessions.end(tenant, lease.session().id, EndReason::Lost).await;
        match ended {
            Ok(_) | Err(SessionError::NotFound(_)) => SessionError::gone(&lease.session()).into(),
            Err(error) => error.into(),
        }
    }

    /// Records, hands over, records again. From the hand-over on there is always an execution.
    pub(super) async fn run_cell(
        &self,
        ticket: &Ticket,
        lease: &Lease,
        kind: RunKind,
        new: NewCell,
    ) -> Result<Execution, RunError> {
        let cancel = &ticket.cancel;
        let session = lease.session();
        let summary = self.begin(ticket, begun(kind, ticket, &session)).await?;
        let cell = Cell {
            id: ExecutionId::new(),
            run_id: summary.id,
            session_id: session.id,
            code: new.code,
            language: new.language,
            timeout: new.timeout.unwrap_or(self.limits.cell_seconds),
            env: new.env,
            stdin: new.stdin,
        };
        if cancel.is_cancelled() {
            self.finish_unstarted(ticket, summary, &RunError::CallerGone).await;
            return Err(RunError::CallerGone);
        }
        let sink = ticket.sink();
        let mut execution = match execute_until(lease.sandbox(), &cell, &sink, cancel).await {
            Ok(execution) => execution,
            Err(error) => {
                let error = match error {
                    // ended between our turn and the hand-over, by a caller or where it was
                    SandboxError::Lost => self.gone(&ticket.tenant, lease).await,
                    error => RunError::from(error),
                };
                self.finish_unstarted(ticket, summary, &error).await;
                return Err(error);
            }
        };
        self.sessions.note_sandbox(lease).await;
        for file in &execution.files {
            sink.send(Event::File(file.clone()));
        }
        let mut kept = KeptFiles::default();
        if new.keep_files {
            let paths = execution.files.iter().map(|file| file.path.clone()).collect();
            kept = self.keep(lease.sandbox(), summary.id, paths, &[], cancel).await;
            execution.output_files = Some(kept.files);
            execution.truncated |= kept.cut;
        }
        let mut run = of_execution(summary, &execution, cancel.is_cancelled());
        let beside = Beside { files: &kept.stored, conversation: None };
        self.finish(ticket, &mut run, beside).await;
        Ok(execution)
    }
}
