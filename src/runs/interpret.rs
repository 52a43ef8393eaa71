//! A question to a model that runs code.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::conversation;
use super::live::Ticket;
use super::record::{Beside, KeptFiles, begun};
use super::spool::NewFile;
use super::{Desk, RunError, check_env, check_metadata, in_range};
use crate::domain::execution::{Failure, FailureKind};
use crate::domain::file::FilePath;
use crate::domain::id::{RunId, SessionId};
use crate::domain::provider::ProviderInfo;
use crate::domain::run::{ResultPart, Run, RunKind, RunStatus, RunSummary};
use crate::interpreter::links::{self, Linked};
use crate::interpreter::{self, End, Outcome, Place, Task};
use crate::llm::{LanguageModel, LlmError};
use crate::sessions::NewSession;
use crate::sessions::lease::Lease;

/// The longest question; data belongs into files.
const MAX_MESSAGE_BYTES: usize = 256 * 1024;

/// A question as a caller asks it.
pub struct NewInterpret {
    /// The question.
    pub message: String,
    /// Written before the model is asked.
    pub files: Vec<NewFile>,
    /// The session to work in; without one, a sandbox of its own that is ended afterwards.
    pub session_id: Option<SessionId>,
    /// The run whose conversation goes on.
    pub previous_run_id: Option<RunId>,
    /// What a sandbox of its own should be.
    pub session: NewSession,
    /// Environment of each cell.
    pub env: BTreeMap<String, String>,
    /// The model.
    pub model: Option<String>,
    /// What the caller tells the model besides.
    pub instructions: Option<String>,
    /// Turns of the model.
    pub max_turns: Option<u32>,
    /// Time for the whole.
    pub timeout: Option<Duration>,
    /// Give the content of small files with the answer.
    pub include_content: bool,
    /// What the caller notes.
    pub metadata: BTreeMap<String, String>,
}

impl Desk {
    pub(super) fn check_interpret(&self, new: &NewInterpret) -> Result<(), RunError> {
        self.models.get(new.model.as_deref())?;
        in_range("/timeout_seconds", new.timeout, self.limits.interpret_seconds_max)?;
        check_env(&new.env)?;
        check_metadata(&new.metadata)?;
        if new.message.len() > MAX_MESSAGE_BYTES {
            return Err(RunError::MessageTooLong(MAX_MESSAGE_BYTES));
        }
        if new.session_id.is_some() && !new.session.packages.is_empty() {
            return Err(RunError::SessionIsMade("/packages"));
        }
        if new.session_id.is_some() && new.session.provider.is_some() {
            return Err(RunError::SessionIsMade("/provider"));
        }
        match new.max_turns {
            Some(turns) if turns == 0 || turns > self.limits.turns_max => {
                Err(RunError::OutOfRange {
                    field: "/max_turns",
                    above: 0.0,
                    most: f64::from(self.limits.turns_max),
                })
            }
            Some(_) | None => Ok(()),
        }
    }

    pub(super) async fn interpret(
        &self,
        ticket: &Ticket,
        new: NewInterpret,
    ) -> Result<Run, RunError> {
        let tenant = &ticket.tenant;
        let include_content = new.include_content;
        let model = self.models.get(new.model.as_deref())?;
        self.check_previous(tenant, new.previous_run_id).await?;
        let work = new.timeout.unwrap_or(self.limits.interpret_seconds);
        let own = self.own_session(ticket, &new.session, work);
        let (id, one_shot) = match new.session_id {
            Some(id) => (id, false),
            None => (self.make_own(ticket, own).await?, true),
        };
        let run = self.interpret_in(ticket, id, new, model.as_ref()).await;
        if one_shot {
            self.end_one_shot(tenant, id).await;
        }
        let mut run = run?;
        if include_content {
            self.include_content(tenant, run.summary.id, &mut run.output_files).await;
        }
        Ok(run)
    }

