//! What sandboxes are made with: the warden, cgroups, folders.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as StdMutex, OnceLock};
use std::time::Duration;

use tokio::sync::Mutex;

use super::bounds;
use super::cgroup::{Cgroup, Cgroups, Controller};
use super::error::LocalError;
use super::folders;
use super::guest::Guest;
use super::handle::{Held, Room};
use super::installer;
use super::kernel::{self, Kernel};
use super::layers::{self, Layer, Layers};
use super::level;
use super::numbers::SlotNumbers;
use super::plan::{self, Places, Purpose};
use super::range::UserRange;
use super::user::Taken;
use super::watch::{Processes, Watch};
use super::wire::SpawnRequest;
use super::zygote::Zygote;
use crate::config::{LocalSettings, Settings};
use crate::domain::coded::chain;
use crate::domain::id::SessionId;
use crate::domain::limits::Limits;
use crate::domain::package::PackageSet;
use crate::domain::provider::IsolationLevel;
use crate::sandbox::SandboxError;

/// Processes that one session may add at once where all count together.
const BURST: u64 = 8;
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// Makes rooms; starts the warden with the first one and again after it has ended.
pub(super) struct Workshop {
    settings: LocalSettings,
    guest_dir: PathBuf,
    pub(super) data_dir: PathBuf,
    /// Where sessions without a root of their own have their folders.
    rooms_dir: PathBuf,
    /// The levels that may be used, the best first.
    levels: Vec<IsolationLevel>,
    pub(super) most: Limits,
    cgroups: Arc<Cgroups>,
    users: Option<UserRange>,
    slots: Arc<SlotNumbers>,
    watch: OnceLock<Arc<Watch>>,
    zygote: Station,
    /// Zygotes that have the packages of one layer, by its key.
    own: StdMutex<HashMap<String, Arc<Own>>>,
    /// There while packages are being installed.
    installing: Station,
    pub(super) layers: Arc<Layers>,
    /// Sets of packages that have a zygote of their own.
    sets: Vec<PackageSet>,
    closed: AtomicBool,
    /// Whether the folder of rooms is prepared, which is done once: a warden that is started anew
    /// finds those of sessions that live on, and others read the zygotes' code in it meanwhile.
    prepared: Arc<StdMutex<bool>>,
    /// The level that worked first stays: a session is never weaker than what was told.
    level: OnceLock<IsolationLevel>,
}

/// A warden that is started when it is needed, and again after it has ended.
#[derive(Default)]
struct Station(Mutex<Option<Arc<Zygote>>>);

/// The zygote of one layer, which stays on disk as long as this is.
struct Own {
    layer: Arc<Layer>,
    station: Station,
    /// It did not start: it is not tried again before the service is started anew.
    refused: AtomicBool,
}

/// What a session's room is made for.
pub(super) struct Tenant<'a> {
    pub(super) sandbox_id: SessionId,
    pub(super) limits: &'a Limits,
    pub(super) env: &'a BTreeMap<String, String>,
    /// Packages besides the guest's.
    pub(super) layer: Option<&'a Arc<Layer>>,
    /// Take the time now that its first cell would take longer than later ones.
    pub(super) primed: bool,
}

impl Workshop {
    pub(super) fn new(settings: &Settings, taken: Taken) -> Self {
        let Taken { cgroups, users } = taken;
        Self {
            settings: settings.local.clone(),
            guest_dir: settings.guest.folder(),
            data_dir: std::path::absolute(&settings.server.data_dir)
                .unwrap_or_else(|_| settings.server.data_dir.clone()),
            rooms_dir: settings.server.data_dir.join("rooms"),
            levels: settings.local.local_levels.iter().copied().map(level::of).collect(),
            most: bounds::most(&settings.local, settings.limits.output_bytes),
            cgroups: Arc::new(cgroups),
            users,
            slots: Arc::default(),
            watch: OnceLock::new(),
            zygote: Station::default(),
            own: StdMutex::default(),
            installing: Station::default(),
            layers: Arc::new(Layers::new(
                std::path::absolute(settings.server.data_dir.join("layers"))
                    .unwrap_or_else(|_| settings.server.data_dir.join("layers")),
                settings.local.local_package_cache_bytes,
            )),
            sets: settings.local.package_sets(),
            closed: AtomicBool::new(false),
            prepared: Arc::default(),
            level: OnceLock::new(),
        }
    }

