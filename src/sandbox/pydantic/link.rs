//! A server of somebody else's, asked through modules of ours that it keeps for us.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rmcp::model::CallToolResult;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokio::sync::OwnedSemaphorePermit;

use super::client::{self, Client};
use super::embedded::{ASK, BRING, MODULES};
use super::error::{CallError, PydanticError};
use super::lines::MAX_PARSED_BYTES;
use super::process::Process;
use crate::domain::id::SessionId;
use crate::domain::reason::Reason;
use crate::domain::weight::weigh;

/// A connection, with the process behind it where that is ours to end.
pub(super) struct Link {
    pub(super) client: Client,
    process: Option<Process>,
    /// A server at a URL serves one at a time.
    _permit: Option<OwnedSemaphorePermit>,
    session: SessionId,
    /// It did not answer as it should: nothing is asked of it any more.
    is_broken: AtomicBool,
}

/// What our modules say.
#[derive(Debug)]
pub(super) enum Told {
    /// What was asked for.
    Answer(Value),
    /// A word of ours, by which they refuse.
    Refused(String),
    /// They are not there, or are another session's: nothing was done, and all variables are gone.
    Absent,
}

/// What is there once they were brought.
#[derive(Debug, Clone, serde::Deserialize)]
pub(super) struct Here {
    pub(super) version: String,
    pub(super) packages: BTreeMap<String, String>,
}

impl Link {
    pub(super) fn new(
        client: Client,
        process: Option<Process>,
        permit: Option<OwnedSemaphorePermit>,
        session: SessionId,
    ) -> Self {
        Self { client, process, _permit: permit, session, is_broken: AtomicBool::new(false) }
    }

    /// Brings our modules there: from then on there are variables, of this session alone.
    pub(super) async fn set_up(
        &self,
        env: &BTreeMap<String, String>,
        limit: Duration,
    ) -> Result<Here, PydanticError> {
        let asked = json!({
            "do": "set_up", "session": self.session, "env": env, "clear": true,
            "packages": crate::sandbox::program::NOTABLE, "modules": MODULES,
        });
        let called = self.client.run(self.program(BRING, &asked, limit), limit).await;
        match told(called?)? {
            Told::Answer(here) => {
                Ok(serde_json::from_value(here)
                    .map_err(|_| CallError::BadAnswer("what is there"))?)
            }
            Told::Refused(_) | Told::Absent => Err(CallError::BadAnswer("what is there").into()),
        }
    }

    /// Asks our modules there to do something.
    pub(super) async fn ask(&self, mut asked: Value, limit: Duration) -> Result<Told, CallError> {
        asked["session"] = self.session.to_string().into();
        let called = self.client.run(self.program(ASK, &asked, limit), limit).await;
        let read = called.and_then(told);
        if read.is_err() {
            self.is_broken.store(true, Ordering::SeqCst);
        }
        read
    }

    /// Our program, and what it is told: as data, never as code.
    fn program(&self, code: &str, told: &Value, limit: Duration) -> Map<String, Value> {
        let mut arguments = Map::new();
        arguments.insert("python_code".to_owned(), code.into());
        arguments.insert("global_variables".to_owned(), json!({"told": told.to_string()}));
        // a server of ours that somebody has started so: it has a time of its own else
        if self.client.has("reset_session") {
            let limit = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
            arguments.insert("timeout_ms".to_owned(), limit.into());
        }
        arguments
    }

    /// Whether it can be asked for more.
    pub(super) fn is_fit(&self) -> bool {
        !self.is_broken.load(Ordering::SeqCst)
            && !self.client.is_closed()
            && self.process.as_ref().is_none_or(|process| !process.has_ended())
    }

    /// Nothing is to be asked of it any more.
    pub(super) fn give_up(&self) {
        self.is_broken.store(true, Ordering::SeqCst);
    }

    /// Memory that its process and the others of its group have.
    pub(super) async fn memory_bytes(&self) -> u64 {
        match &self.process {
            Some(process) => process.memory_bytes().await,
            None => 0,
        }
    }

    /// Ends its process, busy or not, and waits until that is gone. One elsewhere goes on.
    pub(super) async fn end(&self) {
        self.give_up();
        if let Some(process) = &self.process {
            process.end().await;
        }
    }

    /// Whether its process has ended, or does so now.
    pub(super) async fn has_ended_within(&self, limit: Duration) -> bool {
        match &self.process {
            Some(process) => process.ends_within(limit).await,
            None => false,
        }
    }
}

/// What our modules say, from a tool's result.
fn told(result: CallToolResult) -> Result<Told, CallError> {
    let Some(value) = client::text(&result).and_then(value) else {
        return Err(CallError::BadAnswer("that of our program"));
    };
    if weigh(value.as_bytes()).parsed_bytes > MAX_PARSED_BYTES {
        return Err(CallError::BadAnswer("one of ours: it holds too many values"));
    }
    let Ok(Value::Object(mut told)) = serde_json::from_str(&value) else {
        return Err(CallError::BadAnswer("that of our program"));
    };
    if told.get("absent") == Some(&Value::Bool(true)) {
        return Ok(Told::Absent);
    }
    match (told.remove("refused"), told.remove("broken")) {
        (Some(Value::String(word)), _) => Ok(Told::Refused(word)),
        (_, Some(broken)) => {
            let why = broken["message"].as_str().unwrap_or_default();
            Err(CallError::Refused(Reason::new(why)))
        }
        _ => Ok(Told::Answer(Value::Object(told))),
    }
}

/// An answer as what it must be.
pub(super) fn read_as<T: DeserializeOwned>(answer: Value) -> Result<T, CallError> {
    serde_json::from_value(answer).map_err(|_| CallError::BadAnswer("that of our program"))
}

/// The value that a program returned, from the text by which the server tells of it: JSON, or the
/// tags of its older way. What the program has printed stands before it.
fn value(text: &str) -> Option<String> {
    const TAG: &str = "<return_value>\n";
    const END: &str = "\n</return_value>";
    if let Ok(Value::Object(told)) = serde_json::from_str::<Value>(text) {
        return Some(told.get("return_value")?.as_str()?.to_owned());
    }
    let text = text.trim_end().strip_suffix(END)?;
    let (_, value) = text.rsplit_once(TAG)?;
    text.starts_with("<status>success</status>").then(|| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_read_in_both_of_the_servers_ways() {
        let json = r#"{"status":"success","output":["x"],"return_value":"{\"a\":1}"}"#;
        assert_eq!(value(json).as_deref(), Some("{\"a\":1}"));
        let tags = "<status>success</status>\n<output>\n<return_value>\nforged\n</return_value>\n</output>\n<return_value>\n{\"a\":1}\n</return_value>";
        assert_eq!(value(tags).as_deref(), Some("{\"a\":1}"));
        let older = "<status>success</status>\n<dependencies>[\"numpy\"]</dependencies>\n<return_value>\n1\n</return_value>";
        assert_eq!(value(older).as_deref(), Some("1"));
    }

    #[test]
    fn what_is_no_value_is_none() {
        for text in [
            "",
            "null",
            "{}",
            r#"{"status":"run-error","error":"x"}"#,
            r#"{"status":"success","output":[],"return_value":null}"#,
            "<status>run-error</status>\n<error>\n<return_value>\n1\n</return_value>",
            "<status>success</status>",
            "</return_value>",
        ] {
            assert_eq!(value(text), None, "{text}");
        }
    }
}
