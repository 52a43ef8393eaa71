//! How a run is written down: at its begin and at its end.

use std::collections::BTreeMap;

use time::OffsetDateTime;

use super::live::Ticket;
use super::{Desk, RunError, events};
use crate::domain::coded::chain;
use crate::domain::crash;
use crate::domain::event::Event;
use crate::domain::execution::{Execution, ExecutionStatus, Failure, FailureKind, milliseconds};
use crate::domain::file::OutputFile;
use crate::domain::id::SessionId;
use crate::domain::run::{CodeExecResult, ResultPart, Run, RunKind, RunStatus, RunSummary, Usage};
use crate::domain::session::Session;
use crate::store::{Finish, StoredFile};

/// The files of a run: as callers see them, and where their contents are.
#[derive(Debug, Default)]
pub(super) struct KeptFiles {
    /// True when there was more than is kept of one run.
    pub(super) cut: bool,
    pub(super) files: Vec<OutputFile>,
    pub(super) stored: Vec<StoredFile>,
}

/// What is written down with a run's end besides the run.
#[derive(Debug, Default)]
pub(super) struct Beside<'a> {
    pub(super) files: &'a [StoredFile],
    /// What was said, as JSON.
    pub(super) conversation: Option<String>,
}

impl Desk {
    /// Writes the run down, or that its turn has come; only then its code may be handed over.
    pub(super) async fn begin(
        &self,
        ticket: &Ticket,
        run: RunSummary,
    ) -> Result<RunSummary, RunError> {
        if ticket.queued.is_none() {
            self.store.begin_run(&ticket.tenant, &run, ticket.claim.as_ref()).await?;
        } else if !self.store.start_run(&ticket.tenant, &run).await? {
            return Err(RunError::CallerGone); // it was ended while it waited
        }
        self.live.note_begun(run.id);
        crash::point("run.begun");
        ticket.sink().send(Event::Started(Box::new(run.clone())));
        Ok(run)
    }

    /// Writes down how the run ended. The result is in hand: a store that fails does not take it away.
    pub(super) async fn finish(&self, ticket: &Ticket, run: &mut Run, beside: Beside<'_>) {
        self.write_end(ticket, run, beside, false).await;
    }

    async fn write_end(
        &self,
        ticket: &Ticket,
        run: &mut Run,
        beside: Beside<'_>,
        release_key: bool,
    ) {
        let now = OffsetDateTime::now_utc();
        run.summary.finished_at = Some(now);
        let started = run.summary.started_at.unwrap_or(run.summary.created_at);
        run.summary.duration_ms = Some(milliseconds((now - started).unsigned_abs()));
        let events = ticket.loud.then(|| events::written(&ticket.log));
        let Beside { files, conversation } = beside;
        let epoch = self.store.epoch();
        let finish = Finish { run, files, events, conversation, epoch, release_key };
        crash::point("cell.done");
        let written = match self.store.finish_run(&ticket.tenant, &finish).await {
            Ok(_) => true,
            Err(error) => {
                tracing::error!(run.id = %run.summary.id, error = chain(&error), "a run's end goes to the journal");
                self.journal.keep(&ticket.tenant, &finish)
            }
        };
        if written {
            self.live.note_ended(run.summary.id);
        }
        crash::point("run.finished");
    }

    /// Writes down that a run's code was never handed over, and tells who listens. A caller who is
    /// told to try again may do so with the same key; one who was answered before has its run.
    pub(super) async fn finish_unstarted(
        &self,
        ticket: &Ticket,
        summary: RunSummary,
        error: &RunError,
    ) {
        let message = error.to_string();
        let (status, kind) = match error {
            RunError::CallerGone => (RunStatus::Cancelled, FailureKind::Interrupted),
            _ => (RunStatus::Error, FailureKind::SandboxLost),
        };
        let failure = Failure { kind, retry_safe: true, message: message.clone() };
        let summary =
            RunSummary { status, error: Some(message), failure: Some(failure), ..summary };
        let mut run = Run::empty(summary);
        self.write_end(ticket, &mut run, Beside::default(), ticket.queued.is_none()).await;
        ticket.log.complete(serde_json::to_string(&run).expect("runs have string keys"));
    }
}

/// A run at its begin.
pub(super) fn begun(kind: RunKind, ticket: &Ticket, session: &Session) -> RunSummary {
    RunSummary {
        status: RunStatus::Running,
        started_at: Some(OffsetDateTime::now_utc()),
        ..waiting(kind, ticket, session.id, session.provider.clone())
    }
}

/// A run that waits for its turn.
pub(super) fn waiting(
    kind: RunKind,
    ticket: &Ticket,
    session_id: SessionId,
    provider: String,
) -> RunSummary {
    RunSummary {
        id: ticket.run_id,
        kind,
        session_id,
        provider,
        model: None,
        status: RunStatus::Queued,
        message: None,
        previous_run_id: None,
        error: None,
        failure: None,
        usage: Usage::default(),
        turns: 0,
        created_at: ticket.asked_at,
        started_at: None,
        finished_at: None,
        duration_ms: None,
        metadata: BTreeMap::new(),
    }
}

/// A run of one cell, as its execution says it ended.
pub(super) fn of_execution(summary: RunSummary, execution: &Execution, cancelled: bool) -> Run {
    let status = match execution.status {
        _ if cancelled && execution.status != ExecutionStatus::Success => RunStatus::Cancelled,
        ExecutionStatus::Success => RunStatus::Success,
        ExecutionStatus::Error => RunStatus::Error,
        ExecutionStatus::Timeout => RunStatus::Timeout,
        ExecutionStatus::Unknown => RunStatus::Unknown,
    };
    let text = ResultPart::Text(execution.text.clone());
    Run {
        summary: RunSummary {
            status,
            error: execution.error.clone(),
            failure: execution.failure.clone(),
            ..summary
        },
        text: execution.text.clone(),
        truncated: false,
        code_exec_results: vec![CodeExecResult {
            id: execution.id.to_string(),
            code: execution.code.clone(),
            output: vec![text],
            execution: execution.clone(),
        }],
        output_files: execution.output_files.clone().unwrap_or_default(),
        missing_files: Vec::new(),
    }
}
