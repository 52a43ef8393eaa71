//! Installed sets of packages on disk: found, added, evicted.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::SystemTime;

use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

use crate::domain::file::FilePath;
use crate::domain::id::ExecutionId;
use crate::sandbox::PackagesError;
use crate::sandbox::host::files::Files;
use crate::sandbox::host::folders;

/// Where all layers stand in the template of sessions; a session sees none of it.
pub(super) const ALL_INSIDE: &str = "/opt/layers";
/// Where a session's own packages stand.
pub(super) const INSIDE: &str = "/opt/packages";
/// Below a layer's folder.
pub(super) const PACKAGES: &str = "packages";
/// Written last: a folder without it is no layer.
const MANIFEST: &str = "layer.json";
const PARTIAL: &str = "partial-";
/// Sets are small mostly, but each has its files.
const MAX_LAYERS: usize = 1000;
/// What a file takes at least on most file systems.
const BLOCK_BYTES: u64 = 4096;

/// All layers of this service.
pub(super) struct Layers {
    folder: PathBuf,
    /// How much all of them may take together.
    most_bytes: u64,
    /// Those that sandboxes use.
    used: Mutex<HashMap<String, Weak<Layer>>>,
}

/// One installed set of packages; it is not evicted while this is held.
#[derive(Debug)]
pub(super) struct Layer {
    pub(super) key: String,
    /// The folder on the host that goes on the path of modules.
    pub(super) packages: PathBuf,
    pub(super) manifest: Manifest,
}

/// What is noted of a layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    /// What was asked for.
    pub(super) requirements: Vec<String>,
    /// What was installed, as name==version.
    pub(super) installed: Vec<String>,
    pub(super) bytes: u64,
}

impl Layers {
    /// Layers below a folder. Nothing is touched yet.
    pub(super) fn new(folder: PathBuf, most_bytes: u64) -> Self {
        Self { folder, most_bytes, used: Mutex::default() }
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Makes the folder.
    pub(super) fn prepare(&self) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        open_to_sessions(&self.folder)
    }

    /// Removes what a service left that ended in the middle. No other may be at work in the folder.
    pub(super) fn clear(&self) -> io::Result<()> {
        let entries = fs::read_dir(&self.folder)?.flatten();
        for entry in entries.filter(|it| it.file_name().to_string_lossy().starts_with(PARTIAL)) {
            if let Err(error) = folders::remove(&entry.path()) {
                tracing::warn!(%error, folder = %entry.path().display(), "left behind");
            }
        }
        Ok(())
    }

    /// The layer of this key, where there is one. It counts as used now.
    pub(super) fn get(&self, key: &str) -> Option<Arc<Layer>> {
        let mut used = self.used();
        let folder = self.folder.join(key);
        if let Ok(file) = fs::File::open(folder.join(MANIFEST)) {
            let _ = file.set_modified(SystemTime::now());
        }
        if let Some(layer) = used.get(key).and_then(Weak::upgrade) {
            return Some(layer);
        }
        let manifest = read_manifest(&folder)?;
        Some(keep(&mut used, key, &folder, manifest))
    }

    pub(super) fn has(&self, key: &str) -> bool {
        read_manifest(&self.folder.join(key)).is_some()
    }

    /// Takes over what was installed below `from` in a room's files: regular files alone, of at most
    /// so many bytes together. There is all of it under the key, or nothing.
    pub(super) fn add(
        &self,
        key: &str,
        files: &Files,
        from: &str,
        most_bytes: u64,
        mut manifest: Manifest,
    ) -> Result<Arc<Layer>, AddError> {
        let partial = self.folder.join(format!("{PARTIAL}{key}"));
        let taken = take_over(files, from, &partial.join(PACKAGES), most_bytes);
        let added = taken.and_then(|bytes| {
            manifest.bytes = bytes;
            self.make_room_for(bytes)?;
            self.publish(key, &partial, manifest)
        });
        if added.is_err() && partial.exists() {
            let _ = folders::remove(&partial);
        }
        added
    }

    fn publish(
        &self,
        key: &str,
        partial: &Path,
        manifest: Manifest,
    ) -> Result<Arc<Layer>, AddError> {
        let text = serde_json::to_vec(&manifest).expect("a manifest has string keys");
        fs::write(partial.join(MANIFEST), text)?;
        open_to_sessions(partial)?;
        // contents before the name: after a power cut there is no layer with empty files
        let folder = rustix::fs::open(partial, OFlags::DIRECTORY, Mode::empty());
        folder.and_then(|folder| rustix::fs::syncfs(&folder)).map_err(io::Error::from)?;
        let mut used = self.used();
        let folder = self.folder.join(key);
        if folder.exists() {
            folders::remove(&folder)?; // it is no layer: there was none of this key
        }
        fs::rename(partial, &folder)?;
        Ok(keep(&mut used, key, &folder, manifest))
    }

