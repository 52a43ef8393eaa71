//! What a server answers to a cell, as an execution: hostile input. Pure.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::domain::event::OutputSink;
use crate::domain::execution::{Cell, Execution, ExecutionStatus, FailureKind};
use crate::sandbox::outcome::fail;
use crate::sandbox::told::{Found, Heard, Outcome};

/// What is said of a cell.
#[derive(Debug, Deserialize)]
pub(super) struct Answer {
    #[serde(flatten)]
    outcome: Outcome,
    /// Its variables are gone.
    state_lost: bool,
    /// The interpreter itself ended.
    ended: Option<Ended>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Ended {
    Killed,
    Oom,
}

impl Answer {
    /// Reads what a server says; None where it is none.
    pub(super) fn read(told: Value) -> Option<Self> {
        serde_json::from_value(told).ok()
    }

    /// Tells it. Gives what is known of the files.
    pub(super) fn tell(
        self,
        execution: &mut Execution,
        cell: &Cell,
        hearing: (usize, &mut Heard, &OutputSink),
    ) -> Found {
        let found = self.outcome.tell(execution, cell, Vec::new(), hearing);
        execution.state_lost |= self.state_lost;
        let is_own = execution.status != ExecutionStatus::Timeout && execution.failure.is_none();
        match self.ended {
            Some(Ended::Killed) if is_own => {
                let message = "the interpreter ended: it crashed".to_owned();
                fail(execution, ExecutionStatus::Error, FailureKind::Killed, message);
            }
            Some(Ended::Oom) if is_own => {
                let message = "the interpreter ended: it ran out of memory".to_owned();
                fail(execution, ExecutionStatus::Error, FailureKind::Oom, message);
            }
            Some(_) | None => {}
        }
        execution.text = execution.display_text();
        found
    }
}

/// The arguments that our server takes for a cell.
pub(super) fn arguments(
    cell: &Cell,
    session_env: &Value,
    output_bytes: usize,
) -> Map<String, Value> {
    let told = json!({
        "python_code": cell.code,
        "timeout_ms": u64::try_from(cell.timeout.as_millis()).unwrap_or(u64::MAX).max(1),
        "output_bytes": output_bytes,
        "session_env": session_env,
        "env": cell.env,
    });
    let Value::Object(mut told) = told else { return Map::new() };
    if let Some(stdin) = &cell.stdin {
        told.insert("stdin".to_owned(), stdin.as_str().into());
    }
    told
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::*;
    use crate::domain::execution::Language;
    use crate::domain::id::{ExecutionId, RunId, SessionId};

    fn told(answer: Value) -> Execution {
        let cell = Cell {
            id: ExecutionId::new(),
            run_id: RunId::new(),
            session_id: SessionId::new(),
            code: "1".into(),
            language: Language::Python,
            timeout: Duration::from_secs(1),
            env: BTreeMap::new(),
            stdin: None,
        };
        let mut execution = Execution::of(&cell);
        let answer = Answer::read(answer).expect("an answer");
        answer.tell(&mut execution, &cell, (100, &mut Heard::nothing(), &OutputSink::discard()));
        execution
    }

    fn answer(more: Value) -> Value {
        let mut answer = json!({
            "exit_code": 0, "error": null, "count": 3, "ms": 1.5,
            "stdout": {"head": "aGk=", "tail": "", "bytes": 2},
            "stderr": {"head": "", "tail": "", "bytes": 0},
            "late": "", "outputs": [], "cut": false, "reason": null, "files": null,
            "files_cut": false, "packages": [], "state_lost": false, "ended": null
        });
        let (Value::Object(answer), Value::Object(more)) = (&mut answer, more) else {
            panic!("two")
        };
        answer.extend(more);
        Value::Object(std::mem::take(answer))
    }

    #[test]
    fn a_success_is_told_whole() {
        let execution = told(answer(json!({})));
        assert_eq!((execution.status, execution.exit_code), (ExecutionStatus::Success, Some(0)));
        assert_eq!((execution.stdout.as_str(), execution.execution_count), ("hi", Some(3)));
        assert!(!execution.state_lost && execution.failure.is_none());
    }

    #[test]
    fn an_interpreter_that_ended_is_told_as_what_ended_it() {
        for (ended, kind) in [("killed", FailureKind::Killed), ("oom", FailureKind::Oom)] {
            let execution = told(answer(json!({"ended": ended, "state_lost": true})));
            assert_eq!(execution.failure.map(|failure| failure.kind), Some(kind));
            assert!(execution.state_lost && execution.status == ExecutionStatus::Error);
        }
        let lost = json!({"ended": "killed", "state_lost": true, "reason": "timeout"});
        let execution = told(answer(lost));
        assert_eq!((execution.status, execution.state_lost), (ExecutionStatus::Timeout, true));
    }

    #[test]
    fn what_is_no_answer_is_none() {
        for nothing in [json!(null), json!({}), json!({"exit_code": "0"}), json!([1])] {
            assert!(Answer::read(nothing).is_none());
        }
        assert!(
            Answer::read(answer(json!({"stdout": {"head": "%", "tail": "", "bytes": 1}})))
                .is_none()
        );
    }
}
