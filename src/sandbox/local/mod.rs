//! The provider `local`: sandboxes of our own on this host.

mod collect;
mod error;
mod files;
mod guest;
mod install;
mod kernel;
mod room;
mod root;
mod seccomp;
mod session;
mod sys;
mod tap;
pub mod user;
mod warden;
mod wire;
mod zygote;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::Mutex;

pub use error::LocalError;
pub use guest::GuestError;
pub use install::{InstallError, Unfit, install};
pub use warden::{MODE as WARDEN_MODE, run as run_warden};

use self::guest::Guest;
use self::session::LocalSandbox;
use self::wire::{SpawnRequest, WardenPlan};
use self::zygote::Zygote;
use crate::config::{GuestSettings, LimitSettings, LocalSettings};
use crate::domain::event::OutputSink;
use crate::domain::execution::{Cell, Language};
use crate::domain::id::{ExecutionId, RunId, SessionId};
use crate::domain::limits::{Limits, LimitsRequest};
use crate::domain::provider::Capabilities;
use crate::sandbox::{
    ProviderReport, Sandbox, SandboxError, SandboxProvider, SandboxRecord, SandboxSpec,
};

/// What the zygote has imported before the first fork.
const WARM: [&str; 4] = ["numpy", "pandas", "matplotlib", "matplotlib.pyplot"];
const FILES_DIR: &str = "/files";
const LEAST_MEMORY: u64 = 64 << 20;
const LEAST_DISK: u64 = 1 << 20;
const LEAST_PROCESSES: u64 = 8;
/// On some processors older OpenBLAS needs these to compute rightly; they tell nothing.
const PASSED_ON: [&str; 2] = ["OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"];

/// Makes rooms on this host; its warden starts with the first one and again after it has ended.
pub struct LocalProvider {
    workshop: Arc<Workshop>,
}

/// What a sandbox needs to make its room, the first time and again.
struct Workshop {
    settings: LocalSettings,
    guest_dir: PathBuf,
    output_cap: usize,
    zygote: Mutex<Option<Arc<Zygote>>>,
}

impl LocalProvider {
    /// A provider that has started nothing yet.
    #[must_use]
    pub fn new(local: &LocalSettings, guest: &GuestSettings, limits: &LimitSettings) -> Self {
        let workshop = Workshop {
            settings: local.clone(),
            guest_dir: guest.folder(),
            output_cap: usize::try_from(limits.output_bytes).unwrap_or(usize::MAX),
            zygote: Mutex::new(None),
        };
        Self { workshop: Arc::new(workshop) }
    }

    async fn trial(&self) -> Result<(), SandboxError> {
        let spec = SandboxSpec {
            session_id: SessionId::new(),
            limits: self.limits(&LimitsRequest::default())?,
            env: BTreeMap::new(),
            packages: Vec::new(),
            lifetime: std::time::Duration::from_secs(60),
        };
        let sandbox = self.create(&spec).await?;
        let cell = Cell {
            id: ExecutionId::new(),
            run_id: RunId::new(),
            session_id: spec.session_id,
            code: "1 + 1".to_owned(),
            language: Language::Python,
            timeout: std::time::Duration::from_secs(30),
            env: BTreeMap::new(),
            stdin: None,
        };
        let execution = sandbox.execute(&cell, &OutputSink::discard()).await;
        sandbox.terminate().await;
        let text = execution?.text;
        if text == "2" { Ok(()) } else { Err(not_ready(LocalError::Trial(text))) }
    }
}

