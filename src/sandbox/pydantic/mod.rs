//! The provider `pydantic`: Python in WebAssembly (Pyodide in Deno) over MCP.

mod answer;
mod cage;
mod client;
mod embedded;
mod error;
mod filters;
mod folder;
mod guest;
mod hearing;
mod install;
mod instance;
mod lines;
mod link;
mod making;
mod ours;
mod process;
mod reach;
mod served;
mod served_files;
mod walls;

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;

pub use cage::{MODE as CAGE_MODE, run as run_cage};
pub use error::{CallError, PydanticError};
pub use install::{InstallError, install};

use self::making::Making;
use self::ours::OurSandbox;
use self::reach::Reach;
use self::served::ServedSandbox;
use crate::config::{PydanticEntry, PydanticServer, Settings};
use crate::domain::id::SessionId;
use crate::domain::limits::{Limits, LimitsRequest};
use crate::domain::package::{PackageSet, normal_name};
use crate::domain::provider::Capabilities;
use crate::domain::session::SandboxRecord;
use crate::sandbox::{
    PackagesError, Progress, ProviderReport, Sandbox, SandboxError, SandboxProvider, SandboxSpec,
};

/// Where code sees its files.
const FILES_DIR: &str = "/files";
const NO_SHELL: &str = "it runs Python in WebAssembly, where there is no shell";
/// Less than that, and the interpreter does not start.
const LEAST_MEMORY_BYTES: u64 = 512 << 20;
const LEAST_DISK_BYTES: u64 = 1 << 20;
const LEAST_OUTPUT_BYTES: u64 = 1024;

/// Makes sandboxes of one entry.
pub struct PydanticProvider {
    making: Arc<Making>,
    /// How a server is reached that is not ours.
    reach: Option<Arc<Reach>>,
    entry: PydanticEntry,
    most: Limits,
}

impl PydanticProvider {
    /// A provider that has started nothing yet.
    #[must_use]
    pub fn new(entry: &PydanticEntry, settings: &Settings) -> Self {
        let is_elsewhere = matches!(entry.server, PydanticServer::Url { .. });
        let is_ours = matches!(entry.server, PydanticServer::Ours);
        let most = Limits {
            memory_bytes: (!is_elsewhere).then_some(entry.memory_bytes),
            disk_bytes: is_ours.then_some(entry.disk_bytes),
            output_bytes: Some(settings.limits.output_bytes),
            ..Limits::default()
        };
        let making = Making::new(entry, settings);
        let limit = settings.limits.create_seconds;
        let reach = Reach::new(&entry.server, making.home(), limit, most);
        Self { making: Arc::new(making), reach: reach.map(Arc::new), entry: entry.clone(), most }
    }

    /// Packages of the store that are what is asked for.
    fn has(&self, packages: &PackageSet) -> Result<(), SandboxError> {
        if packages.is_empty() {
            return Ok(());
        }
        if self.reach.is_some() {
            return Err(SandboxError::Unsupported("packages are its server's own affair"));
        }
        let store = self.making.guest()?.manifest.packages;
        for wanted in packages.iter() {
            let is_it = |name: &str| normal_name(name).is_some_and(|name| name == wanted.name());
            let Some((name, version)) = store.iter().find(|(name, _)| is_it(name)) else {
                return Err(PackagesError::NotStored(wanted.name()).into());
            };
            if !wanted.is_met_by(version) {
                let (name, version) = (name.clone(), version.clone());
                return Err(PackagesError::Built { name, version }.into());
            }
        }
        Ok(())
    }

    /// Makes one, to see what it is like.
    async fn trial(&self) -> Result<(), SandboxError> {
        let spec = SandboxSpec {
            session_id: SessionId::new(),
            limits: self.most,
            env: BTreeMap::new(),
            packages: PackageSet::default(),
            lifetime: self.making.create_limit,
            primed: false,
        };
        self.create(&spec).await?.terminate().await;
        Ok(())
    }
}