    /// The level that sandboxes have, or would have.
    pub(super) fn level(&self) -> IsolationLevel {
        let first = || self.levels.first().copied();
        self.level.get().copied().or_else(first).unwrap_or(IsolationLevel::Namespaced)
    }

    /// The zygote of sessions; its warden is started when there is none, at the first level that works.
    pub(super) async fn zygote(&self) -> Result<Arc<Zygote>, LocalError> {
        let start = async {
            let zygote = self.start().await?;
            let _ = self.level.set(zygote.isolation.level);
            Ok(zygote)
        };
        self.zygote.get(start).await
    }

    /// The zygote that has the packages of a layer imported, where the settings name that set. None
    /// where it has none or does not start: then the layer is mounted into sessions of the usual one.
    /// `wait`: also while it is being started; else that counts as none.
    pub(super) async fn own_zygote(&self, layer: &Arc<Layer>, wait: bool) -> Option<Arc<Zygote>> {
        let there = &self.zygote().await.ok()?.packages;
        let is_named = |set: &PackageSet| {
            installer::beyond(set, there)
                .is_ok_and(|needed| needed.texts() == layer.manifest.requirements)
        };
        if !self.sets.iter().any(is_named) {
            return None;
        }
        let new = || Own {
            layer: Arc::clone(layer),
            station: Station::default(),
            refused: AtomicBool::new(false),
        };
        let own =
            Arc::clone(self.own().entry(layer.key.clone()).or_insert_with(|| Arc::new(new())));
        if own.refused.load(Ordering::SeqCst) || !wait && own.station.0.try_lock().is_err() {
            return None;
        }
        let purpose = Purpose::CellsWith(Arc::clone(&own.layer));
        let started = own.station.get(self.start_at(self.level(), &purpose)).await;
        started
            .inspect_err(|error| {
                own.refused.store(true, Ordering::SeqCst);
                let cause = chain(error);
                let packages = layer.manifest.requirements.join(" ");
                tracing::warn!(
                    error = cause,
                    packages,
                    "a set of packages has no zygote of its own"
                );
            })
            .ok()
    }

