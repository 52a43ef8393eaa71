//! Packages in a sandbox at E2B: wheels alone, by the sandbox's own pip.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::Notify;

use super::ending::End;
use super::envd::Envd;
use super::error::E2bError;
use super::kernel::Run;
use super::process::{Exit, Followed, Process};
use crate::domain::event::OutputSink;
use crate::domain::id::ExecutionId;
use crate::domain::package::PackageSet;
use crate::sandbox::{PackagesError, SandboxError, pip};

const MAX_OUTPUT: usize = 64 << 10;
/// How packages are installed.
pub(super) struct Install<'a> {
    pub(super) packages: &'a PackageSet,
    /// The Python that they are for.
    pub(super) python: &'a str,
    pub(super) sandbox_id: &'a str,
    /// Where they are found; pip's own default when None.
    pub(super) index: Option<&'a str>,
    pub(super) limit: Duration,
}

impl Install<'_> {
    pub(super) async fn run(&self, envd: &Envd<'_>) -> Result<(), SandboxError> {
        let requirements = self.packages.texts();
        let arguments = pip::arguments(&requirements, self.index);
        let process = Process {
            program: self.python,
            arguments: &arguments,
            env: &BTreeMap::new(),
            folder: "/",
            tag: ExecutionId::new().to_string(),
            sandbox_id: self.sandbox_id,
        };
        let (never, sink) = (Notify::new(), OutputSink::discard());
        let run = Run { code: "", limit: self.limit, interrupt: &never, sink: &sink };
        let mut followed = Followed::new(MAX_OUTPUT);
        match process.follow(envd, &run, &mut followed).await {
            End::Closed if followed.exit == Some(Exit(0)) => Ok(()),
            End::TimedOut => Err(PackagesError::TooSlow.into()),
            End::NotStarted(error) => Err(error.into()),
            End::Closed => Err(pip::why(&followed.streams.into_stderr(), &requirements).into()),
            End::Cut | End::NoAnswer | End::Silent | End::Interrupted | End::Flooded => {
                Err(SandboxError::NotReady(Box::new(E2bError::TooSlow)))
            }
        }
    }
}
