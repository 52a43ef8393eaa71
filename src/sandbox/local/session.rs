//! One local sandbox: a room that is made anew when its kernel has died.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as StdMutex};
use std::time::Duration;

use async_trait::async_trait;
use futures::{FutureExt, StreamExt};
use tokio::sync::{Mutex, Notify};
use tokio::task::{block_in_place, spawn_blocking};

use super::error::LocalError;
use super::handle::Room;
use super::kernel::Kernel;
use super::layers::Layer;
use super::workshop::{Tenant, Workshop};
use crate::domain::coded::chain;
use crate::domain::event::OutputSink;
use crate::domain::execution::{Cell, Execution};
use crate::domain::file::{Condition, FileEntry, FilePath, Part};
use crate::domain::id::SessionId;
use crate::domain::limits::Limits;
use crate::domain::session::SandboxRecord;
use crate::sandbox::host::files::{self, Upload, blocking, own_doing};
use crate::sandbox::host::seen::Seen;
use crate::sandbox::{ByteStream, Sandbox, SandboxError, SandboxSpec};

/// Where files are in a root of its own.
const FILES_DIR: &str = "/files";
/// Memory is asked for in pieces of this size.
const ADMITTED_BYTES: u64 = 8 << 20;

pub(super) struct LocalSandbox {
    id: SessionId,
    workshop: Arc<Workshop>,
    limits: Limits,
    /// Packages besides the guest's.
    layer: Option<Arc<Layer>>,
    env: StdMutex<BTreeMap<String, String>>,
    /// The kernel, for one cell at a time; None once it has died and could not be made anew.
    kernel: Mutex<Option<Kernel>>,
    /// The room of now, for everybody; a new one takes its place when its kernel has died.
    room: StdMutex<Arc<Room>>,
    /// Held while files move from a dead room to its successor, and for each change of a file.
    moving: tokio::sync::RwLock<()>,
    seen: Seen,
    interrupt: Notify,
    running: AtomicBool,
    terminated: AtomicBool,
}

impl LocalSandbox {
    pub(super) async fn create(
        workshop: Arc<Workshop>,
        spec: &SandboxSpec,
        layer: Option<Arc<Layer>>,
    ) -> Result<Self, LocalError> {
        let tenant = Tenant {
            sandbox_id: spec.session_id,
            limits: &spec.limits,
            env: &spec.env,
            layer: layer.as_ref(),
            primed: spec.primed,
        };
        let (room, kernel) = workshop.make_room(&tenant).await?;
        Ok(Self {
            id: spec.session_id,
            workshop,
            limits: spec.limits,
            layer,
            env: StdMutex::new(spec.env.clone()),
            kernel: Mutex::new(Some(kernel)),
            room: StdMutex::new(room),
            moving: tokio::sync::RwLock::new(()),
            seen: Seen::default(),
            interrupt: Notify::new(),
            running: AtomicBool::new(false),
            terminated: AtomicBool::new(false),
        })
    }

    fn room(&self) -> Arc<Room> {
        Arc::clone(&self.room.lock().expect("no panic while the room is held"))
    }

    fn is_terminated(&self) -> bool {
        self.terminated.load(Ordering::SeqCst)
    }

    /// A room in place of one that has died, with its files. Says whether all files arrived.
    async fn replace_room(&self) -> Result<(Kernel, bool), LocalError> {
        let old = self.room();
        old.kill();
        if !old.gone().await {
            return Err(LocalError::NotGone);
        }
        let env = self.env.lock().expect("no panic while the environment is held").clone();
        let tenant = Tenant {
            sandbox_id: self.id,
            limits: &self.limits,
            env: &env,
            layer: self.layer.as_ref(),
            primed: false,
        };
        let (room, kernel) = self.workshop.make_room(&tenant).await?;
        let _moving = self.moving.write().await;
        let new = Arc::clone(&room);
        let moved = spawn_blocking(move || {
            let whole = new.has_files_of(&old) || old.files.copy_into(&new.files);
            // the copies have new inodes, and none of that is a cell's doing
            (whole, new.files.list().unwrap_or_default())
        });
        let (whole, listing) = moved.await.unwrap_or_default();
        self.seen.set(listing);
        *self.room.lock().expect("no panic while the room is held") = Arc::clone(&room);
        if self.is_terminated() {
            self.end(&room).await;
        }
        Ok((kernel, whole))
    }

    async fn end(&self, room: &Room) {
        if let Err(error) = room.end().await {
            let cause = chain(&error);
            tracing::error!(error = cause, sandbox.id = %self.id, "a sandbox has not ended whole");
        }
    }

    /// Makes the sandbox usable again after its kernel has died.
    async fn recover(&self, execution: &mut Execution) -> Option<Kernel> {
        if self.is_terminated() {
            execution.files_lost = true;
            return None;
        }
        match self.replace_room().await {
            Ok((kernel, whole)) => {
                execution.files_lost = !whole;
                Some(kernel)
            }
            Err(error) => {
                tracing::error!(error = chain(&error), "a dead room was not replaced");
                execution.files_lost = true;
                None
            }
        }
    }