    /// Evicts what was used least lately, until there is room for so many bytes.
    fn make_room_for(&self, bytes: u64) -> Result<(), AddError> {
        let mut found: Vec<_> = fs::read_dir(&self.folder)?
            .flatten()
            .filter(|entry| !entry.file_name().to_string_lossy().starts_with(PARTIAL))
            .filter_map(|entry| Stored::read(entry.path()))
            .collect();
        found.sort_by_key(|stored| stored.used_at);
        let mut total: u64 = found.iter().map(|stored| stored.bytes).sum();
        let mut count = found.len();
        for stored in found {
            if total.saturating_add(bytes) <= self.most_bytes && count < MAX_LAYERS {
                break;
            }
            match self.evict(&stored) {
                Ok(true) => (total, count) = (total - stored.bytes, count - 1),
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(%error, "packages that were not used were not removed");
                }
            }
        }
        if total.saturating_add(bytes) > self.most_bytes {
            return Err(AddError::Packages(PackagesError::CacheFull(self.most_bytes)));
        }
        Ok(())
    }

    /// False when a sandbox uses it.
    fn evict(&self, stored: &Stored) -> io::Result<bool> {
        let key = stored.folder.file_name().unwrap_or_default().to_string_lossy();
        let gone = self.folder.join(format!("{PARTIAL}{}", ExecutionId::new()));
        {
            let mut used = self.used();
            if used.get(key.as_ref()).is_some_and(|layer| layer.strong_count() > 0) {
                return Ok(false);
            }
            used.remove(key.as_ref());
            fs::rename(&stored.folder, &gone)?;
        }
        folders::remove(&gone)?;
        tracing::info!(layer = %key, "packages that were not used lately were removed");
        Ok(true)
    }

    fn used(&self) -> MutexGuard<'_, HashMap<String, Weak<Layer>>> {
        self.used.lock().expect("no panic while the layers are held")
    }
}

