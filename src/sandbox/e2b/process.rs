//! Processes in a sandbox, followed to their end: command lines and pip.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until, timeout};

use super::ending::{End, not_started};
use super::envd::{Envd, Failed};
use super::envelope::{Message, Messages};
use super::error::{E2bError, Refusal};
use super::kernel::Run;
use crate::domain::coded::chain;
use crate::domain::reason::Reason;
use crate::sandbox::streams::{Stream, Streams};

/// envd is asked for a sign of life every 15 seconds.
const SILENCE: Duration = Duration::from_secs(60);
/// Once the end is told, little more can come.
const LAST_WORDS: Duration = Duration::from_millis(50);
const KILL_LIMIT: Duration = Duration::from_secs(10);
/// By this a process and all that come of it are found again, in whatever group they are.
const TAG: &str = "PROCESS_TAG";
/// The same for all that were ever started in a sandbox.
const SANDBOX_TAG: &str = "SANDBOX_TAG";
/// Three looks: what is forked during one is found by the next.
const KILL: &str = "for i in 1 2 3; do for f in $(grep -lzsx \"$1\" /proc/[0-9]*/environ); do p=${f#/proc/}; kill -KILL \"${p%/environ}\" 2>/dev/null; done; done";

/// A process that is to be started.
pub(super) struct Process<'a> {
    pub(super) program: &'a str,
    pub(super) arguments: &'a [&'a str],
    pub(super) env: &'a BTreeMap<String, String>,
    pub(super) folder: &'a str,
    /// Names it and all that come of it.
    pub(super) tag: String,
    /// Names all processes of the sandbox that were started so.
    pub(super) sandbox_id: &'a str,
}

/// What a process put out, and how it ended.
pub(super) struct Followed {
    pub(super) streams: Streams,
    pub(super) exit: Option<Exit>,
}

/// How a process ended: its code, or 128 and the number of its signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Exit(pub(super) i32);

#[derive(Default, Deserialize)]
struct Said {
    #[serde(default)]
    event: Event,
}

#[derive(Default, Deserialize)]
struct Event {
    data: Option<Data>,
    end: Option<Ended>,
}

#[derive(Deserialize)]
struct Data {
    stdout: Option<String>,
    stderr: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Ended {
    #[serde(default)]
    exit_code: i32,
    #[serde(default)]
    exited: bool,
    #[serde(default)]
    status: String,
}

#[derive(Default, Deserialize)]
struct Last {
    error: Option<Failed>,
}

impl Process<'_> {
    /// Starts it and follows it to its end; at its deadline, or when told to stop, it is killed with all
    /// that came of it.
    pub(super) async fn follow(
        &self,
        envd: &Envd<'_>,
        run: &Run<'_>,
        followed: &mut Followed,
    ) -> End {
        let end = self.read(envd, run, followed).await;
        // nothing of it may run beside later cells
        if !matches!(end, End::Closed | End::NotStarted(_)) {
            kill(envd, &format!("{TAG}={}", self.tag)).await;
        }
        end
    }

    async fn read(&self, envd: &Envd<'_>, run: &Run<'_>, followed: &mut Followed) -> End {
        let deadline = Instant::now() + run.limit;
        let mut env = self.env.clone();
        env.insert(TAG.to_owned(), self.tag.clone());
        env.insert(SANDBOX_TAG.to_owned(), self.sandbox_id.to_owned());
        let process =
            json!({"cmd": self.program, "args": self.arguments, "envs": env, "cwd": self.folder});
        let mut response = tokio::select! {
            response = envd.start(&process) => match response {
                Ok(response) => response,
                Err(error) => return not_started(error),
            },
            () = sleep_until(deadline) => return End::TimedOut,
            () = run.interrupt.notified() => return End::Interrupted,
        };
        let (mut messages, mut began) = (Messages::default(), false);
        loop {
            if followed.exit.is_some() {
                let _ = timeout(LAST_WORDS, response.chunk()).await; // so that the connection can be used again
                return End::Closed;
            }
            let piece = tokio::select! {
                piece = timeout(SILENCE, response.chunk()) => piece,
                () = sleep_until(deadline) => return End::TimedOut,
                () = run.interrupt.notified() => return End::Interrupted,
            };
            match piece {
                Ok(Ok(Some(piece))) => messages.push(&piece),
                Ok(Ok(None) | Err(_)) => return End::Cut,
                Err(_) => return End::Silent,
            }
            loop {
                match messages.next() {
                    Ok(None) => break,
                    Ok(Some(Message::Next(message))) => {
                        began = true;
                        followed.take(&message, run);
                    }
                    Ok(Some(Message::Last(message))) => return last(&message, began, followed),
                    Err(_) => return End::Cut,
                }
            }
            if followed.exit.is_none() && Instant::now() >= deadline {
                return End::TimedOut;
            }
        }
    }
}

impl Followed {
    pub(super) fn new(output_cap: usize) -> Self {
        Self { streams: Streams::new(output_cap), exit: None }
    }

