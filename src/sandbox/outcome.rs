//! How cells elsewhere end that do not end by themselves, and how that is told. Pure.

use std::time::Duration;

use super::streams::cut_text;
use crate::domain::execution::{ErrorDetail, Execution, ExecutionStatus, Failure, FailureKind};

const MAX_NAME_BYTES: usize = 1024;
const MAX_MESSAGE_BYTES: usize = 64 << 10;
const MAX_TRACEBACK_BYTES: usize = 256 << 10;

/// A code's own error, within bounds.
pub(super) fn error_detail(
    name: String,
    message: String,
    traceback: String,
    line: Option<u32>,
) -> ErrorDetail {
    ErrorDetail {
        name: cut_text(name, MAX_NAME_BYTES),
        message: cut_text(message, MAX_MESSAGE_BYTES),
        traceback: cut_text(traceback, MAX_TRACEBACK_BYTES),
        line,
    }
}

/// It ran out of time.
pub(super) fn tell_timeout(execution: &mut Execution, limit: Duration) {
    execution.status = ExecutionStatus::Timeout;
    execution.exit_code = Some(1);
    execution.error = Some(format!("the cell ran longer than its {} seconds", limit.as_secs_f64()));
}

/// It was interrupted, by its caller or with the service.
pub(super) fn tell_interrupt(execution: &mut Execution) {
    let message = "the cell was interrupted".to_owned();
    fail(execution, ExecutionStatus::Error, FailureKind::Interrupted, message);
}

/// It may or may not have run.
pub(super) fn unknown(execution: &mut Execution, message: &str) {
    fail(execution, ExecutionStatus::Unknown, FailureKind::SandboxLost, message.to_owned());
    execution.exit_code = None;
}

/// The session was ended while the code ran.
pub(super) fn tell_ended(execution: &mut Execution) {
    let message = "the session was ended while the code ran".to_owned();
    fail(execution, ExecutionStatus::Unknown, FailureKind::SandboxLost, message);
    execution.exit_code = None;
    execution.state_lost = true;
    execution.files_lost = true;
}

/// The sandbox is gone, with all that was in it.
pub(super) fn tell_gone(execution: &mut Execution, message: &str) {
    execution.state_lost = true;
    execution.files_lost = true;
    if let Some(failure) = &mut execution.failure {
        failure.message = format!("{}; {message}", failure.message);
        execution.error = Some(failure.message.clone());
    }
}

/// Something ended it that was not the code itself.
pub(super) fn fail(
    execution: &mut Execution,
    status: ExecutionStatus,
    kind: FailureKind,
    message: String,
) {
    execution.status = status;
    execution.exit_code = Some(1);
    execution.error = Some(message.clone());
    execution.failure = Some(Failure { kind, retry_safe: false, message });
}