#[async_trait]
impl SandboxProvider for PydanticProvider {
    fn kind(&self) -> &'static str {
        "pydantic"
    }

    fn capabilities(&self) -> Capabilities {
        let is_ours = self.reach.is_none();
        Capabilities {
            state: true,
            state_after_timeout: is_ours,
            upload: true,
            download: true,
            shell: false,
            packages: is_ours,
            network: self.entry.network,
            absolute_files_dir: true,
            streaming: is_ours,
        }
    }

    fn limits(&self, request: &LimitsRequest) -> Result<Limits, SandboxError> {
        granted(&self.most, request)
    }

    async fn installs(&self, _: &PackageSet) -> bool {
        false // they are in the store, or are not to be had
    }

    async fn install(&self, packages: &PackageSet, _: &Progress) -> Result<(), SandboxError> {
        self.has(packages)
    }

    async fn create(&self, spec: &SandboxSpec) -> Result<Arc<dyn Sandbox>, SandboxError> {
        self.has(&spec.packages)?;
        let Some(reach) = &self.reach else {
            return Ok(OurSandbox::create(Arc::clone(&self.making), spec).await?);
        };
        let most = Limits { disk_bytes: Some(self.entry.disk_bytes), ..spec.limits };
        let kept = self.making.folder(spec.session_id, &most).await?;
        Ok(ServedSandbox::create(Arc::clone(reach), spec, kept).await?)
    }

    /// They end with the service: there is never one to find again.
    async fn attach(&self, _: &SandboxRecord) -> Result<Option<Arc<dyn Sandbox>>, SandboxError> {
        Ok(None)
    }

    async fn list(&self) -> Result<Vec<SandboxRecord>, SandboxError> {
        Ok(Vec::new())
    }

    async fn end(&self, _: &SandboxRecord) -> Result<(), SandboxError> {
        Ok(())
    }

    /// One that nobody has asked for is not tried: that would take its time at each start.
    async fn check(&self) -> Result<ProviderReport, SandboxError> {
        if self.entry.is_asked_for {
            self.trial().await?;
        }
        match (self.seen(), &self.reach) {
            (Some(seen), _) => Ok(seen),
            (None, None) => Ok(self.making.guest()?.report(None)),
            (None, Some(_)) => Err(SandboxError::Lost),
        }
    }

    fn seen(&self) -> Option<ProviderReport> {
        let seen = self.reach.as_ref().map_or(&self.making.seen, |reach| &reach.seen);
        seen.lock().expect("no panic while it is held").clone()
    }

    fn start(&self) {
        self.making.serve();
        let making = Arc::clone(&self.making);
        tokio::spawn(async move { making.clear().await });
    }

    async fn close(&self) {}
}

/// What a session gets that asks for this.
fn granted(most: &Limits, asked: &LimitsRequest) -> Result<Limits, SandboxError> {
    let known = LimitsRequest {
        memory_bytes: asked.memory_bytes,
        disk_bytes: asked.disk_bytes,
        output_bytes: asked.output_bytes,
        ..LimitsRequest::default()
    };
    if known != *asked {
        return Err(SandboxError::Unsupported(
            "of the limits, memory_bytes, disk_bytes and output_bytes can be set",
        ));
    }
    let within = |limit, asked: Option<u64>, least, most: Option<u64>| match (asked, most) {
        (Some(asked), Some(most)) if !(least..=most).contains(&asked) => {
            Err(SandboxError::LimitOutOfRange { limit, least, most })
        }
        (Some(_), None) => Err(SandboxError::Unsupported("its server has limits of its own")),
        (asked, most) => Ok(asked.or(most)),
    };
    Ok(Limits {
        memory_bytes: within(
            "/limits/memory_bytes",
            asked.memory_bytes,
            LEAST_MEMORY_BYTES,
            most.memory_bytes,
        )?,
        disk_bytes: within(
            "/limits/disk_bytes",
            asked.disk_bytes,
            LEAST_DISK_BYTES,
            most.disk_bytes,
        )?,
        output_bytes: within(
            "/limits/output_bytes",
            asked.output_bytes,
            LEAST_OUTPUT_BYTES,
            most.output_bytes,
        )?,
        ..Limits::default()
    })
}