/// Why a layer was not added.
#[derive(Debug, thiserror::Error)]
pub(super) enum AddError {
    #[error(transparent)]
    Packages(#[from] PackagesError),
    #[error("the packages cannot be written")]
    Io(#[from] io::Error),
}

/// A layer as it lies on disk.
struct Stored {
    folder: PathBuf,
    bytes: u64,
    used_at: SystemTime,
}

impl Stored {
    fn read(folder: PathBuf) -> Option<Self> {
        let bytes = read_manifest(&folder)?.bytes;
        let used_at = fs::metadata(folder.join(MANIFEST)).ok()?.modified().ok()?;
        Some(Self { folder, bytes, used_at })
    }
}

fn keep(
    used: &mut HashMap<String, Weak<Layer>>,
    key: &str,
    folder: &Path,
    manifest: Manifest,
) -> Arc<Layer> {
    let layer = Arc::new(Layer { key: key.to_owned(), packages: folder.join(PACKAGES), manifest });
    used.insert(key.to_owned(), Arc::downgrade(&layer));
    layer
}

fn read_manifest(folder: &Path) -> Option<Manifest> {
    serde_json::from_slice(&fs::read(folder.join(MANIFEST)).ok()?).ok()
}

/// Copies regular files out of a room, through its descriptors; gives how many bytes they have.
fn take_over(files: &Files, from: &str, to: &Path, most_bytes: u64) -> Result<u64, AddError> {
    if let Some(partial) = to.parent().filter(|partial| partial.exists()) {
        folders::remove(partial)?;
    }
    fs::create_dir_all(to)?;
    open_to_sessions(to)?;
    let too_large = || AddError::Packages(PackagesError::TooLarge(most_bytes));
    let listing = files.list()?;
    if listing.cut {
        return Err(too_large());
    }
    let mut bytes = 0;
    let paths = listing.files.into_keys().filter_map(|path| FilePath::new(path).ok());
    for path in paths {
        let Some(inside) = path.as_str().strip_prefix(from) else { continue };
        let (entry, source) = files.read(&path).map_err(io::Error::other)?;
        bytes += entry.size_bytes.next_multiple_of(BLOCK_BYTES);
        if bytes > most_bytes {
            return Err(too_large());
        }
        copy(source, entry.size_bytes, &to.join(inside), to)?;
    }
    Ok(bytes)
}

fn copy(source: fs::File, bytes: u64, target: &Path, top: &Path) -> io::Result<()> {
    let made: Vec<_> = target
        .ancestors()
        .skip(1)
        .take_while(|folder| *folder != top && !folder.exists())
        .map(Path::to_owned)
        .collect();
    for folder in made.iter().rev() {
        fs::create_dir(folder)?;
        open_to_sessions(folder)?;
    }
    let is_program = source.metadata()?.permissions().mode() & 0o111 != 0;
    let mut file = fs::File::create_new(target)?;
    io::copy(&mut io::Read::take(source, bytes), &mut file)?;
    let mode = if is_program { 0o755 } else { 0o644 };
    file.set_permissions(fs::Permissions::from_mode(mode))
}

/// Sessions are other users of the host; whatever mask the service got.
fn open_to_sessions(folder: &Path) -> io::Result<()> {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn manifest() -> Manifest {
        Manifest { requirements: vec!["x".into()], installed: vec!["x==1".into()], bytes: 0 }
    }

    /// A room's files with an installed module of so many bytes.
    fn installed(bytes: usize) -> (tempfile::TempDir, Files) {
        let folder = tempfile::tempdir().expect("a folder");
        let open = |flags| rustix::fs::open(folder.path(), flags, Mode::empty()).expect("open");
        fs::create_dir_all(folder.path().join("layer/x/y")).expect("made");
        fs::write(folder.path().join("layer/x/y/z.py"), vec![b'#'; bytes]).expect("written");
        fs::write(folder.path().join("pip.log"), "no part of it").expect("written");
        let files = Files::new(open(OFlags::RDONLY | OFlags::DIRECTORY), open(OFlags::PATH));
        (folder, files)
    }

    fn layers(most_bytes: u64) -> (tempfile::TempDir, Layers) {
        let folder = tempfile::tempdir().expect("a folder");
        let layers = Layers::new(folder.path().join("layers"), most_bytes);
        layers.prepare().expect("prepared");
        (folder, layers)
    }

    #[test]
    fn regular_files_alone_become_a_layer_that_others_can_read_and_only_the_owner_can_change() {
        let (_folder, layers) = layers(10_000);
        let (room, files) = installed(100);
        symlink("/etc/passwd", room.path().join("layer/x/passwd")).expect("linked");
        fs::set_permissions(room.path().join("layer/x/y/z.py"), fs::Permissions::from_mode(0o6777))
            .expect("set");
        let layer = layers.add("k", &files, "layer/", 10_000, manifest()).expect("added");
        let module = layer.packages.join("x/y/z.py");
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o7777;
        assert_eq!((mode(&module), mode(module.parent().expect("one"))), (0o755, 0o755));
        assert!(!layer.packages.join("x/passwd").exists());
        assert_eq!(layer.manifest, Manifest { bytes: 4096, ..manifest() });
        let again = Layers::new(layers.folder.clone(), 10_000);
        assert_eq!(again.get("k").expect("there").manifest, layer.manifest);
    }

    #[test]
    fn what_is_too_large_leaves_nothing() {
        let (_folder, layers) = layers(1000);
        let (_room, files) = installed(4097);
        let refused = layers.add("k", &files, "layer/", 4096, manifest());
        assert!(matches!(refused, Err(AddError::Packages(PackagesError::TooLarge(4096)))));
        assert_eq!(fs::read_dir(&layers.folder).expect("there").count(), 0);
    }

    #[test]
    fn the_least_lately_used_goes_first_and_none_that_is_in_use() {
        let (_folder, layers) = layers(10_000);
        let (_room, files) = installed(100);
        let add = |key| layers.add(key, &files, "layer/", 10_000, manifest());
        let used = add("used").expect("added");
        drop(add("old").expect("added"));
        drop(add("new").expect("added, and old has gone"));
        assert!(layers.has("used") && layers.has("new") && !layers.has("old"));
        let new = layers.get("new").expect("there");
        let full = add("third");
        assert!(matches!(full, Err(AddError::Packages(PackagesError::CacheFull(10_000)))));
        drop((used, new));
        add("third").expect("added");
    }

    #[test]
    fn what_a_service_left_that_ended_in_the_middle_is_removed_and_no_layer() {
        let (_folder, layers) = layers(10_000);
        fs::create_dir_all(layers.folder.join("partial-k/packages/x")).expect("made");
        fs::create_dir_all(layers.folder.join("unfinished/packages")).expect("made");
        layers.clear().expect("cleared");
        assert!(!layers.folder.join("partial-k").exists());
        assert!(layers.get("unfinished").is_none() && !layers.has("unfinished"));
        let (_room, files) = installed(100);
        layers.add("unfinished", &files, "layer/", 10_000, manifest()).expect("added in its place");
        assert!(layers.has("unfinished"));
    }
}