    fn own(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<Own>>> {
        self.own.lock().expect("no panic while it is held")
    }

    async fn start(&self) -> Result<Zygote, LocalError> {
        let levels = match self.level.get() {
            Some(level) => std::slice::from_ref(level),
            None => self.levels.as_slice(),
        };
        let mut refused = Vec::new();
        for level in levels {
            if *level == IsolationLevel::None && !self.settings.local_allow_insecure {
                return Err(LocalError::Insecure);
            }
            match self.start_at(*level, &Purpose::Cells).await {
                Ok(zygote) => return Ok(zygote),
                Err(error) if error.is_of_the_host() => {
                    let cause = chain(&error);
                    tracing::warn!(
                        error = cause,
                        level = level.word(),
                        "a level does not work here"
                    );
                    refused.push((*level, error));
                }
                Err(error) => return Err(error),
            }
        }
        Err(match refused.len() {
            0 => LocalError::NoLevel,
            1 => refused.remove(0).1,
            _ => LocalError::NoLevelWorks(refused),
        })
    }

    async fn start_at(
        &self,
        level: IsolationLevel,
        purpose: &Purpose,
    ) -> Result<Zygote, LocalError> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(LocalError::Closed);
        }
        let guest = Guest::find(&self.guest_dir)?;
        self.prepare_folders(level).await?;
        let rooms = std::path::absolute(&self.rooms_dir).map_err(LocalError::Folder)?;
        let places = Places { guest: &guest, rooms: &rooms, layers: self.layers.folder() };
        let plan = plan::plan(level, purpose, &places);
        let zygote = Zygote::start(plan, self.users.as_ref(), &self.cgroups).await?;
        match self.try_room(&zygote).await {
            Ok(()) => Ok(zygote),
            Err(error) => {
                zygote.close().await;
                Err(error)
            }
        }
    }

    /// Folders on the host: of layers, and of sessions without a root of their own.
    async fn prepare_folders(&self, level: IsolationLevel) -> Result<(), LocalError> {
        let prepared = Arc::clone(&self.prepared);
        let (rooms, layers) = (self.rooms_dir.clone(), Arc::clone(&self.layers));
        let prepare = move || {
            layers.prepare()?;
            let mut prepared = prepared.lock().expect("no panic while it is held");
            if level != IsolationLevel::Namespaced && !*prepared {
                folders::prepare(&rooms)?;
                *prepared = true;
            }
            Ok(())
        };
        let done = tokio::task::spawn_blocking(prepare).await;
        done.map_err(io::Error::from).and_then(|done| done).map_err(LocalError::Folder)
    }

    /// A host may let a warden start and allow it no room.
    async fn try_room(&self, zygote: &Zygote) -> Result<(), LocalError> {
        let tenant = Tenant {
            sandbox_id: SessionId::new(),
            limits: &self.most,
            env: &BTreeMap::new(),
            layer: None,
            primed: false,
        };
        let (room, _kernel) = self.room_of(zygote, &tenant).await?;
        room.end().await
    }

    /// Makes a room with its kernel.
    pub(super) async fn make_room(
        &self,
        tenant: &Tenant<'_>,
    ) -> Result<(Arc<Room>, Kernel), LocalError> {
        if let Some(layer) = tenant.layer
            && let Some(zygote) = self.own_zygote(layer, tenant.primed).await
        {
            return self.room_of(&zygote, &Tenant { layer: None, ..*tenant }).await;
        }
        let zygote = self.zygote().await?;
        self.room_of(&zygote, tenant).await
    }

    /// Makes a room in which packages can be installed.
    pub(super) async fn make_installing_room(
        &self,
        tenant: &Tenant<'_>,
    ) -> Result<(Arc<Room>, Kernel), LocalError> {
        let start = self.start_at(self.level(), &Purpose::Installing);
        let zygote = self.installing.get(start).await?;
        self.room_of(&zygote, tenant).await
    }

    pub(super) async fn close_installing(&self) {
        self.installing.close().await;
    }

    async fn room_of(
        &self,
        zygote: &Zygote,
        tenant: &Tenant<'_>,
    ) -> Result<(Arc<Room>, Kernel), LocalError> {
        let folder = self.folder(zygote.isolation.level, tenant.sandbox_id)?;
        let counted = self.cgroups.holds(Controller::Memory).is_some();
        let mut request = bounds::spawn_request(tenant.limits, counted);
        if folder.is_some() {
            all_count_together(&mut request).await;
        }
        request.folder.clone_from(&folder);
        request.primed = tenant.primed;
        if let Some(layer) = tenant.layer {
            request.packages = Some(match folder {
                None => layers::INSIDE.into(),
                Some(_) => layer.packages.clone(),
            });
            request.layer = Some(layer.key.clone());
        }
        let slot = SlotNumbers::take(&self.slots).ok_or(LocalError::NoSlot)?;
        request.slot = slot.number;
        let held = Held { cgroup: self.cgroup(&request, tenant.limits)?, _slot: slot };
        let mut environ = plan::passed_on();
        environ.extend(tenant.env.clone());
        let (room, kernel) = kernel::spawn(zygote, request, tenant.limits, held, &environ).await?;
        let room = Arc::new(room);
        if !counted || folder.is_some() {
            self.watch.get_or_init(Watch::start).add(&room);
        }
        Ok((room, kernel))
    }

    fn cgroup(
        &self,
        request: &SpawnRequest,
        limits: &Limits,
    ) -> Result<Option<Cgroup>, LocalError> {
        if self.cgroups.is_empty() {
            return Ok(None);
        }
        // mostly some hundred microseconds, and milliseconds where others change cgroups meanwhile
        let make = || self.cgroups.make(&request.id, &bounds::together(limits));
        tokio::task::block_in_place(make).map(Some).map_err(LocalError::Cgroup)
    }

    /// The folder of a session that has no root of its own.
    pub(super) fn folder(
        &self,
        level: IsolationLevel,
        session: SessionId,
    ) -> Result<Option<PathBuf>, LocalError> {
        if level == IsolationLevel::Namespaced {
            return Ok(None);
        }
        let folder = self.rooms_dir.join(session.to_string());
        std::path::absolute(folder).map(Some).map_err(LocalError::Folder)
    }

    /// Memory of the host beyond its reserve, in bytes.
    pub(super) fn memory_to_spare(&self) -> u64 {
        let available = available_memory().unwrap_or(u64::MAX);
        available.saturating_sub(self.settings.local_reserve_bytes)
    }

    /// Files lie in memory, or on the host's disk: an upload must leave the host its reserve.
    pub(super) fn admit(&self, room: &Room, bytes: u64) -> Result<(), SandboxError> {
        let available = match room.folder() {
            Some(_) => room.files.free_bytes(),
            None => available_memory().unwrap_or(u64::MAX),
        };
        let needed = bytes.saturating_add(self.settings.local_reserve_bytes);
        if available < needed { Err(SandboxError::NoMemory) } else { Ok(()) }
    }

    pub(super) async fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        let own: Vec<_> = self.own().drain().map(|(_, own)| own).collect();
        let stations = own.iter().map(|own| &own.station).chain([&self.zygote, &self.installing]);
        futures::future::join_all(stations.map(Station::close)).await;
    }
}

