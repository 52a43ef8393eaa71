//! How a cell ended that did not end by itself, and how that is told.

use std::time::Duration;

use super::handle::Exceeded;
use crate::domain::execution::{Execution, ExecutionStatus, Failure, FailureKind};
use crate::domain::limits::Limits;

/// The guest's word for a kernel that cannot go on.
const EXIT_BROKEN: i32 = 97;

/// How the kernel ended, when it is not there to say so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Death {
    /// It ended by itself: an exit code, or a negative signal.
    Ended(Option<i32>),
    /// It did not end its cell when it was told to.
    IgnoredInterrupt,
    /// It broke the rules of its channel.
    BrokeChannel,
}

/// Why a running cell is being interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    Timeout,
    Caller,
}

/// An execution whose kernel died of it.
pub(super) fn tell_death(execution: &mut Execution, death: Death) {
    let (exit_code, kind, message) = match death {
        Death::Ended(Some(EXIT_BROKEN)) => (
            Some(EXIT_BROKEN),
            FailureKind::Killed,
            "the interpreter was ended because its own parts no longer worked".to_owned(),
        ),
        Death::Ended(Some(code @ 0..)) => {
            (Some(code), FailureKind::Killed, format!("the interpreter exited with code {code}"))
        }
        Death::Ended(Some(signal)) => {
            let message =
                format!("the interpreter was ended by signal {}{}", -signal, signal_name(-signal));
            (Some(128 - signal), FailureKind::Killed, message)
        }
        Death::Ended(None) => (None, FailureKind::SandboxLost, "the sandbox was lost".to_owned()),
        Death::IgnoredInterrupt => (
            Some(137),
            FailureKind::Killed,
            "the interpreter was killed because it ignored interrupts".to_owned(),
        ),
        Death::BrokeChannel => (
            Some(137),
            FailureKind::Killed,
            "the interpreter was killed because it broke its channel to the service".to_owned(),
        ),
    };
    execution.status = match death {
        Death::Ended(None) => ExecutionStatus::Unknown,
        _ => ExecutionStatus::Error,
    };
    execution.exit_code = exit_code;
    execution.state_lost = true;
    execution.error = Some(message.clone());
    execution.failure = Some(Failure { kind, retry_safe: false, message });
}

/// An execution that was told to stop, with its kernel alive or not.
pub(super) fn tell_stop(execution: &mut Execution, stop: Stop, limit: Duration) {
    match stop {
        Stop::Timeout => {
            execution.status = ExecutionStatus::Timeout;
            execution.exit_code = Some(1);
            let message = format!("the cell ran longer than its {} seconds", limit.as_secs_f64());
            execution.error = Some(message);
        }
        Stop::Caller => {
            let message = "the cell was interrupted".to_owned();
            execution.status = ExecutionStatus::Error;
            execution.error.get_or_insert_with(|| message.clone());
            execution.failure =
                Some(Failure { kind: FailureKind::Interrupted, retry_safe: false, message });
        }
    }
}

/// An execution that passed a limit of its session, with its kernel alive or not.
pub(super) fn tell_exceeded(execution: &mut Execution, exceeded: Exceeded, limits: &Limits) {
    let mebibytes = |bytes: Option<u64>| bytes.unwrap_or_default() >> 20;
    let (kind, message) = match exceeded {
        Exceeded::Memory => {
            let most = mebibytes(limits.memory_bytes);
            (FailureKind::Oom, format!("the session's memory of {most} MiB was used up"))
        }
        Exceeded::Processes => {
            let most = limits.processes.unwrap_or_default();
            (
                FailureKind::Limit,
                format!("the session had more than its {most} processes and threads"),
            )
        }
        Exceeded::Disk => {
            let most = mebibytes(limits.disk_bytes);
            (FailureKind::Limit, format!("the session's files took more than their {most} MiB"))
        }
    };
    if execution.state_lost || execution.error.is_none() {
        execution.error = Some(message.clone());
    }
    execution.failure = Some(Failure { kind, retry_safe: false, message });
}

fn signal_name(signal: i32) -> &'static str {
    match signal {
        libc::SIGSEGV => " (SIGSEGV)",
        libc::SIGABRT => " (SIGABRT)",
        libc::SIGKILL => " (SIGKILL)",
        libc::SIGSYS => " (SIGSYS, a forbidden system call)",
        libc::SIGBUS => " (SIGBUS)",
        libc::SIGFPE => " (SIGFPE)",
        libc::SIGILL => " (SIGILL)",
        _ => "",
    }
}
