//! The provider `e2b` against the double of E2B's cloud.

mod live;
mod making;
mod outcomes;
mod packages;
mod recovery;
mod reports;
mod tls;

use serde_json::{Value, json};

use crate::support::{Caller, Session};

/// A session and the sandbox that it has.
async fn furnished(caller: &Caller) -> (Session<'_>, String) {
    let session = caller.session().await;
    let (_, told) = caller.get(&session.path("")).await;
    (session, told["sandbox_id"].as_str().unwrap().to_owned())
}

/// A fault in one sandbox's calls of a kind.
fn in_sandbox(id: &str, call: &str, fault: Value) -> Value {
    let mut fault = fault;
    fault["match"] = json!(call);
    fault["sandbox"] = json!(id);
    fault
}

/// What the proxy says of a sandbox that is not there.
fn gone(id: &str) -> Value {
    json!({"status": 502, "body": {"sandboxId": id, "message": "The sandbox was not found", "code": 502}})
}

/// A header of a call that the double was sent.
fn header(call: &Value, name: &str) -> Option<String> {
    let headers = call["headers"].as_object().unwrap();
    let found = headers.iter().find(|(header, _)| header.eq_ignore_ascii_case(name));
    found.map(|(_, value)| value.as_str().unwrap().to_owned())
}