    async fn interpret_in(
        &self,
        ticket: &Ticket,
        id: SessionId,
        new: NewInterpret,
        model: &dyn LanguageModel,
    ) -> Result<Run, RunError> {
        let cancel = &ticket.cancel;
        let lease = self.lease(&ticket.tenant, id, cancel).await?;
        let session = lease.session();
        let earlier = match new.previous_run_id {
            Some(previous) => Some(self.earlier(&ticket.tenant, previous, id).await?),
            None => None,
        };
        let attached: Vec<FilePath> = new.files.iter().map(|file| file.path.clone()).collect();
        self.bring(lease.sandbox(), new.files).await?;
        let summary = RunSummary {
            model: Some(model.name().to_owned()),
            message: Some(new.message.clone()),
            previous_run_id: new.previous_run_id,
            metadata: new.metadata,
            ..begun(RunKind::Interpret, ticket, &session)
        };
        let summary = self.begin(ticket, summary).await?;
        let task = Task {
            run_id: summary.id,
            session_id: id,
            message: new.message,
            earlier,
            instructions: new.instructions,
            attached,
            env: new.env,
            max_turns: new.max_turns.unwrap_or(self.limits.turns),
            max_code_bytes: self.limits.code_bytes,
            max_tokens: self.limits.interpret_tokens,
            cell_timeout: self.limits.cell_seconds,
            cell_timeout_max: self.limits.cell_seconds_max,
            deadline: Instant::now() + new.timeout.unwrap_or(self.limits.interpret_seconds),
        };
        let place = Place {
            session,
            provider: self.provider_of(&summary.provider),
            sandbox: lease.sandbox(),
            sink: ticket.sink(),
            cancel,
        };
        let mut outcome = interpreter::interpret(&task, &place, model).await;
        self.sessions.note_sandbox(&lease).await;
        let linked = links::linked(&outcome.text, lease.session().folder());
        let kept = self.keep_made(&lease, &summary, &outcome, &linked, cancel).await;
        let conversation = conversation::written(std::mem::take(&mut outcome.messages));
        let (mut run, failed) = told(summary, outcome, &kept);
        run.missing_files = missing(linked, &kept);
        self.finish(ticket, &mut run, Beside { files: &kept.stored, conversation }).await;
        drop(lease);
        match failed {
            None => Ok(run),
            Some(source) => {
                // a run whose model failed ends as a run with an error
                let told = serde_json::to_string(&run).expect("runs have string keys");
                ticket.log.complete(told);
                Err(RunError::ModelFailed { run_id: run.summary.id, source })
            }
        }
    }

    fn provider_of(&self, name: &str) -> ProviderInfo {
        let mut providers = self.sessions.providers();
        let found = providers.iter().position(|provider| provider.name == name);
        providers.swap_remove(found.expect("a session's provider is configured"))
    }

    /// All files that the run's cells made or changed and that the answer links, under the lease.
    async fn keep_made(
        &self,
        lease: &Lease,
        run: &RunSummary,
        outcome: &Outcome,
        linked: &Linked,
        cancel: &CancellationToken,
    ) -> KeptFiles {
        let made = outcome.results.iter().flat_map(|result| &result.execution.files);
        let mut paths: BTreeSet<String> = made.map(|file| file.path.clone()).collect();
        let perhaps = linked.perhaps.iter().filter(|path| paths.contains(path.as_str()));
        let spoken_of: Vec<FilePath> = linked.paths.iter().chain(perhaps).cloned().collect();
        paths.extend(linked.paths.iter().map(ToString::to_string));
        self.keep(lease.sandbox(), run.id, paths, &spoken_of, cancel).await
    }
}

/// What the answer links and the run does not have.
fn missing(linked: Linked, kept: &KeptFiles) -> Vec<String> {
    let has = |path: &FilePath| kept.files.iter().any(|file| file.path == path.as_str());
    let absent = linked.paths.iter().filter(|path| !has(path)).map(ToString::to_string);
    absent.chain(linked.elsewhere).collect()
}

/// The run as the outcome says it ended, and the model's fault where it was one.
fn told(summary: RunSummary, outcome: Outcome, kept: &KeptFiles) -> (Run, Option<LlmError>) {
    let (status, error, failure, fault) = match outcome.end {
        End::Answered => (RunStatus::Success, None, None, None),
        End::Cancelled => {
            (RunStatus::Cancelled, Some("the run was cancelled".to_owned()), None, None)
        }
        End::Failed(failure) => {
            (RunStatus::Error, Some(failure.message.clone()), Some(failure), None)
        }
        End::TimedOut => {
            let failure =
                failed(FailureKind::Budget, "the time for the whole run is used up".to_owned());
            (RunStatus::Timeout, Some(failure.message.clone()), Some(failure), None)
        }
        End::Sandbox(error) => {
            let failure = failed(FailureKind::SandboxLost, error.to_string());
            (RunStatus::Error, Some(failure.message.clone()), Some(failure), None)
        }
        End::Model(error) => {
            let mut failure = failed(FailureKind::ModelUnavailable, error.to_string());
            failure.retry_safe = outcome.results.is_empty();
            (RunStatus::Error, Some(failure.message.clone()), Some(failure), Some(error))
        }
    };
    let mut results = outcome.results;
    if let Some(last) = results.last_mut() {
        let linked = kept.files.iter().filter(|file| file.linked).cloned();
        last.output.extend(linked.map(ResultPart::File));
        last.execution.truncated |= kept.cut;
    }
    let run = Run {
        summary: RunSummary {
            status,
            error,
            failure,
            usage: outcome.usage,
            turns: outcome.turns,
            ..summary
        },
        truncated: outcome.cut && !outcome.text.is_empty(),
        text: outcome.text,
        code_exec_results: results,
        output_files: kept.files.clone(),
        missing_files: Vec::new(),
    };
    (run, fault)
}

fn failed(kind: FailureKind, message: String) -> Failure {
    Failure { kind, retry_safe: false, message }
}
