//! What a child is before it becomes Deno, or beside a command: it ends with the service.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use rustix::process::{Pid, Resource, Rlimit, Signal};
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};

use super::walls::{Walls, WallsError};

/// The first argument of the program when it is to be this.
pub const MODE: &str = "--pydantic-cage";
/// At 0 a core could still go to a program of the host.
const NO_CORE: u64 = 1;
const MAX_OPEN_FILES: u64 = 1024;
/// How far sandboxes stand back behind the service.
const NICE: i32 = 5;
/// Children of children end one after the other.
const MAX_ROUNDS: usize = 1000;

/// What to become.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Cage {
    /// The service: without it there is nothing to do.
    pub(super) parent: i32,
    /// The program and its arguments.
    pub(super) words: Vec<String>,
    pub(super) folder: Option<PathBuf>,
    /// The largest file that it may write.
    pub(super) file_bytes: Option<u64>,
    /// None for a command of somebody else's: nobody knows what it needs.
    pub(super) walls: Option<Walls>,
}

/// Why there is nothing to become.
#[derive(Debug, thiserror::Error)]
enum CageError {
    #[error("there is no plan")]
    NoPlan,
    #[error("the plan cannot be read")]
    Plan(#[from] serde_json::Error),
    #[error("the service has ended")]
    NoParent,
    #[error("{0}")]
    Step(&'static str, #[source] io::Error),
    #[error("the walls do not stand")]
    Walls(#[from] WallsError),
    #[error("cannot start {0}")]
    Start(String, #[source] io::Error),
}

/// Becomes what the second argument says. Gives a code only when that was not possible, or when a
/// command has ended.
#[must_use]
pub fn run() -> ExitCode {
    let plan = std::env::args().nth(2);
    let done = plan.ok_or(CageError::NoPlan).and_then(|plan| {
        let cage: Cage = serde_json::from_str(&plan)?;
        cage.live()
    });
    done.unwrap_or_else(|error| {
        eprintln!("{}", crate::domain::coded::chain(&error));
        ExitCode::FAILURE
    })
}

impl Cage {
    /// In order: ends with the service · limits · walls · becomes Deno. A command stays a child, whose
    /// children end with the service too.
    fn live(&self) -> Result<ExitCode, CageError> {
        let end = if self.walls.is_some() { Signal::KILL } else { Signal::TERM };
        let told = rustix::process::set_parent_process_death_signal(Some(end));
        step("cannot end with the service", told)?;
        let parent = rustix::process::getppid().map(Pid::as_raw_nonzero);
        if parent.is_none_or(|parent| parent.get() != self.parent) {
            return Err(CageError::NoParent);
        }
        self.limit()?;
        let Some(walls) = &self.walls else { return keep(self) };
        step("cannot stand back", rustix::process::nice(NICE))?;
        let landlock_abi = walls.stand()?;
        // the first line, while nobody else can write one
        eprintln!("{landlock_abi}");
        let _ = io::stderr().flush();
        Err(CageError::Start(self.words[0].clone(), self.command()?.exec()))
    }

    fn limit(&self) -> Result<(), CageError> {
        let limits = [
            (Resource::Core, Some(NO_CORE)),
            (Resource::Nofile, self.walls.is_some().then_some(MAX_OPEN_FILES)),
            (Resource::Fsize, self.file_bytes),
        ];
        for (resource, most) in limits {
            let Some(most) = most else { continue };
            let limit = Rlimit { current: Some(most), maximum: Some(most) };
            step("cannot limit itself", rustix::process::setrlimit(resource, limit))?;
        }
        Ok(())
    }

    #[expect(clippy::disallowed_methods, reason = "this is the sandbox's process")]
    fn command(&self) -> Result<Command, CageError> {
        let (program, arguments) = self.words.split_first().ok_or(CageError::NoPlan)?;
        let mut command = Command::new(program);
        command.args(arguments);
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        Ok(command)
    }
}

/// Keeps a command until it ends, or the service does: then nothing of it is left.
fn keep(cage: &Cage) -> Result<ExitCode, CageError> {
    let itself = Some(rustix::process::getpid());
    step("cannot adopt", rustix::process::set_child_subreaper(itself))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = step("cannot wait", runtime)?;
    let code = runtime.block_on(async {
        let mut ended = step("cannot wait", signal(SignalKind::terminate()))?;
        let mut child = tokio::process::Command::from(cage.command()?)
            .spawn()
            .map_err(|error| CageError::Start(cage.words[0].clone(), error))?;
        tokio::select! {
            status = child.wait() => Ok(status.ok().and_then(|status| status.code()).unwrap_or(1)),
            _ = ended.recv() => Ok(1),
        }
    });
    end_descendants();
    code.map(|code: i32| ExitCode::from(code as u8))
}

/// Ends all children, those of children too, which become its own when their parents end.
fn end_descendants() {
    for _ in 0..MAX_ROUNDS {
        let children = std::fs::read_to_string(children_of_itself()).unwrap_or_default();
        let mut children =
            children.split_whitespace().filter_map(|pid| pid.parse().ok()).peekable();
        if children.peek().is_none() {
            return;
        }
        for child in children.filter_map(Pid::from_raw) {
            let _ = rustix::process::kill_process(child, Signal::KILL);
        }
        let _ = rustix::process::wait(rustix::process::WaitOptions::empty());
    }
}

fn children_of_itself() -> PathBuf {
    let pid = std::process::id();
    Path::new("/proc/self/task").join(pid.to_string()).join("children")
}

fn step<T, E: Into<io::Error>>(what: &'static str, done: Result<T, E>) -> Result<T, CageError> {
    done.map_err(|error| CageError::Step(what, error.into()))
}