    async fn publish(
        &self,
        upload: Upload,
        path: &FilePath,
        room: Arc<Room>,
        condition: Condition,
    ) -> Result<FileEntry, SandboxError> {
        let _moving = self.moving.read().await;
        let now = self.room();
        let path_inside = path.clone();
        let (entry, stamp) = blocking(move || {
            if Arc::ptr_eq(&room, &now) {
                return now.files.publish(&upload, &path_inside, &condition);
            }
            // the room died while the content came in: what came lies in the old one's tmpfs
            let copy = now.files.upload()?;
            copy.copy_from(&upload.file)?;
            now.files.publish(&copy, &path_inside, &condition)
        })
        .await?;
        self.seen.note_put(path, stamp);
        Ok(entry)
    }
}

#[async_trait]
impl Sandbox for LocalSandbox {
    fn record(&self) -> SandboxRecord {
        SandboxRecord { sandbox_id: self.id.to_string(), detail: serde_json::Value::Null }
    }

    fn files_dir(&self) -> String {
        match self.room().folder() {
            Some(folder) => folder.join("files").to_string_lossy().into_owned(),
            None => FILES_DIR.to_owned(),
        }
    }

    async fn adopt(&self, spec: &SandboxSpec) -> Result<(), SandboxError> {
        let mut slot = self.kernel.lock().await;
        let kernel = slot.as_mut().filter(|_| !self.is_terminated()).ok_or(SandboxError::Lost)?;
        if kernel.is_unfit() || !kernel.tell_environ(&spec.env).await {
            return Err(SandboxError::Lost);
        }
        self.env.lock().expect("no panic while the environment is held").clone_from(&spec.env);
        Ok(())
    }

    async fn execute(&self, cell: &Cell, sink: &OutputSink) -> Result<Execution, SandboxError> {
        let mut slot = self.kernel.lock().await;
        if self.is_terminated() {
            return Err(SandboxError::Lost);
        }
        // a kernel may have died, or gone astray, between cells: this cell was not handed over to it
        let mut lost = None;
        if slot.as_mut().is_none_or(Kernel::is_unfit) {
            let (kernel, whole) = self.replace_room().await.map_err(super::not_ready)?;
            *slot = Some(kernel);
            lost = Some(!whole);
        }
        let Some(kernel) = slot.as_mut() else { return Err(SandboxError::Lost) };
        let _ = self.interrupt.notified().now_or_never(); // one meant for an earlier cell
        self.running.store(true, Ordering::SeqCst);
        let room = self.room();
        let (mut execution, death) = kernel.run(&room, cell, &self.interrupt, sink).await;
        self.running.store(false, Ordering::SeqCst);
        self.seen.tell(self.room(), &mut execution).await;
        if let Some(files_lost) = lost {
            execution.state_lost = true;
            execution.files_lost = files_lost;
        }
        if death.is_some() {
            *slot = self.recover(&mut execution).await;
        }
        Ok(execution)
    }

    async fn write_file(
        &self,
        path: &FilePath,
        mut content: ByteStream,
        max_bytes: u64,
        condition: &Condition,
    ) -> Result<FileEntry, SandboxError> {
        let room = self.room();
        let mut upload = room.files.upload()?;
        let (mut length, mut admitted) = (0, 0);
        while let Some(piece) = content.next().await {
            let piece = piece.map_err(SandboxError::ContentCut)?;
            length += piece.len() as u64;
            if length > max_bytes {
                return Err(SandboxError::FileTooLarge(max_bytes));
            }
            if length >= admitted {
                admitted = length + ADMITTED_BYTES;
                self.workshop.admit(&room, ADMITTED_BYTES)?;
            }
            let mut write = || upload.file.write_all(&piece);
            // a page of tmpfs at a time is memory; a disk could hold this thread up
            let written = if room.folder().is_some() { block_in_place(write) } else { write() };
            written.map_err(own_doing)?;
        }
        self.publish(upload, path, room, condition.clone()).await
    }

    async fn read_file(
        &self,
        path: &FilePath,
        part: Part,
    ) -> Result<(FileEntry, ByteStream), SandboxError> {
        let room = self.room();
        let path = path.clone();
        let (entry, file) = blocking(move || room.files.read(&path)).await?;
        files::content(entry, file, part)
    }

    async fn list_files(&self) -> Result<Vec<FileEntry>, SandboxError> {
        let room = self.room();
        blocking(move || Ok(room.files.list().map_err(own_doing)?.entries())).await
    }

    async fn delete_file(
        &self,
        path: &FilePath,
        condition: &Condition,
    ) -> Result<(), SandboxError> {
        let _moving = self.moving.read().await;
        let room = self.room();
        let (inside, condition) = (path.clone(), condition.clone());
        blocking(move || room.files.remove(&inside, &condition)).await?;
        self.seen.note_removed(path);
        Ok(())
    }

    async fn interrupt(&self) {
        if self.running.load(Ordering::SeqCst) {
            self.interrupt.notify_one();
        }
    }

    async fn extend(&self, _: Duration) -> Result<(), SandboxError> {
        Ok(()) // a room has no deadline of its own
    }

    async fn terminate(&self) {
        self.terminated.store(true, Ordering::SeqCst);
        self.end(&self.room()).await;
    }
}