    /// What cannot be read is passed over.
    fn take(&mut self, message: &[u8], run: &Run<'_>) {
        let Said { event } = serde_json::from_slice(message).unwrap_or_default();
        if let Some(Data { stdout, stderr }) = event.data {
            for (stream, text) in [(Stream::Stdout, stdout), (Stream::Stderr, stderr)] {
                let bytes = text.and_then(|text| STANDARD.decode(text).ok());
                self.streams.push(stream, &bytes.unwrap_or_default(), run.sink);
            }
        }
        if let Some(ended) = event.end {
            // the first end is the end
            self.exit = self.exit.or_else(|| exit(&ended));
        }
    }
}

/// Ends all commands that an earlier start of the service has left running in a sandbox.
pub(super) async fn end_all(envd: &Envd<'_>, sandbox_id: &str) {
    kill(envd, &format!("{SANDBOX_TAG}={sandbox_id}")).await;
}

async fn kill(envd: &Envd<'_>, tag: &str) {
    let process = json!({"cmd": "/bin/bash", "args": ["-c", KILL, "bash", tag], "cwd": "/"});
    let killed = async {
        let mut response = envd.start(&process).await?;
        while response.chunk().await.map_err(super::access::failed)?.is_some() {}
        Ok::<(), E2bError>(())
    };
    match timeout(KILL_LIMIT, killed).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            let cause = chain(&error);
            tracing::warn!(error = cause, "a process in a sandbox was not killed");
        }
        Err(_) => tracing::warn!("a process in a sandbox was not killed in time"),
    }
}

/// None where an end says nothing of how.
fn exit(ended: &Ended) -> Option<Exit> {
    let signal = match ended.status.strip_prefix("signal: ").map(str::trim) {
        Some("hangup") => 1,
        Some("interrupt") => 2,
        Some("quit") => 3,
        Some("illegal instruction") => 4,
        Some("trace/breakpoint trap") => 5,
        Some("aborted") => 6,
        Some("bus error") => 7,
        Some("floating point exception") => 8,
        Some("killed") => 9,
        Some("user defined signal 1") => 10,
        Some("segmentation fault") => 11,
        Some("user defined signal 2") => 12,
        Some("broken pipe") => 13,
        Some("alarm clock") => 14,
        Some("terminated") => 15,
        _ if ended.exited || ended.exit_code > 0 => {
            let code = u8::try_from(ended.exit_code).unwrap_or(1);
            return Some(Exit(code.into()));
        }
        _ if ended.exit_code < 0 => return Some(Exit(1)),
        _ => return None,
    };
    Some(Exit(128 + signal))
}

/// What the last message of a stream says: nothing, or how the call failed.
fn last(message: &[u8], began: bool, followed: &Followed) -> End {
    if followed.exit.is_some() {
        return End::Closed;
    }
    let Last { error } = serde_json::from_slice(message).unwrap_or_default();
    match error {
        Some(error) if !began && says_not_started(&error) => {
            End::NotStarted(E2bError::Refused(Refusal {
                status: 200,
                code: match error.code {
                    Value::String(code) => Some(code),
                    _ => None,
                },
                reason: Reason::new(&error.message),
                after: None,
                again: None,
                is_quota: false,
            }))
        }
        _ => End::Cut,
    }
}

/// These are told before anything is started; others may come after that.
fn says_not_started(error: &Failed) -> bool {
    let codes = [
        "invalid_argument",
        "not_found",
        "permission_denied",
        "resource_exhausted",
        "unauthenticated",
        "unimplemented",
    ];
    error.code.as_str().is_some_and(|code| codes.contains(&code))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(text: &str) -> Option<Exit> {
        exit(&serde_json::from_str(text).expect("an end"))
    }

    #[test]
    fn exits_are_told_as_shells_do() {
        for (text, code) in [
            (r#"{"exited":true,"status":"exit status 0"}"#, 0),
            (r#"{"exited":true,"exitCode":3,"status":"exit status 3","error":"exit status 3"}"#, 3),
            (r#"{"exitCode":-1,"status":"signal: killed","error":"signal: killed"}"#, 137),
            (r#"{"exitCode":-1,"status":"signal: segmentation fault"}"#, 139),
            (r#"{"exitCode":-1,"status":"something"}"#, 1),
        ] {
            assert_eq!(ended(text), Some(Exit(code)), "{text}");
        }
        assert_eq!(ended(r#"{"exited":true,"exitCode":-5}"#), Some(Exit(1)));
        assert_eq!(ended("{}"), None, "that is no success");
    }

    #[test]
    fn a_stream_that_ends_with_an_error_before_it_began_was_not_started() {
        let followed = Followed::new(10);
        let message =
            br#"{"error":{"code":"invalid_argument","message":"cwd '/x' does not exist"}}"#;
        let End::NotStarted(error) = last(message, false, &followed) else { panic!("not started") };
        assert!(error.to_string().contains("cwd '/x' does not exist"), "{error}");
        assert!(matches!(last(message, true, &followed), End::Cut));
        let late = br#"{"error":{"code":"unavailable","message":"x"}}"#;
        assert!(matches!(last(late, false, &followed), End::Cut), "it may have begun");
        assert!(matches!(last(b"{}", true, &followed), End::Cut), "no end was told");
        let told = Followed { exit: Some(Exit(0)), ..Followed::new(10) };
        assert!(matches!(last(b"{}", true, &told), End::Closed));
    }
}
