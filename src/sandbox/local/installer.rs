//! Packages that sessions ask for: installed once, in a room that is made for that.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::sync::{Notify, Semaphore};

use super::error::LocalError;
use super::guest::LOCK;

use super::layers::{self, AddError, Layer, Layers, Manifest};
use super::plan::certificates_inside;
use super::verdict::read;
use super::workshop::{Tenant, Workshop};
use crate::config::{PackageMode, Settings};
use crate::domain::coded::chain;
use crate::domain::event::OutputSink;
use crate::domain::execution::{Cell, Language};
use crate::domain::id::{ExecutionId, RunId, SessionId};
use crate::domain::limits::Limits;
use crate::domain::package::{PackageSet, normal_name};
use crate::domain::provider::IsolationLevel;
use crate::sandbox::host::python::PROXIES;
use crate::sandbox::packages::without_userinfo;
use crate::sandbox::{PackagesError, Progress, SandboxError};

/// Sets that may wait to be installed.
const MAX_WAITING: usize = 32;
/// What pip needs besides what it installs, in bytes.
const WORKING_MEMORY: u64 = 512 << 20;
/// Downloads, their copies in pip's cache and what is unpacked lie in the room together.
const COPIES: u64 = 3;
/// With less room than this no installation is begun.
const LEAST_ROOM: u64 = 64 << 20;
/// Where the room's installer puts them, below its files.
const TARGET: &str = "layer";
/// What pip may know of the service's environment besides the proxies: how to reach the index.
const PASSED_ON: [&str; 3] = ["PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "PIP_DEFAULT_TIMEOUT"];

/// Installs sets of packages, each once, one at a time.
pub(super) struct Installer {
    workshop: Arc<Workshop>,
    layers: Arc<Layers>,
    mode: PackageMode,
    sets: Vec<PackageSet>,
    index: Option<SecretString>,
    most_bytes: u64,
    limit: Duration,
    turn: Semaphore,
    under_way: Mutex<HashMap<String, Installing>>,
}

type Installing = Shared<BoxFuture<'static, Result<Arc<Layer>, Failure>>>;

/// Why a set was not installed; every caller who waits for it is told.
#[derive(Debug, Clone)]
enum Failure {
    Packages(PackagesError),
    Local(Arc<LocalError>),
}

impl Installer {
    pub(super) fn new(settings: &Settings, workshop: Arc<Workshop>) -> Arc<Self> {
        let local = &settings.local;
        Arc::new(Self {
            layers: Arc::clone(&workshop.layers),
            workshop,
            mode: local.local_packages,
            sets: local.package_sets(),
            index: local.package_index(),
            most_bytes: local.local_package_bytes,
            limit: settings.limits.install_seconds,
            turn: Semaphore::new(1),
            under_way: Mutex::default(),
        })
    }

    pub(super) fn is_on(&self) -> bool {
        self.mode != PackageMode::Off
    }

    /// Whether a set must be installed before there can be a session with it.
    pub(super) async fn installs(&self, set: &PackageSet) -> bool {
        match self.needed(set).await {
            Ok(Some((_, key))) => !self.layers.has(&key),
            Ok(None) | Err(_) => false,
        }
    }

    /// The layer with these packages; None when the guest has them all. It is installed where it is
    /// not there yet, which goes on when this is dropped.
    pub(super) async fn layer(
        self: &Arc<Self>,
        set: &PackageSet,
        progress: &Progress,
    ) -> Result<Option<Arc<Layer>>, SandboxError> {
        let Some((needed, key)) = self.needed(set).await? else { return Ok(None) };
        if let Some(layer) = self.layers.get(&key) {
            return Ok(Some(layer));
        }
        progress.say("installing packages");
        let layer = self.install_once(needed, key)?.await.map_err(|failure| match failure {
            Failure::Packages(error) => SandboxError::Packages(error),
            Failure::Local(error) => SandboxError::NotReady(Box::new(error)),
        })?;
        progress.say("making the sandbox");
        Ok(Some(layer))
    }

    /// Installs the sets that the settings name, so that their first sessions need not wait.
    pub(super) async fn prepare(self: Arc<Self>) {
        self.clear().await;
        for set in &self.sets {
            let prepared = async {
                let layer = self.layer(set, &Progress::default()).await?;
                if let Some(layer) = &layer {
                    self.workshop.own_zygote(layer, true).await;
                }
                Ok::<_, SandboxError>(())
            };
            if let Err(error) = prepared.await {
                let cause = chain(&error);
                tracing::error!(error = cause, %set, "a set of packages was not prepared");
            }
        }
    }

    /// What of a set the guest does not have, and the key of its layer.
    async fn needed(&self, set: &PackageSet) -> Result<Option<(PackageSet, String)>, SandboxError> {
        if set.is_empty() {
            return Ok(None);
        }
        let zygote = self.workshop.zygote().await.map_err(super::not_ready)?;
        let needed = beyond(set, &zygote.packages)?;
        match self.mode {
            _ if needed.is_empty() => return Ok(None),
            PackageMode::Off => return Err(PackagesError::Off.into()),
            PackageMode::Prepared if !self.sets.contains(set) => {
                let sets = self.sets.iter().map(ToString::to_string).collect();
                return Err(PackagesError::NotPrepared(sets).into());
            }
            PackageMode::Prepared | PackageMode::Any => {}
        }
        let index = self.index.as_ref().map_or("", |index| index.expose_secret());
        // sessions see it: nothing secret may be guessed from it
        let index = without_userinfo(index);
        let key = key(&[LOCK, &zygote.python, std::env::consts::ARCH, &index, &needed.to_string()]);
        Ok(Some((needed, key)))
    }

    fn install_once(
        self: &Arc<Self>,
        needed: PackageSet,
        key: String,
    ) -> Result<Installing, PackagesError> {
        let mut under_way = self.under_way.lock().expect("no panic while it is held");
        if let Some(installing) = under_way.get(&key) {
            return Ok(installing.clone());
        }
        if under_way.len() >= MAX_WAITING {
            return Err(PackagesError::Busy);
        }
        let (this, name) = (Arc::clone(self), key.clone());
        let task = tokio::spawn(async move {
            let installed = this.install(&needed, &name).await;
            this.under_way.lock().expect("no panic while it is held").remove(&name);
            installed
        });
        let lost = |_| Err(Failure::Local(Arc::new(LocalError::WardenEnded)));
        let installing = task.map(move |done| done.unwrap_or_else(lost)).boxed().shared();
        under_way.insert(key, installing.clone());
        Ok(installing)
    }

    /// Removes what an earlier start left; no installation is under way meanwhile.
    async fn clear(&self) {
        let _turn = self.turn.acquire().await;
        let layers = Arc::clone(&self.layers);
        if let Ok(Err(error)) = tokio::task::spawn_blocking(move || layers.clear()).await {
            tracing::warn!(%error, "the folder for packages was not cleared");
        }
    }

    /// Whether anybody waits for a set still.
    fn is_awaited(&self, key: &str) -> bool {
        let under_way = self.under_way.lock().expect("no panic while it is held");
        // one is the list's own
        under_way.get(key).is_some_and(|installing| installing.strong_count() > Some(1))
    }

    async fn install(&self, needed: &PackageSet, key: &str) -> Result<Arc<Layer>, Failure> {
        let _turn = self.turn.acquire().await;
        if let Some(layer) = self.layers.get(key) {
            return Ok(layer);
        }
        if !self.is_awaited(key) {
            return Err(PackagesError::Busy.into()); // nobody hears it
        }
        let started = std::time::Instant::now();
        let layer = self.install_in_a_room(needed, key).await;
        self.workshop.close_installing().await;
        let took = started.elapsed().as_millis();
        match &layer {
            Ok(_) => tracing::info!(packages = %needed, duration_ms = %took, "packages installed"),
            Err(Failure::Packages(error)) => {
                tracing::warn!(packages = %needed, duration_ms = %took, %error, "packages not installed");
            }
            Err(Failure::Local(error)) => {
                let cause = chain(error);
                tracing::error!(packages = %needed, error = cause, "packages not installed");
            }
        }
        layer
    }

    async fn install_in_a_room(
        &self,
        needed: &PackageSet,
        key: &str,
    ) -> Result<Arc<Layer>, Failure> {
        let limits = self.limits()?;
        let tenant = Tenant {
            sandbox_id: SessionId::new(),
            limits: &limits,
            env: &self.environ(),
            layer: None,
            primed: false,
        };
        let (room, mut kernel) = self.workshop.make_installing_room(&tenant).await?;
        let cell = self.cell(needed, key, &tenant).await?;
        let (execution, _) = kernel.run(&room, &cell, &Notify::new(), &OutputSink::discard()).await;
        let installed = read(&execution, self.most_bytes);
        room.kill();
        let _ = room.gone().await;
        let layer = match installed {
            Ok(installed) => {
                let manifest = Manifest { requirements: needed.texts(), installed, bytes: 0 };
                let (layers, key, most) =
                    (Arc::clone(&self.layers), key.to_owned(), self.most_bytes);
                let (from, room) = (format!("{TARGET}/"), Arc::clone(&room));
                let add = move || layers.add(&key, &room.files, &from, most, manifest);
                let added = tokio::task::spawn_blocking(add).await;
                added.map_err(std::io::Error::from)?.map_err(Failure::from)
            }
            Err(error) => Err(error.into()),
        };
        room.end().await?;
        layer
    }

    /// Files of the room lie in memory: where the host has less, there is less room.
    fn limits(&self) -> Result<Limits, Failure> {
        let available = self.workshop.memory_to_spare().saturating_sub(WORKING_MEMORY);
        let room = self.most_bytes.saturating_mul(COPIES).min(available);
        if available < LEAST_ROOM {
            return Err(PackagesError::NoMemory.into());
        }
        Ok(Limits {
            memory_bytes: Some(room + WORKING_MEMORY),
            disk_bytes: Some(room),
            inodes: Some(1 << 20),
            file_bytes: Some(self.most_bytes),
            processes: Some(64),
            open_files: Some(1024),
            cpu_percent: Some(100),
            output_bytes: Some(64 << 10),
        })
    }

    fn environ(&self) -> BTreeMap<String, String> {
        let named = |name: &str| Some((name.to_owned(), std::env::var(name).ok()?));
        let names = PROXIES.into_iter().chain(PASSED_ON);
        let mut environ: BTreeMap<_, _> = names.filter_map(named).collect();
        if let Some(index) = &self.index {
            environ.insert("PIP_INDEX_URL".to_owned(), index.expose_secret().to_owned());
        }
        if let Some(path) = certificates_inside(self.workshop.level()) {
            environ.insert("PIP_CERT".to_owned(), path.to_string_lossy().into_owned());
        }
        environ
    }

    async fn cell(
        &self,
        needed: &PackageSet,
        key: &str,
        tenant: &Tenant<'_>,
    ) -> Result<Cell, Failure> {
        let zygote = self.workshop.zygote().await?;
        let inside = match self.workshop.level() {
            IsolationLevel::Namespaced => layers::INSIDE.into(),
            _ => self.layers.folder().join(key).join(layers::PACKAGES),
        };
        let order = json!({
            "requirements": needed.texts(), "guest": zygote.packages, "folder": TARGET,
            "inside": inside, "most_bytes": self.most_bytes,
        });
        // the text of a JSON string is one of Python too
        let order = serde_json::Value::from(order.to_string());
        Ok(Cell {
            id: ExecutionId::new(),
            run_id: RunId::new(),
            session_id: tenant.sandbox_id,
            code: format!(
                "import json\nfrom interpreterd_guest.installer import install\ninstall(**json.loads({order}))"
            ),
            language: Language::Python,
            timeout: self.limit,
            env: BTreeMap::new(),
            stdin: None,
        })
    }
}

/// What of a set is not there yet. What is there in another version cannot be had.
pub(super) fn beyond(
    set: &PackageSet,
    there: &BTreeMap<String, String>,
) -> Result<PackageSet, PackagesError> {
    let there: HashMap<_, _> = there
        .iter()
        .filter_map(|(name, version)| Some((normal_name(name)?, version.as_str())))
        .collect();
    let mut needed = Vec::new();
    for requirement in set.iter() {
        let name = requirement.name();
        match there.get(&name) {
            Some(version) if requirement.is_met_by(version) => {}
            Some(version) if !requirement.as_str().contains('[') => {
                return Err(PackagesError::Built { name, version: (*version).to_owned() });
            }
            Some(_) | None => needed.push(requirement.clone()),
        }
    }
    Ok(needed.into_iter().collect())
}

fn key(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().iter().take(16).fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

impl From<PackagesError> for Failure {
    fn from(error: PackagesError) -> Self {
        Self::Packages(error)
    }
}

impl From<LocalError> for Failure {
    fn from(error: LocalError) -> Self {
        Self::Local(Arc::new(error))
    }
}

impl From<AddError> for Failure {
    fn from(error: AddError) -> Self {
        match error {
            AddError::Packages(error) => Self::Packages(error),
            AddError::Io(error) => error.into(),
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Local(Arc::new(LocalError::Layer(error)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> PackageSet {
        text.parse().expect("a set")
    }

    #[test]
    fn what_the_guest_has_is_not_installed_and_not_replaced() {
        let there = BTreeMap::from([("Ruamel.Yaml", "1.0"), ("numpy", "2.1.0")]);
        let there =
            there.into_iter().map(|(name, version)| (name.into(), version.into())).collect();
        assert_eq!(beyond(&set("numpy>=2 ruamel-yaml polars"), &there), Ok(set("polars")));
        let other = PackagesError::Built { name: "numpy".into(), version: "2.1.0".into() };
        assert_eq!(beyond(&set("polars numpy<2"), &there), Err(other));
    }

    #[test]
    fn keys_tell_sets_apart() {
        assert_eq!(key(&["a", "b"]), key(&["a", "b"]));
        assert_ne!(key(&["ab", ""]), key(&["a", "b"]));
        assert_eq!(key(&["a"]).len(), 32);
    }
}
