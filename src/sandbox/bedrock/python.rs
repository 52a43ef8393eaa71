//! A cell of Python in a sandbox at AWS.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use serde::Deserialize;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::collect::Left;
use super::error::BedrockError;
use super::follow::{DidNotHear, Running};
use super::machine::{Again, Machine, Told, told_of};
use super::programs::{self, answer};
use super::sandbox::BedrockSandbox;
use super::wire::Said;
use crate::domain::event::OutputSink;
use crate::domain::execution::{Cell, Execution, ExecutionStatus, FailureKind, milliseconds};
use crate::sandbox::SandboxError;
use crate::sandbox::outcome::{fail, tell_ended, tell_gone, tell_interrupt, tell_timeout, unknown};
use crate::sandbox::told::{Found, Heard, Outcome};

/// A cell ends itself when its time is over; one that does not is waited for so long.
const GRACE: Duration = Duration::from_secs(4);
/// How often code is handed over that was certainly not run: its kernel was new, or its machine gone.
const HAND_OVERS: u32 = 3;
/// How long an interpreter that is busy is waited for.
const BUSY_LIMIT: Duration = Duration::from_secs(10);
const BUSY_PAUSE: Duration = Duration::from_millis(250);
/// For what a cell left behind that could not tell of itself.
const LEFT_LIMIT: Duration = Duration::from_secs(3);

/// How a hand-over ended.
enum End {
    /// The answer came, whatever it is.
    Said(Said),
    /// It failed.
    Failed(BedrockError),
    /// It ran longer than its time, and did not hear the alarm.
    TimedOut,
    /// It was told to stop, and did not hear that.
    Interrupted,
}

/// A hand-over and what came of it.
struct Run {
    machine: Arc<Machine>,
    mark: String,
    heard: Heard,
    end: End,
    took: Duration,
    /// An interrupt came for it.
    was_asked_to_stop: bool,
}

/// What an interpreter says that is no kernel of ours.
#[derive(Deserialize)]
struct Absent {
    absent: bool,
}

impl Run {
    /// Whether certainly nothing of the code was run, so that it can be handed over once more.
    fn is_undone(&self) -> bool {
        match &self.end {
            End::Failed(BedrockError::Busy(_) | BedrockError::Gone) => true,
            End::Said(said) => self.is_absent(said),
            End::Failed(_) | End::TimedOut | End::Interrupted => false,
        }
    }

    fn is_absent(&self, said: &Said) -> bool {
        let told = said.printed().ok().and_then(|printed| answer(printed, &self.mark));
        let told = told.and_then(|told| serde_json::from_str::<Absent>(told.line).ok());
        told.is_some_and(|told| told.absent)
    }
}

impl BedrockSandbox {
    pub(super) async fn run_python(
        &self,
        cell: &Cell,
        sink: &OutputSink,
    ) -> Result<Execution, SandboxError> {
        let mut execution = Execution::of(cell);
        let (mut hand_overs, busy_until) = (1, Instant::now() + BUSY_LIMIT);
        let run = loop {
            let machine = self.fit_machine(cell).await?;
            if self.interrupt.notified().now_or_never().is_some() {
                tell_interrupt(&mut execution); // before anything of it ran
                return Ok(execution);
            }
            let run = self.hand_over(machine, cell, sink).await;
            if !run.is_undone() {
                break run;
            }
            match &run.end {
                End::Failed(BedrockError::Busy(_)) if Instant::now() < busy_until => {
                    sleep(BUSY_PAUSE).await;
                }
                End::Failed(BedrockError::Gone) if hand_overs < HAND_OVERS => hand_overs += 1,
                // believed once, and only when a look at the kernel says the same: its own code may say so
                End::Said(_) if hand_overs == 1 && self.is_anew(&run.machine).await? => {
                    hand_overs = HAND_OVERS;
                }
                End::Said(_) | End::Failed(_) | End::TimedOut | End::Interrupted => break run,
            }
            if run.was_asked_to_stop {
                self.interrupt.notify_one();
            }
        };
        self.tell(run, cell, sink, &mut execution).await?;
        Ok(execution)
    }

