//! The provider `local`: sandboxes of our own on this host.

mod bounds;
mod cgroup;
mod collect;
mod ending;
mod error;
mod folders;
mod frames;
mod guest;
mod handle;
mod hierarchy;
mod install;
mod installer;
mod keeper;
mod kernel;
mod layers;
mod level;
mod numbers;
mod plan;
mod range;
mod room;
mod root;
mod seccomp;
mod session;
mod slots;
mod sys;
mod tap;
pub mod user;
mod verdict;
mod warden;
mod watch;
mod wire;
mod workshop;
mod zygote;

use std::sync::Arc;

use async_trait::async_trait;

pub use error::LocalError;
pub use guest::GuestError;
pub use install::{InstallError, install};
pub use warden::{MODE as WARDEN_MODE, run as run_warden};

use self::installer::Installer;
use self::level::Trial;
use self::session::LocalSandbox;
use self::user::Taken;
use self::workshop::Workshop;
use crate::config::Settings;
use crate::domain::event::OutputSink;
use crate::domain::id::SessionId;
use crate::domain::limits::{Limits, LimitsRequest};
use crate::domain::package::PackageSet;
use crate::domain::provider::{Capabilities, IsolationLevel};
use crate::domain::session::SandboxRecord;
use crate::sandbox::{
    Progress, ProviderReport, Sandbox, SandboxError, SandboxProvider, SandboxSpec,
};

const TRIAL_LIFETIME: std::time::Duration = std::time::Duration::from_secs(60);

/// Makes rooms on this host; its warden starts with the first one and again after it has ended.
pub struct LocalProvider {
    workshop: Arc<Workshop>,
    installer: Arc<Installer>,
}

impl LocalProvider {
    /// A provider that has started nothing yet. `taken`: what the service took at its start.
    #[must_use]
    pub fn new(settings: &Settings, taken: Taken) -> Self {
        let workshop = Arc::new(Workshop::new(settings, taken));
        Self { installer: Installer::new(settings, Arc::clone(&workshop)), workshop }
    }

    /// Makes a session and tries in it what no session may do.
    async fn trial(&self) -> Result<(), SandboxError> {
        let spec = SandboxSpec {
            session_id: SessionId::new(),
            limits: self.workshop.most,
            env: std::collections::BTreeMap::new(),
            packages: PackageSet::default(),
            lifetime: TRIAL_LIFETIME,
            primed: false,
        };
        let sandbox = self.create(&spec).await?;
        let trial = Trial::new();
        let execution = sandbox
            .execute(&trial.cell(spec.session_id, &self.workshop.data_dir), &OutputSink::discard())
            .await;
        sandbox.terminate().await;
        Trial::judge(self.workshop.level(), &execution?).map_err(not_ready)
    }
}

#[async_trait]
impl SandboxProvider for LocalProvider {
    fn kind(&self) -> &'static str {
        "local"
    }

    fn capabilities(&self) -> Capabilities {
        let level = self.workshop.level();
        Capabilities {
            state: true,
            state_after_timeout: true,
            upload: true,
            download: true,
            shell: true,
            packages: self.installer.is_on(),
            network: level == IsolationLevel::None,
            absolute_files_dir: level == IsolationLevel::Namespaced,
            streaming: true,
        }
    }

    fn limits(&self, request: &LimitsRequest) -> Result<Limits, SandboxError> {
        bounds::granted(&self.workshop.most, request)
    }

    async fn installs(&self, packages: &PackageSet) -> bool {
        self.installer.installs(packages).await
    }

    async fn install(
        &self,
        packages: &PackageSet,
        progress: &Progress,
    ) -> Result<(), SandboxError> {
        self.installer.layer(packages, progress).await.map(drop)
    }

    fn start(&self) {
        tokio::spawn(Arc::clone(&self.installer).prepare());
    }

    async fn create(&self, spec: &SandboxSpec) -> Result<Arc<dyn Sandbox>, SandboxError> {
        let layer = self.installer.layer(&spec.packages, &Progress::default()).await?;
        let sandbox = LocalSandbox::create(Arc::clone(&self.workshop), spec, layer).await;
        Ok(Arc::new(sandbox.map_err(not_ready)?))
    }

    /// Rooms die with the service: there is never one to find again.
    async fn attach(&self, _: &SandboxRecord) -> Result<Option<Arc<dyn Sandbox>>, SandboxError> {
        Ok(None)
    }

    async fn list(&self) -> Result<Vec<SandboxRecord>, SandboxError> {
        Ok(Vec::new())
    }

    async fn end(&self, _: &SandboxRecord) -> Result<(), SandboxError> {
        Ok(())
    }

    async fn check(&self) -> Result<ProviderReport, SandboxError> {
        self.trial().await?;
        let zygote = self.workshop.zygote().await.map_err(not_ready)?;
        Ok(ProviderReport {
            isolation: Some(zygote.isolation.clone()),
            python: Some(zygote.python.clone()),
            packages: zygote.packages.clone(),
        })
    }

    async fn close(&self) {
        self.workshop.close().await;
    }
}

/// Reads bytes as a session's frames; there for the fuzz target alone.
#[cfg(fuzzing)]
pub fn read_frames(pieces: &[&[u8]]) {
    let mut reader = frames::FrameReader::default();
    for piece in pieces {
        reader.push(piece);
        while let Ok(Some(_)) = reader.next() {}
    }
}

fn not_ready(error: LocalError) -> SandboxError {
    SandboxError::NotReady(Box::new(error))
}
