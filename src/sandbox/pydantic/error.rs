//! How servers of Python in WebAssembly fail.

use std::io;
use std::path::PathBuf;

use crate::domain::reason::Reason;
use crate::sandbox::SandboxError;

/// What an installation, a process or a server could not do.
#[derive(Debug, thiserror::Error)]
pub enum PydanticError {
    /// Nothing is installed for this version of the service.
    #[error(
        "no Deno and Pyodide in {}: run `interpreterd guest install --provider pydantic`", .0.display()
    )]
    NotInstalled(PathBuf),
    /// A part of what was installed is gone, or cannot be read.
    #[error("{what} is missing in {}: run `interpreterd guest install --provider pydantic` again", folder.display())]
    Missing {
        /// The part.
        what: &'static str,
        /// The installation.
        folder: PathBuf,
    },
    /// A path that would open others.
    #[error("{} has a comma in its name, which Deno takes for the end of it: name another folder", .0.display())]
    Comma(PathBuf),
    /// A folder of the service cannot be made or read.
    #[error("a folder of the sandbox cannot be used")]
    Folder(#[source] io::Error),
    /// The process was not started.
    #[error("the server cannot be started")]
    Start(#[source] io::Error),
    /// It did not answer as MCP wants, or ended before it could. What it said is told.
    #[error("the server is no MCP server, or does not work{0}")]
    Handshake(Reason),
    /// It lacks the one tool that is needed.
    #[error("the server has no tool run_python_code")]
    NoTool,
    /// The HTTP client cannot be made.
    #[error("the server cannot be called")]
    Client(#[from] crate::net::ClientError),
    /// A server at a URL has its session already.
    #[error("the server at this URL serves one session at a time")]
    Taken,
    /// A call failed.
    #[error(transparent)]
    Call(#[from] CallError),
}

/// Why a call has no result.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// It did not reach the server: nothing was run.
    #[error("the server was not reached")]
    NotSent,
    /// The server ended, or said more than it may: it is not known what was done.
    #[error("the server has ended{0}")]
    Closed(Reason),
    /// There was no answer in time.
    #[error("the server gave no answer in time")]
    TooSlow,
    /// It refused: nothing was run.
    #[error("the server refuses{0}")]
    Refused(Reason),
    /// It answered with an error: it is not known what was done.
    #[error("the server failed{0}")]
    Failed(Reason),
    /// It answered something else.
    #[error("the server's answer is not {0}")]
    BadAnswer(&'static str),
}

impl From<PydanticError> for SandboxError {
    fn from(error: PydanticError) -> Self {
        match error {
            PydanticError::Taken => Self::Limited(Reason::new(&error.to_string())),
            PydanticError::Call(CallError::TooSlow) => Self::TooSlow, // to make one
            error => Self::NotReady(Box::new(error)),
        }
    }
}

/// A call of a sandbox that is there.
impl From<CallError> for SandboxError {
    fn from(error: CallError) -> Self {
        Self::NotReady(Box::new(error))
    }
}