    async fn hand_over(&self, machine: Arc<Machine>, cell: &Cell, sink: &OutputSink) -> Run {
        let id = cell.id.to_string();
        let program = programs::of_kernel(json!({
            "do": "run", "id": id, "code": cell.code, "env": cell.env, "stdin": cell.stdin,
            "seconds": cell.timeout.as_secs_f64(), "output_bytes": self.output_cap,
        }));
        let mut heard = Heard::nothing();
        let started = Instant::now();
        let running = Running::new(&machine, &id, &self.interrupt, sink);
        let handing = machine.execute(&program, cell.timeout + GRACE);
        let end = match running.until(&mut heard, handing).await {
            Ok(Ok(said)) => End::Said(said),
            Ok(Err(BedrockError::TooSlow)) => End::TimedOut,
            Ok(Err(error)) => End::Failed(error),
            Err(DidNotHear) => End::Interrupted,
        };
        let (took, was_asked_to_stop) = (started.elapsed(), running.was_asked_to_stop());
        Run { machine, mark: program.mark, heard, end, took, was_asked_to_stop }
    }

    /// Tells the execution what came of the hand-over, and sees to it that the next one finds a kernel
    /// that listens.
    async fn tell(
        &self,
        mut run: Run,
        cell: &Cell,
        sink: &OutputSink,
        execution: &mut Execution,
    ) -> Result<(), SandboxError> {
        execution.duration_ms = Some(milliseconds(run.took));
        match std::mem::replace(&mut run.end, End::TimedOut) {
            End::Failed(error) if error.is_undone() => return Err(error.into()),
            End::Said(mut said) => match self.outcome(&run, &said).await {
                // our kernel did not begin it
                Ok(Some(Told::Refused(word))) if word == "full" => return Err(SandboxError::Full),
                Ok(Some(Told::Refused(_))) => return Err(SandboxError::HeldBack),
                Ok(Some(Told::Answer(outcome))) => {
                    let shown = std::mem::take(&mut said.outputs);
                    let hearing = (self.output_cap, &mut run.heard, sink);
                    let found = outcome.tell(execution, cell, shown, hearing);
                    self.tell_files(Some(found), execution).await;
                    return Ok(());
                }
                Ok(None) if said.has_failed() => {
                    let words = said.last_words();
                    let message = format!(
                        "the interpreter ended: it exited, crashed, or ran out of memory{words}"
                    );
                    fail(execution, ExecutionStatus::Error, FailureKind::Killed, message);
                }
                Ok(None) => unknown(execution, "the sandbox's answer holds no result of the code"),
                Err(error) => unknown(execution, &error.to_string()),
            },
            End::Failed(error) => unknown(execution, &error.to_string()),
            End::TimedOut => tell_timeout(execution, cell.timeout),
            End::Interrupted => tell_interrupt(execution),
        }
        if execution.status == ExecutionStatus::Unknown {
            execution.duration_ms = None;
        }
        if self.is_over() {
            tell_ended(execution);
            return Ok(());
        }
        let found = self.tell_left(&mut run, cell, sink, execution).await;
        self.look_after_later(&run.machine, cell).await;
        if self.has_lost(&run.machine).await {
            tell_gone(execution, "its sandbox was replaced, and its variables and files are gone");
        } else {
            self.tell_files(found, execution).await;
        }
        Ok(())
    }

    /// What our kernel said; None where it did not live to say anything.
    async fn outcome(&self, run: &Run, said: &Said) -> Result<Option<Told<Outcome>>, BedrockError> {
        let printed = match said.printed() {
            Err(BedrockError::Tool(_)) => return Ok(None),
            printed => printed?,
        };
        let Some(told) = answer(printed, &run.mark) else { return Ok(None) };
        told_of(&run.machine.whole(told).await?).map(Some)
    }

    /// What a cell printed that could not tell of itself, as far as it can be had.
    async fn tell_left(
        &self,
        run: &mut Run,
        cell: &Cell,
        sink: &OutputSink,
        execution: &mut Execution,
    ) -> Option<Found> {
        let told = json!({"do": "take", "id": cell.id, "output_bytes": self.output_cap});
        let taken = run.machine.work::<Left>(told, LEFT_LIMIT, Again::WhenFree);
        let taken = tokio::time::timeout(LEFT_LIMIT, taken).await.ok()?;
        let left = taken.and_then(Told::expected).ok()?;
        left.printed.tell(execution, self.output_cap, &mut run.heard, sink);
        Some(left.found)
    }
}
