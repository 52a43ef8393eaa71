//! A command line in a sandbox at AWS.

use std::time::Duration;

use futures::FutureExt;
use serde_json::json;
use tokio::time::Instant;

use super::collect::Ended;
use super::error::BedrockError;
use super::follow::{DidNotHear, Running};
use super::machine::{Again, Machine, Told};
use super::sandbox::BedrockSandbox;
use crate::domain::event::OutputSink;
use crate::domain::execution::{Cell, Execution, milliseconds};
use crate::sandbox::SandboxError;
use crate::sandbox::outcome::{tell_ended, tell_gone, tell_interrupt, tell_timeout, unknown};
use crate::sandbox::told::Heard;

/// Our program in the sandbox ends the command when its time is over, and is waited for so long.
const GRACE: Duration = Duration::from_secs(8);
/// How often a command is handed over that was certainly not run.
const HAND_OVERS: u32 = 3;

impl BedrockSandbox {
    pub(super) async fn run_shell(
        &self,
        cell: &Cell,
        sink: &OutputSink,
    ) -> Result<Execution, SandboxError> {
        let mut execution = Execution::of(cell);
        let mut hand_overs = 1;
        let (machine, mut heard, ended, took) = loop {
            let machine = self.fit_machine(cell).await?;
            if self.interrupt.notified().now_or_never().is_some() {
                tell_interrupt(&mut execution);
                return Ok(execution);
            }
            let mut heard = Heard::nothing();
            let started = Instant::now();
            match self.command(&machine, cell, sink, &mut heard).await {
                // nothing of it was run: its machine was gone
                Ok(Err(BedrockError::Gone)) if hand_overs < HAND_OVERS => hand_overs += 1,
                ended => break (machine, heard, ended, started.elapsed()),
            }
        };
        execution.duration_ms = Some(milliseconds(took));
        match ended {
            Ok(Ok(Told::Answer(ended))) => {
                let found = ended.tell(&mut execution, cell, (self.output_cap, &mut heard, sink));
                self.tell_files(Some(found), &mut execution).await;
                return Ok(execution);
            }
            // our program did not begin it
            Ok(Ok(Told::Refused(word))) if word == "full" => return Err(SandboxError::Full),
            Ok(Ok(Told::Refused(_))) => return Err(SandboxError::HeldBack),
            Ok(Err(error)) if error.is_undone() => return Err(error.into()),
            Ok(Err(BedrockError::TooSlow)) => tell_timeout(&mut execution, cell.timeout),
            Ok(Err(error)) => {
                unknown(&mut execution, &error.to_string());
                execution.duration_ms = None;
            }
            Err(DidNotHear) => tell_interrupt(&mut execution),
        }
        self.look_at_rest(&machine, cell, &mut execution).await;
        Ok(execution)
    }

    async fn command(
        &self,
        machine: &Machine,
        cell: &Cell,
        sink: &OutputSink,
        heard: &mut Heard,
    ) -> Result<Result<Told<Ended>, BedrockError>, DidNotHear> {
        let id = cell.id.to_string();
        let mut env = self.env().clone();
        env.extend(cell.env.clone());
        let told = json!({
            "do": "shell", "id": id, "argv": null, "command": cell.code, "env": env, "stdin": cell.stdin,
            "seconds": cell.timeout.as_secs_f64(), "output_bytes": self.output_cap,
        });
        let running = Running::new(machine, &id, &self.interrupt, sink);
        let handing = machine.work::<Ended>(told, cell.timeout + GRACE, Again::Never);
        running.until(heard, handing).await
    }

    /// A command of which nobody tells may run on: it is told to stop, and what there is is looked at.
    async fn look_at_rest(
        &self,
        machine: &std::sync::Arc<Machine>,
        cell: &Cell,
        execution: &mut Execution,
    ) {
        if self.is_over() {
            return tell_ended(execution);
        }
        self.look_after_later(machine, cell).await;
        if self.has_lost(machine).await {
            tell_gone(execution, "its sandbox was replaced, and its variables and files are gone");
        } else {
            self.forget_files();
            execution.truncated = true;
        }
    }
}
