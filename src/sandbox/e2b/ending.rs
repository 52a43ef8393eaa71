//! How a run at E2B ended, and how that is told. Pure.

use std::time::Duration;

use super::collect::{Collector, Trouble};
use super::error::E2bError;
use crate::domain::execution::{Execution, ExecutionStatus, FailureKind};
use crate::sandbox::outcome::{fail, tell_interrupt, tell_timeout, unknown};

/// How reading a run came to its end.
#[derive(Debug)]
pub(super) enum End {
    /// The stream ended by itself.
    Closed,
    /// It broke off.
    Cut,
    /// The code was certainly not started.
    NotStarted(E2bError),
    /// It was sent, and no answer came.
    NoAnswer,
    /// Nothing came for too long, not even a sign of life.
    Silent,
    /// The deadline passed.
    TimedOut,
    /// It was told to stop.
    Interrupted,
    /// It put out more than any cell has reason to.
    Flooded,
}

/// What is left to do after a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum After {
    /// Nothing.
    Nothing,
    /// The kernel is a new one, without variables.
    IsNew,
    /// It must be found out whether the kernel still listens.
    Probe,
    /// The same, and whether the sandbox is there at all.
    Look,
}

/// Whether a failure of a call says that its code was not started: the code is handed on only after
/// the answer has begun, and these answers come before.
pub(super) fn not_started(error: E2bError) -> End {
    match &error {
        E2bError::Unreachable(_) | E2bError::Gone => End::NotStarted(error),
        E2bError::Refused(refusal) => match (refusal.status, refusal.reason.to_string()) {
            (400 | 401 | 403 | 404 | 409 | 422 | 429, _) => End::NotStarted(error),
            (500, reason) if reason.contains("Failed to create context") => End::NotStarted(error),
            _ => End::NoAnswer,
        },
        _ => End::NoAnswer,
    }
}

/// Tells the execution how it ended, from what was gathered and how the reading ended.
pub(super) fn tell(
    execution: &mut Execution,
    collector: Collector,
    end: &End,
    needs_mark: bool,
    limit: Duration,
) -> After {
    let (trouble, is_complete) = (collector.trouble, collector.is_complete);
    collector.finish(execution);
    match (end, trouble) {
        (End::TimedOut, _) => {
            tell_timeout(execution, limit);
            After::Probe
        }
        (End::Interrupted, _) => {
            tell_interrupt(execution);
            After::Probe
        }
        (End::Flooded, _) => {
            let message = "the cell put out more than any cell may".to_owned();
            fail(execution, ExecutionStatus::Error, FailureKind::Limit, message);
            After::Probe
        }
        (End::Closed, Some(Trouble::KernelDied)) => {
            let message = "the interpreter ended: it exited, crashed, or ran out of memory";
            fail(execution, ExecutionStatus::Error, FailureKind::Killed, message.to_owned());
            execution.state_lost = true;
            After::IsNew
        }
        (End::Closed, None) if is_complete || !needs_mark => {
            settle(execution);
            After::Nothing
        }
        (End::Closed, Some(Trouble::LostKernel)) => {
            unknown(execution, "the sandbox lost its interpreter while the code ran");
            After::Look
        }
        (End::Closed | End::Cut, _) => {
            unknown(execution, "the connection to the sandbox broke while the code ran");
            After::Look
        }
        (End::NoAnswer | End::NotStarted(_), _) => {
            unknown(execution, "the connection to the sandbox broke as the code was handed over");
            After::Look
        }
        (End::Silent, _) => {
            unknown(execution, "the sandbox gave no sign of life while the code ran");
            After::Look
        }
    }
}

/// An execution that ran to its end: an error is the code's own.
fn settle(execution: &mut Execution) {
    let Some(error) = &execution.error_detail else {
        execution.status = ExecutionStatus::Success;
        execution.exit_code = Some(0);
        return;
    };
    if error.name == "SystemExit" && matches!(error.message.trim(), "" | "0" | "None") {
        execution.status = ExecutionStatus::Success;
        execution.exit_code = Some(0);
        execution.error_detail = None;
        return;
    }
    let code = match error.name.as_str() {
        "SystemExit" => error.message.trim().parse::<i64>().map_or(1, |code| (code & 0xFF) as i32),
        "KeyboardInterrupt" => 130,
        _ => 1,
    };
    execution.status = ExecutionStatus::Error;
    execution.exit_code = Some(code);
    execution.error = Some(error.traceback.clone());
}