#[async_trait]
impl SandboxProvider for LocalProvider {
    fn kind(&self) -> &'static str {
        "local"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            state: true,
            state_after_timeout: true,
            upload: true,
            download: true,
            shell: true,
            packages: false,
            network: false,
            absolute_files_dir: true,
        }
    }

    fn files_dir(&self) -> &str {
        FILES_DIR
    }

    fn limits(&self, request: &LimitsRequest) -> Result<Limits, SandboxError> {
        let most = &self.workshop.settings;
        let memory =
            ("/limits/memory_bytes", request.memory_bytes, LEAST_MEMORY, most.local_memory_bytes);
        let disk = ("/limits/disk_bytes", request.disk_bytes, LEAST_DISK, most.local_disk_bytes);
        let processes =
            ("/limits/processes", request.processes, LEAST_PROCESSES, most.local_processes);
        Ok(Limits {
            memory_bytes: Some(within(memory)?),
            disk_bytes: Some(within(disk)?),
            processes: Some(within(processes)?),
        })
    }

    async fn create(&self, spec: &SandboxSpec) -> Result<Arc<dyn Sandbox>, SandboxError> {
        if !spec.packages.is_empty() {
            return Err(SandboxError::Unsupported("packages are not offered by local yet"));
        }
        let sandbox = LocalSandbox::create(Arc::clone(&self.workshop), spec).await;
        Ok(Arc::new(sandbox.map_err(not_ready)?))
    }

    /// Rooms die with the service: there is never one to find again.
    async fn attach(&self, _: &SandboxRecord) -> Result<Option<Arc<dyn Sandbox>>, SandboxError> {
        Ok(None)
    }

    async fn list(&self) -> Result<Vec<SandboxRecord>, SandboxError> {
        Ok(Vec::new())
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
        if let Some(zygote) = self.workshop.zygote.lock().await.take() {
            zygote.close().await;
        }
    }
}

impl Workshop {
    /// The running warden; starts one when there is none.
    async fn zygote(&self) -> Result<Arc<Zygote>, LocalError> {
        let mut running = self.zygote.lock().await;
        if let Some(zygote) = running.as_ref().filter(|zygote| zygote.is_alive()) {
            return Ok(Arc::clone(zygote));
        }
        let guest = Guest::find(&self.guest_dir)?;
        let plan = WardenPlan {
            root: guest.root_plan(),
            python: Guest::python_inside(),
            packages: WARM.map(str::to_owned).to_vec(),
            environ: passed_on(),
        };
        let zygote = Arc::new(Zygote::start(plan).await?);
        *running = Some(Arc::clone(&zygote));
        Ok(zygote)
    }

    /// Files lie in memory: an upload must leave the host its reserve.
    fn admit(&self, bytes: u64) -> Result<(), SandboxError> {
        let available = available_memory().unwrap_or(u64::MAX);
        let needed = bytes.saturating_add(self.settings.local_reserve_bytes);
        if available < needed { Err(SandboxError::NoMemory) } else { Ok(()) }
    }

    fn spawn_request(&self, limits: &Limits) -> SpawnRequest {
        let settings = &self.settings;
        let disk_bytes = limits.disk_bytes.unwrap_or(settings.local_disk_bytes);
        let rlimits = [
            ("core", 0),
            ("nofile", settings.local_open_files),
            ("nproc", limits.processes.unwrap_or(settings.local_processes)),
            ("memlock", 1 << 20),
            ("msgqueue", 0),
            ("stack", 64 << 20),
            ("fsize", disk_bytes),
        ];
        SpawnRequest {
            id: ExecutionId::new().to_string(),
            disk_bytes,
            inodes: settings.local_inodes,
            memory_bytes: limits.memory_bytes.unwrap_or(settings.local_memory_bytes),
            limits: rlimits.map(|(name, value)| (name.to_owned(), value)).into(),
        }
    }
}

/// What the kernel says can be had without swapping, in bytes.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kibibytes * 1024)
}

fn passed_on() -> BTreeMap<String, String> {
    PASSED_ON
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?)))
        .collect()
}

fn within(
    (limit, asked, least, most): (&'static str, Option<u64>, u64, u64),
) -> Result<u64, SandboxError> {
    match asked {
        None => Ok(most),
        Some(asked) if (least..=most).contains(&asked) => Ok(asked),
        Some(_) => Err(SandboxError::LimitOutOfRange { limit, least, most }),
    }
}

fn not_ready(error: LocalError) -> SandboxError {
    SandboxError::NotReady(Box::new(error))
}