impl Station {
    /// The zygote that lives, or the one that `start` gives.
    async fn get(
        &self,
        start: impl Future<Output = Result<Zygote, LocalError>>,
    ) -> Result<Arc<Zygote>, LocalError> {
        let mut running = self.0.lock().await;
        if let Some(zygote) = running.as_ref().filter(|zygote| zygote.is_alive()) {
            return Ok(Arc::clone(zygote));
        }
        let zygote = Arc::new(start.await?);
        *running = Some(Arc::clone(&zygote));
        Ok(zygote)
    }

    async fn close(&self) {
        // one that is being started ends with this process
        if let Ok(mut running) = tokio::time::timeout(CLOSE_LIMIT, self.0.lock()).await
            && let Some(zygote) = running.take()
        {
            zygote.close().await;
        }
    }
}

/// Without a user namespace the host counts all processes of the user together: the limit is set
/// where a burst ends, and the watch holds the session's own.
async fn all_count_together(request: &mut SpawnRequest) {
    let user = rustix::process::geteuid().as_raw();
    let now = tokio::task::spawn_blocking(move || Processes::now().threads_of(user)).await;
    if let Some(limit) = request.limits.get_mut("nproc") {
        *limit = limit.saturating_mul(BURST).saturating_add(now.unwrap_or_default());
    }
}

/// What the kernel says can be had without swapping, in bytes.
fn available_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kibibytes * 1024)
}

/// What a spawn gives to the warden, in the order that it expects.
pub(super) fn given(
    pipes: [OwnedFd; super::wire::PIPES],
    cgroup: Option<&Cgroup>,
) -> io::Result<Vec<OwnedFd>> {
    let mut given = Vec::from(pipes);
    for member in cgroup.map(Cgroup::members).unwrap_or_default() {
        given.push(member.try_clone()?);
    }
    Ok(given)
}
