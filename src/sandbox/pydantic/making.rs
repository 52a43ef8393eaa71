//! What sandboxes of ours are made with: the installation, our server's files, their folders.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::sync::OnceCell;

use super::embedded::{self, SERVER};
use super::error::PydanticError;
use super::folder::Folder;
use super::guest::{Guest, Place, refuse_comma};
use super::instance::Instance;
use super::walls::isolation;
use crate::config::{PydanticEntry, Settings};
use crate::domain::id::SessionId;
use crate::domain::limits::Limits;
use crate::sandbox::host::files::blocking;
use crate::sandbox::host::folders;
use crate::sandbox::{ProviderReport, SandboxError};

/// A cell that is told to stop and does not is waited for so long, then its interpreter is replaced.
pub(super) const GRACE: Duration = Duration::from_millis(1500);

/// Where the folders of sandboxes are.
const FILES: &str = "files";
const HOME: &str = "home";

/// Makes instances and folders of one entry.
pub(super) struct Making {
    guest_dir: PathBuf,
    /// Everything of this entry on disk, besides what is installed.
    folder: PathBuf,
    jail: bool,
    pub(super) create_limit: Duration,
    output_bytes: u64,
    /// What the last one that was made is like.
    pub(super) seen: Mutex<Option<ProviderReport>>,
    prepared: OnceCell<()>,
    cleared: OnceCell<()>,
    serves: AtomicBool,
    said_cold: AtomicBool,
}

impl Making {
    pub(super) fn new(entry: &PydanticEntry, settings: &Settings) -> Self {
        let data_dir = &settings.server.data_dir;
        let data_dir = std::path::absolute(data_dir).unwrap_or_else(|_| data_dir.clone());
        // a name may hold what a path may not
        let digest = Sha256::digest(&entry.name);
        let name: String = digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
        Self {
            guest_dir: settings.guest.folder(),
            folder: data_dir.join("pydantic").join(name),
            jail: entry.jail,
            create_limit: settings.limits.create_seconds,
            output_bytes: settings.limits.output_bytes,
            seen: Mutex::default(),
            prepared: OnceCell::new(),
            cleared: OnceCell::new(),
            serves: AtomicBool::new(false),
            said_cold: AtomicBool::new(false),
        }
    }

    pub(super) fn guest(&self) -> Result<Guest, PydanticError> {
        Guest::find(&self.guest_dir)
    }

    /// Writes our server, where it does not stand yet. Nothing is touched that a running service uses.
    async fn prepare(&self) -> Result<(), SandboxError> {
        let prepare = || async {
            refuse_comma(&self.folder)?;
            let (server, files) = (self.server(), self.files());
            blocking(move || {
                let prepared = std::fs::create_dir_all(&files).and_then(|()| write_server(&server));
                prepared.map_err(|error| PydanticError::Folder(error).into())
            })
            .await
        };
        self.prepared.get_or_try_init(prepare).await.copied()
    }

    /// Removes what an earlier start of the service has left. Only by the service that has the data
    /// folder, before its first sandbox.
    pub(super) async fn clear(&self) {
        let clear = || async {
            let folder = self.folder.clone();
            let server = self.server();
            let cleared = tokio::task::spawn_blocking(move || {
                folders::make_empty(&folder.join(FILES))?;
                for entry in std::fs::read_dir(&folder)?.flatten() {
                    let name = entry.file_name();
                    let is_old = name != FILES && name != HOME && entry.path() != server;
                    if is_old {
                        folders::remove(&entry.path())?;
                    }
                }
                Ok::<_, std::io::Error>(())
            });
            if let Ok(Err(error)) = cleared.await {
                tracing::warn!(%error, "what an earlier start has left was not removed");
            }
        };
        self.cleared.get_or_init(clear).await;
    }

    /// The service serves: what is left of an earlier one goes before the next sandbox is made.
    pub(super) fn serve(&self) {
        self.serves.store(true, Ordering::SeqCst);
    }

    fn server(&self) -> PathBuf {
        self.folder.join(format!("server-{}", &embedded::key(SERVER)[..12]))
    }

    /// What commands of somebody else's keep, from start to start.
    pub(super) fn home(&self) -> PathBuf {
        self.folder.join(HOME)
    }

    fn files(&self) -> PathBuf {
        self.folder.join(FILES)
    }

    /// The folder of one sandbox.
    pub(super) async fn folder(
        &self,
        id: SessionId,
        limits: &Limits,
    ) -> Result<Folder, SandboxError> {
        if self.serves.load(Ordering::SeqCst) {
            self.clear().await;
        }
        self.prepare().await?;
        let (path, most) = (self.files().join(id.to_string()), limits.disk_bytes);
        blocking(move || {
            Folder::make(path, most).map_err(|error| PydanticError::Folder(error).into())
        })
        .await
    }

    /// A server over a folder of files, its Python ready.
    pub(super) async fn instance(
        &self,
        folder: &Folder,
        limits: &Limits,
    ) -> Result<Instance, PydanticError> {
        let guest = self.guest()?;
        let server = self.server();
        let plan = guest.plan(&Place {
            server: &server,
            files: &folder.path,
            limits,
            output_bytes: self.output_bytes(limits),
            jail: self.jail,
            grace: GRACE,
        });
        let files = folder.path.clone();
        let instance = Instance::start(plan, files, limits, self.create_limit).await?;
        if instance.about.cold && !self.said_cold.swap(true, Ordering::SeqCst) {
            tracing::warn!(
                "sandboxes start without a snapshot, which takes seconds: \
                 run `interpreterd guest install --provider pydantic` again"
            );
        }
        let isolation = isolation(instance.landlock_abi(), self.jail, guest.snapshot().is_some());
        *self.seen.lock().expect("no panic while it is held") = Some(guest.report(Some(isolation)));
        Ok(instance)
    }

    pub(super) fn output_bytes(&self, limits: &Limits) -> u64 {
        limits.output_bytes.unwrap_or(self.output_bytes)
    }
}

/// Whole or not at all, whoever does it at the same time.
fn write_server(server: &Path) -> std::io::Result<()> {
    if server.join("server.mjs").is_file() {
        return Ok(());
    }
    let parent = server.parent().unwrap_or(server);
    let written = tempfile::tempdir_in(parent)?;
    embedded::write(SERVER, written.path())?;
    match std::fs::rename(written.path(), server) {
        Err(_) if server.join("server.mjs").is_file() => Ok(()), // somebody else was quicker
        renamed => renamed,
    }
}
