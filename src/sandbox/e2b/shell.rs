//! A command line in a sandbox at E2B.

use std::time::Duration;

use futures::{StreamExt, stream};
use tokio::time::{Instant, timeout};

use super::access::Door;
use super::ending::End;
use super::error::E2bError;
use super::kernel::{Env, Run};
use super::process::{Followed, Process};
use super::sandbox::E2bSandbox;
use crate::domain::execution::{Cell, Execution, ExecutionStatus, milliseconds};
use crate::domain::id::ExecutionId;
use crate::sandbox::outcome::{tell_ended, tell_gone, tell_interrupt, tell_timeout, unknown};
use crate::sandbox::{Sandbox, SandboxError};

/// For a text that is put beside the session's files.
const ASIDE_LIMIT: Duration = Duration::from_secs(30);
/// Longer command lines are no argument of a program on Linux.
const MAX_ARGUMENT_BYTES: usize = 120_000;
/// Runs the command line of one file with another one as its standard input.
const FROM_FILES: &str = "[ -z \"$2\" ] || exec <\"$2\"; set -- \"$(cat \"$1\"; rm -f \"$1\" \"$2\")\"; eval \"set --; $1\"";

impl E2bSandbox {
    pub(super) async fn run_shell(
        &self,
        door: &Door,
        cell: &Cell,
        run: &Run<'_>,
        env: &Env,
    ) -> Result<Execution, SandboxError> {
        let (mut env, lent) = (env.clone(), cell.env.clone());
        env.extend(lent);
        let (long, stdin) = (cell.code.len() > MAX_ARGUMENT_BYTES, cell.stdin.as_deref());
        let mut files = [String::new(), String::new()];
        if long || stdin.is_some() {
            files[0] = self.aside(door, &cell.code).await?;
            if let Some(stdin) = stdin {
                files[1] = self.aside(door, stdin).await?;
            }
        }
        let arguments: Vec<&str> = match files.each_ref() {
            [code, _] if code.is_empty() => vec!["-l", "-c", &cell.code],
            [code, stdin] => vec!["-l", "-c", FROM_FILES, "bash", code, stdin],
        };
        let process = Process {
            program: "/bin/bash",
            arguments: &arguments,
            env: &env,
            folder: &self.here.files_dir,
            tag: cell.id.to_string(),
            sandbox_id: &self.sandbox_id,
        };
        let envd = self.envd(door);
        let mut followed = Followed::new(self.output_cap());
        let started = Instant::now();
        let end = process.follow(&envd, run, &mut followed).await;
        let mut execution = Execution::of(cell);
        execution.duration_ms = Some(milliseconds(started.elapsed()));
        if let End::NotStarted(error) = end {
            return Err(self.noticed(error));
        }
        let exit = followed.exit;
        followed.streams.finish(&mut execution);
        match (end, exit) {
            (End::Closed, Some(exit)) => settle(&mut execution, exit.0),
            (End::TimedOut, _) => tell_timeout(&mut execution, cell.timeout),
            (End::Interrupted, _) => tell_interrupt(&mut execution),
            _ if self.is_over() => tell_ended(&mut execution),
            _ => {
                execution.duration_ms = None;
                unknown(
                    &mut execution,
                    "the connection to the sandbox broke while the command ran",
                );
                if let Err(E2bError::Gone) = envd.health().await {
                    let _ = self.noticed(E2bError::Gone);
                    tell_gone(&mut execution, "it is gone, and the session is lost");
                }
            }
        }
        if self.is_lost() {
            execution.files_lost = true;
        }
        Ok(execution)
    }

    /// Puts a text beside the session's files, for one command.
    async fn aside(&self, door: &Door, text: &str) -> Result<String, SandboxError> {
        let path = format!("/tmp/.interpreterd-{}", ExecutionId::new());
        let content = bytes::Bytes::copy_from_slice(text.as_bytes());
        let content = stream::once(async move { Ok(content) }).boxed();
        let sent = timeout(ASIDE_LIMIT, self.envd(door).upload(&path, content)).await;
        sent.unwrap_or(Err(E2bError::TooSlow)).map_err(|error| self.noticed(error))?;
        Ok(path)
    }
}

fn settle(execution: &mut Execution, code: i32) {
    execution.exit_code = Some(code);
    if code == 0 {
        execution.status = ExecutionStatus::Success;
    } else {
        execution.status = ExecutionStatus::Error;
        execution.error = Some(format!("exit code {code}"));
    }
}
