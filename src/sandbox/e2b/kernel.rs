//! A kernel at E2B: a context of our own, with one run at a time.

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::Method;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};

use super::access::{Door, Port, parsed, send, whole};
use super::collect::Collector;
use super::ending::{End, not_started};
use super::error::E2bError;
use super::lines::Lines;
use super::prelude::{self, Here};
use crate::domain::event::OutputSink;
use crate::domain::execution::Cell;

/// Even a run that is silent has a sign of life every five seconds.
const SILENCE: Duration = Duration::from_secs(60);
/// How long an interrupt takes to reach the kernel once the connection has ended: a run that comes
/// sooner is never run at all.
const INTERRUPT_LANDS: Duration = Duration::from_secs(1);
const PROBE_LIMIT: Duration = Duration::from_secs(5);
/// For cells of our own.
const OWN_LIMIT: Duration = Duration::from_secs(20);
const CONTEXT_LIMIT: Duration = Duration::from_secs(30);
/// A restart takes some three seconds when the kernel is busy.
const RESTART_LIMIT: Duration = Duration::from_secs(10);
const MAX_ANSWER_BYTES: usize = 1 << 20;
const MAX_OWN_OUTPUT: usize = 64 << 10;
/// Folders for the session's files, the first that can be made.
const FOLDERS: [&str; 2] = ["/files", "~/files"];

/// A session's environment.
pub(super) type Env = BTreeMap<String, String>;

/// A context and what is known of it.
pub(super) struct Kernel {
    pub(super) id: String,
    /// How many cells it had run at our last look: fewer at the next one, and it is another one.
    count: u32,
    /// It has the session's environment and folder.
    is_set_up: bool,
    /// A cell was given what the next one must not have.
    has_lent: bool,
    /// Since when it is not known whether it listens.
    pub(super) suspect: Option<Instant>,
    /// Runs in a row that broke off without a word.
    pub(super) mute_runs: u32,
}

#[derive(Deserialize)]
struct Context {
    id: String,
}

impl Kernel {
    /// A fresh one in a sandbox.
    pub(super) async fn create(door: &Door) -> Result<Self, E2bError> {
        Ok(Self {
            id: create_context(door).await?,
            count: 0,
            is_set_up: false,
            has_lent: false,
            suspect: None,
            mute_runs: 0,
        })
    }

    /// One that an earlier start of the service has set up, which may still be running a cell of then.
    pub(super) fn found(id: String) -> Self {
        Self {
            id,
            count: 0,
            is_set_up: true,
            has_lent: true, // perhaps
            suspect: Some(Instant::now()),
            mute_runs: 0,
        }
    }

    /// Makes it listen, with the session's setting. True when variables of earlier cells are gone.
    pub(super) async fn make_fit(&mut self, door: &Door, env: &Env) -> Result<bool, E2bError> {
        let mut state_lost = false;
        if let Some(since) = self.suspect {
            sleep_until(since + INTERRUPT_LANDS).await;
            state_lost = !self.listens(door).await?;
            if state_lost {
                self.restart(door).await?;
            }
            self.suspect = None;
        }
        if self.has_lent {
            self.own(door, &prelude::take_back(&prelude::mark()), OWN_LIMIT).await?;
            self.has_lent = false;
        }
        if !self.is_set_up {
            self.set_up(door, env).await?;
        }
        Ok(state_lost)
    }

    /// Whether it answers, and is the one that it was.
    async fn listens(&mut self, door: &Door) -> Result<bool, E2bError> {
        let mark = prelude::mark();
        match self.own(door, &prelude::take_back(&mark), PROBE_LIMIT).await {
            Ok(stdout) => {
                self.has_lent = false;
                Ok(!self.is_set_up || prelude::was_set_up(&stdout, &mark))
            }
            Err(E2bError::Gone) => Err(E2bError::Gone),
            Err(_) => Ok(false),
        }
    }

    /// The kernel is a new one: nothing of before is in it.
    pub(super) fn is_new(&mut self) {
        self.count = 0;
        self.is_set_up = false;
        self.has_lent = false;
    }

    /// Ends the kernel's process for a new one; where its context is gone too, makes that.
    async fn restart(&mut self, door: &Door) -> Result<(), E2bError> {
        let path = format!("/contexts/{}/restart", self.id);
        let restarted =
            match send(door.request(Method::POST, Port::Code, &path), RESTART_LIMIT).await {
                Ok(response) => door.accepted(response).await.map(drop),
                Err(error) => Err(error),
            };
        match restarted {
            Ok(()) => {}
            Err(error @ (E2bError::Gone | E2bError::TooSlow)) => return Err(error),
            Err(_) => self.id = create_context(door).await?,
        }
        self.is_new();
        Ok(())
    }

    /// Another context in place of one that is not there any more.
    pub(super) async fn replace(&mut self, door: &Door, env: &Env) -> Result<(), E2bError> {
        self.id = create_context(door).await?;
        self.is_new();
        self.set_up(door, env).await.map(drop)
    }

