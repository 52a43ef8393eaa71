//! A kernel at E2B: a context of our own, with one run at a time.

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::Method;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};

use super::access::{Door, Port, parsed, send, whole};
use super::collect::{Collector, Trouble};
use super::ending::{End, not_started};
use super::error::E2bError;
use super::lines::Lines;
use super::prelude::{self, Here};
use crate::domain::event::OutputSink;
use crate::domain::execution::Cell;
use crate::sandbox::program::mark;

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
/// Runs in a row that may break off without a word.
pub(super) const MUTE_AT_MOST: u32 = 2;
/// How often a kernel is made ready for one cell.
const PREPARED_AT_MOST: u32 = 3;
/// Once the end is told, a stream that ends by itself can be used again.
const LAST_WORDS: Duration = Duration::from_millis(50);
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
    /// Variables are gone, and no execution has told it yet.
    state_lost: bool,
    /// Runs in a row that broke off without a word.
    pub(super) mute_runs: u32,
}

/// What a probe found.
enum Probe {
    Listens,
    /// It answers, and was never set up.
    IsAnother,
    /// It does not answer.
    IsDeaf,
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
            state_lost: false,
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
            state_lost: false,
            mute_runs: 0,
        }
    }

    /// Makes it listen, with the session's environment and folder.
    pub(super) async fn make_fit(&mut self, door: &Door, env: &Env) -> Result<(), E2bError> {
        if let Some(since) = self.suspect {
            sleep_until(since + INTERRUPT_LANDS).await;
            match self.probe(door).await? {
                Probe::Listens => {}
                Probe::IsAnother => self.is_new(),
                Probe::IsDeaf => self.restart(door).await?,
            }
            self.suspect = None;
        }
        if self.has_lent && !self.take_back(door).await {
            self.restart(door).await?;
        }
        if !self.is_set_up {
            self.set_up(door, env).await?;
        }
        Ok(())
    }

    /// Makes it fit and gives it what the next cell is to have. A kernel that dies of that, or in which
    /// our cells do not work, is made anew.
    pub(super) async fn prepare(
        &mut self,
        door: &Door,
        env: &Env,
        cell: &Cell,
    ) -> Result<(), E2bError> {
        for _ in 0..PREPARED_AT_MOST {
            match self.lend_when_fit(door, env, cell).await {
                Ok(()) if self.is_set_up => return Ok(()),
                Ok(()) => {}
                Err(E2bError::NoInterpreter) if !self.is_set_up => {}
                Err(E2bError::NoInterpreter) => self.restart(door).await?,
                Err(error) => return Err(error),
            }
        }
        Err(E2bError::NoInterpreter)
    }

    async fn lend_when_fit(&mut self, door: &Door, env: &Env, cell: &Cell) -> Result<(), E2bError> {
        self.make_fit(door, env).await?;
        self.lend(door, cell).await
    }

    /// Whether it answers, and is the one that it was. An answer that says neither is an error.
    async fn probe(&mut self, door: &Door) -> Result<Probe, E2bError> {
        let mark = mark();
        match self.own(door, &prelude::take_back(&mark), PROBE_LIMIT).await {
            Ok(stdout) if !self.is_set_up || prelude::was_set_up(&stdout, &mark) => {
                self.has_lent = false;
                Ok(Probe::Listens)
            }
            Ok(_) => Ok(Probe::IsAnother),
            Err(E2bError::TooSlow | E2bError::NoInterpreter) => Ok(Probe::IsDeaf),
            Err(error) if error.has_status(&[404]) => Ok(Probe::IsDeaf),
            Err(error) => Err(error),
        }
    }

    /// The kernel is a new one: nothing of before is in it.
    fn is_new(&mut self) {
        self.state_lost |= self.is_set_up;
        self.count = 0;
        self.is_set_up = false;
        self.has_lent = false;
    }

    /// Whether variables are gone that nobody has been told of; from then on they are told of.
    pub(super) fn take_state_lost(&mut self) -> bool {
        std::mem::take(&mut self.state_lost)
    }

    /// Ends the kernel's process for a new one; where its context is gone, makes that.
    async fn restart(&mut self, door: &Door) -> Result<(), E2bError> {
        let path = format!("/contexts/{}/restart", self.id);
        let response = send(door.request(Method::POST, Port::Code, &path), RESTART_LIMIT).await?;
        match door.accepted(response).await {
            Ok(_) => {}
            Err(error) if error.has_status(&[404]) => self.id = create_context(door).await?,
            Err(error) => return Err(error),
        }
        self.is_new();
        self.suspect = None;
        Ok(())
    }

    /// Gives a fresh kernel the session's environment and folder. The first cell of a kernel is not as
    /// others are: the code interpreter puts lines of its own before it.
    pub(super) async fn set_up(&mut self, door: &Door, env: &Env) -> Result<Here, E2bError> {
        if let Err(E2bError::Gone) = self.own(door, "pass", OWN_LIMIT).await {
            return Err(E2bError::Gone);
        }
        let mark = mark();
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

    /// Takes back what the last cell was given. False when that failed.
    pub(super) async fn take_back(&mut self, door: &Door) -> bool {
        if self.has_lent && self.own(door, &prelude::take_back(&mark()), OWN_LIMIT).await.is_ok() {
            self.has_lent = false;
        }
        !self.has_lent
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
            End::Closed if !failed => {
                self.mute_runs = 0;
                return Ok(collector.into_stdout());
            }
            End::Closed => return Err(E2bError::NoInterpreter),
            End::NotStarted(error) => return Err(error),
            End::Cut if collector.lines == 0 => self.mute_runs += 1,
            End::Cut | End::Silent | End::Flooded | End::NoAnswer => {}
            End::TimedOut | End::Interrupted => {
                self.suspect = Some(Instant::now());
                return Err(E2bError::TooSlow);
            }
        }
        self.suspect = Some(Instant::now());
        // one that breaks off again and again has no kernel behind it
        let is_mute = self.mute_runs >= MUTE_AT_MOST;
        Err(if is_mute { E2bError::NoInterpreter } else { E2bError::NoAnswer })
    }

    /// Hands code over and reads what comes of it. Dropping the answer is what interrupts the kernel.
    pub(super) async fn run(
        &mut self,
        door: &Door,
        run: &Run<'_>,
        collector: &mut Collector,
    ) -> End {
        let end = read(door, &self.id, run, collector).await;
        // one that has run fewer cells than the one before it is another one
        if collector.count.is_some_and(|count| count <= self.count) {
            self.is_new();
        }
        self.count = collector.count.unwrap_or(self.count);
        if collector.trouble == Some(Trouble::KernelDied) {
            self.is_new();
        }
        end
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
        let patience = if collector.is_complete { LAST_WORDS } else { SILENCE };
        let piece = tokio::select! {
            piece = timeout(patience, response.chunk()) => piece,
            () = sleep_until(deadline), if !collector.is_complete => return End::TimedOut,
            () = run.interrupt.notified(), if !collector.is_complete => return End::Interrupted,
        };
        match piece {
            Ok(Ok(Some(_))) if collector.is_complete => return End::Closed,
            Ok(Ok(Some(piece))) => lines.push(&piece),
            Ok(Ok(None)) => return End::Closed,
            // what came before counts; a mark of the end makes a break none
            _ if collector.is_complete => return End::Closed,
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
