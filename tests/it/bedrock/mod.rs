//! The provider `bedrock` against the double of AWS.

mod files;
mod interpreters;
mod live;
mod making;
mod outcomes;
mod programs;
mod recovery;
mod times;

use serde_json::{Value, json};

use crate::support::{Caller, Session};

/// Calls that hand code over.
const EXECUTE: &str = "tools/invoke executeCode$";
/// Calls that run a command.
const COMMAND: &str = "tools/invoke executeCommand$";

/// A session and the machine that it has.
async fn furnished(caller: &Caller) -> (Session<'_>, String) {
    let session = caller.session().await;
    let id = machine_of(&session).await;
    (session, id)
}

async fn machine_of(session: &Session<'_>) -> String {
    let (_, told) = session.caller.get(&session.path("")).await;
    told["sandbox_id"].as_str().unwrap().to_owned()
}

/// A fault in one machine's calls of a kind.
fn in_machine(id: &str, call: &str, fault: Value) -> Value {
    let mut fault = fault;
    fault["match"] = json!(call);
    fault["session"] = json!(id);
    fault
}

/// Whether variables and files are gone, as an execution tells it.
fn losses(execution: &Value) -> (bool, bool) {
    let told = |name: &str| execution[name].as_bool().unwrap();
    (told("state_lost"), told("files_lost"))
}