    /// Gives a fresh kernel the session's environment and folder. The first cell of a kernel is not as
    /// others are: the code interpreter puts lines of its own before it.
    pub(super) async fn set_up(&mut self, door: &Door, env: &Env) -> Result<Here, E2bError> {
        if let Err(E2bError::Gone) = self.own(door, "pass", OWN_LIMIT).await {
            return Err(E2bError::Gone);
        }
        let mark = prelude::mark();
        let cell = prelude::set_up(env, &FOLDERS, &mark);
        let stdout = self.own(door, &cell, OWN_LIMIT).await?;
        self.is_set_up = true;
        prelude::here(&stdout, &mark).ok_or(E2bError::NoInterpreter)
    }

    /// Lets it find modules that were installed after it began.
    pub(super) async fn forget_modules(&mut self, door: &Door) -> Result<(), E2bError> {
        let code = "__import__('importlib').invalidate_caches()";
        self.own(door, code, OWN_LIMIT).await.map(drop)
    }

    /// Gives the next cell what is its alone.
    pub(super) async fn lend(&mut self, door: &Door, cell: &Cell) -> Result<(), E2bError> {
        if cell.env.is_empty() && cell.stdin.is_none() {
            return Ok(());
        }
        self.has_lent = true;
        let lending = prelude::lend(&cell.env, cell.stdin.as_deref());
        self.own(door, &lending, OWN_LIMIT).await.map(drop)
    }

    /// Takes back what the last cell was given; later, where that fails.
    pub(super) async fn take_back(&mut self, door: &Door) {
        if self.has_lent
            && self.own(door, &prelude::take_back(&prelude::mark()), OWN_LIMIT).await.is_ok()
        {
            self.has_lent = false;
        }
    }

    /// Runs a cell of ours and gives what it printed.
    pub(super) async fn own(
        &mut self,
        door: &Door,
        code: &str,
        limit: Duration,
    ) -> Result<String, E2bError> {
        let mut collector = Collector::new(MAX_OWN_OUTPUT);
        let never = Notify::new();
        let run = Run { code, limit, interrupt: &never, sink: &OutputSink::discard() };
        let end = self.run(door, &run, &mut collector).await;
        let failed = collector.error.is_some() || collector.trouble.is_some();
        match end {
            End::Closed if !failed => Ok(collector.into_stdout()),
            End::Closed | End::Cut | End::Silent | End::Flooded | End::NoAnswer => {
                Err(E2bError::NoInterpreter)
            }
            End::NotStarted(error) => Err(error),
            End::TimedOut | End::Interrupted => Err(E2bError::TooSlow),
        }
    }

    /// Hands code over and reads what comes of it. Dropping the answer is what interrupts the kernel.
    pub(super) async fn run(
        &mut self,
        door: &Door,
        run: &Run<'_>,
        collector: &mut Collector,
    ) -> End {
        let end = read(door, &self.id, run, collector).await;
        if let Some(count) = collector.count {
            self.count = count;
        }
        end
    }

    /// How many cells it has run, as far as it said so.
    pub(super) fn count(&self) -> u32 {
        self.count
    }
}

/// Code on its way.
pub(super) struct Run<'a> {
    pub(super) code: &'a str,
    pub(super) limit: Duration,
    pub(super) interrupt: &'a Notify,
    pub(super) sink: &'a OutputSink,
}

async fn read(door: &Door, context_id: &str, run: &Run<'_>, collector: &mut Collector) -> End {
    let deadline = Instant::now() + run.limit;
    let body =
        json!({"code": run.code, "context_id": context_id, "language": null, "env_vars": null});
    let handing_over = async {
        let response = door.request(Method::POST, Port::Code, "/execute").json(&body).send().await;
        door.accepted(response.map_err(super::access::failed)?).await
    };
    let mut response = tokio::select! {
        response = handing_over => match response {
            Ok(response) => response,
            Err(error) => return not_started(error),
        },
        () = sleep_until(deadline) => return End::TimedOut,
        () = run.interrupt.notified() => return End::Interrupted,
    };
    let mut lines = Lines::default();
    loop {
        let piece = tokio::select! {
            piece = timeout(SILENCE, response.chunk()) => piece,
            () = sleep_until(deadline) => return End::TimedOut,
            () = run.interrupt.notified() => return End::Interrupted,
        };
        match piece {
            Ok(Ok(Some(piece))) => lines.push(&piece),
            Ok(Ok(None)) => return End::Closed,
            // what came before the break counts; a mark of the end makes the break none
            Ok(Err(_)) if collector.is_complete => return End::Closed,
            Ok(Err(_)) => return End::Cut,
            Err(_) => return End::Silent,
        }
        while let Some(read) = lines.next() {
            collector.take(read, run.sink);
        }
        if collector.is_flooded() {
            return End::Flooded;
        }
        // a program that prints for ever must not outrun its deadline
        if Instant::now() >= deadline && !collector.is_complete {
            return End::TimedOut;
        }
    }
}

async fn create_context(door: &Door) -> Result<String, E2bError> {
    let request = door.request(Method::POST, Port::Code, "/contexts");
    let response = send(request.json(&json!({"language": "python"})), CONTEXT_LIMIT).await?;
    let response = door.accepted(response).await?;
    let body = timeout(CONTEXT_LIMIT, whole(response, MAX_ANSWER_BYTES)).await;
    let context: Context = parsed(&body.map_err(|_| E2bError::TooSlow)??)?;
    let is_id = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if context.id.is_empty() || context.id.len() > 128 || !context.id.chars().all(is_id) {
        return Err(E2bError::BadAnswer("the id of a context"));
    }
    Ok(context.id)
}
