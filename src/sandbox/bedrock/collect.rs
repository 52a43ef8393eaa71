//! What our tool in a sandbox tells of command lines: hostile input. Pure.

use serde::Deserialize;

use crate::domain::event::OutputSink;
use crate::domain::execution::{Cell, Execution, ExecutionStatus};
use crate::sandbox::outcome::{tell_interrupt, tell_timeout};
use crate::sandbox::told::{Found, Heard, Printed, Stopped, measured};

/// What our tool says of a command line, or of another program.
#[derive(Debug, Deserialize)]
pub(super) struct Ended {
    pub(super) exit_code: i32,
    pub(super) reason: Option<Stopped>,
    ms: f64,
    #[serde(flatten)]
    pub(super) printed: Printed,
    #[serde(flatten)]
    pub(super) found: Found,
}

/// What a program printed whose kernel did not live to tell.
#[derive(Debug, Deserialize)]
pub(super) struct Left {
    #[serde(flatten)]
    pub(super) printed: Printed,
    #[serde(flatten)]
    pub(super) found: Found,
}

impl Ended {
    /// Tells all of it but the files. Gives what is known of those.
    pub(super) fn tell(
        self,
        execution: &mut Execution,
        cell: &Cell,
        (cap, heard, sink): (usize, &mut Heard, &OutputSink),
    ) -> Found {
        execution.duration_ms = Some(measured(self.ms));
        self.printed.tell(execution, cap, heard, sink);
        match (self.reason, self.exit_code) {
            (Some(Stopped::Timeout), _) => tell_timeout(execution, cell.timeout),
            (Some(Stopped::Interrupted), _) => tell_interrupt(execution),
            (None, 0) => {
                execution.status = ExecutionStatus::Success;
                execution.exit_code = Some(0);
            }
            (None, code) => {
                execution.status = ExecutionStatus::Error;
                execution.exit_code = Some(code);
                execution.error = Some(format!("exit code {code}"));
            }
        }
        self.found
    }
}
