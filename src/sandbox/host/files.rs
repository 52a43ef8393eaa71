//! A session's files on this host, through descriptors of their folder.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Mutex;

use bytes::Bytes;
use futures::{StreamExt, stream};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, SeekFrom};
use rustix::io::Errno;

use super::listing::{Listing, Stamp, entry};
use crate::domain::file::{Condition, FileEntry, FilePath, Part};
use crate::domain::id::ExecutionId;
use crate::sandbox::{ByteStream, SandboxError};

/// No path leaves the folder, whatever links the session has put there.
const BENEATH: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS).union(ResolveFlags::NO_XDEV);

const READ_BYTES: usize = 256 * 1024;

/// The files folder of one room. It works while a cell runs and after the room has died; the memory
/// is freed when it is dropped.
pub(in crate::sandbox) struct Files(Option<Descriptors>);

struct Descriptors {
    /// Open for reading, to walk.
    readable: OwnedFd,
    /// Where paths start.
    place: OwnedFd,
    /// Held by one change at a time, so that what its condition has seen is still so.
    changing: Mutex<()>,
}

/// Closing the last descriptor frees all of the tmpfs, which takes its time.
impl Drop for Files {
    fn drop(&mut self) {
        let descriptors = self.0.take();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn_blocking(move || drop(descriptors));
        }
    }
}

/// A file on its way in: it has no name until it is published whole.
pub(in crate::sandbox) struct Upload {
    pub(in crate::sandbox) file: File,
}

impl Files {
    pub(in crate::sandbox) fn new(readable: OwnedFd, place: OwnedFd) -> Self {
        Self(Some(Descriptors { readable, place, changing: Mutex::new(()) }))
    }

    fn descriptors(&self) -> &Descriptors {
        self.0.as_ref().expect("taken by drop alone")
    }

    fn place(&self) -> &OwnedFd {
        &self.descriptors().place
    }

    /// What the file system that the folder is on holds now.
    pub(in crate::sandbox) fn bytes_of_file_system(&self) -> u64 {
        let Ok(found) = rustix::fs::fstatfs(self.place()) else { return 0 };
        found.f_blocks.saturating_sub(found.f_bfree) * found.f_bsize as u64
    }

    /// What the file system that the folder is on has left.
    pub(in crate::sandbox) fn free_bytes(&self) -> u64 {
        rustix::fs::fstatfs(self.place())
            .map_or(0, |found| found.f_bavail.saturating_mul(found.f_bsize as u64))
    }

    /// Opens a regular file for reading.
    pub(in crate::sandbox) fn read(
        &self,
        path: &FilePath,
    ) -> Result<(FileEntry, File), SandboxError> {
        // non-blocking: a FIFO of this name must not hold the service up
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = self.open(path.as_str(), flags).map_err(|errno| refused(errno, path))?;
        let stat = rustix::fs::fstat(&file).map_err(|errno| refused(errno, path))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(SandboxError::NotAFile(path.to_string()));
        }
        Ok((entry(path.as_str(), &Stamp::of(&stat)), File::from(file)))
    }

    /// Starts a file that nobody can see yet.
    pub(in crate::sandbox) fn upload(&self) -> Result<Upload, SandboxError> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o644);
        let file = rustix::fs::openat(self.place(), ".", flags, mode).map_err(storage)?;
        Ok(Upload { file: File::from(file) })
    }

    /// Gives an upload its name, in place of what had it, if the condition holds.
    pub(in crate::sandbox) fn publish(
        &self,
        upload: &Upload,
        path: &FilePath,
        condition: &Condition,
    ) -> Result<(FileEntry, Stamp), SandboxError> {
        let _changing = self.descriptors().changing.lock().expect("no panic while it is held");
        self.check(path, condition)?;
        let parent = self.make_parent(path)?;
        let hidden = format!(".{}.upload", ExecutionId::new());
        let source = format!("/proc/self/fd/{}", upload.file.as_raw_fd());
        rustix::fs::linkat(
            rustix::fs::CWD,
            source.as_str(),
            &parent,
            hidden.as_str(),
            AtFlags::SYMLINK_FOLLOW,
        )
        .map_err(|errno| match errno {
            Errno::NOENT => refused(Errno::NOTDIR, path), // a cell has moved its folder meanwhile
            errno => storage(errno),
        })?;
        if let Err(errno) = rustix::fs::renameat(&parent, hidden.as_str(), &parent, path.name()) {
            let _ = rustix::fs::unlinkat(&parent, hidden.as_str(), AtFlags::empty());
            return Err(refused(errno, path));
        }
        let stat = rustix::fs::fstat(&upload.file).map_err(storage)?;
        let stamp = Stamp::of(&stat);
        Ok((entry(path.as_str(), &stamp), stamp))
    }

    fn check(&self, path: &FilePath, condition: &Condition) -> Result<(), SandboxError> {
        if *condition == Condition::Always {
            return Ok(());
        }
        let etag = match self.read(path) {
            Ok((entry, _)) => Some(entry.etag),
            Err(SandboxError::NoSuchFile(_)) => None,
            Err(error) => return Err(error),
        };
        if condition.holds(etag.as_deref()) { Ok(()) } else { Err(SandboxError::ConditionFailed) }
    }

    /// Removes a file, if the condition holds; a folder is no file.
    pub(in crate::sandbox) fn remove(
        &self,
        path: &FilePath,
        condition: &Condition,
    ) -> Result<(), SandboxError> {
        let _changing = self.descriptors().changing.lock().expect("no panic while it is held");
        self.check(path, condition)?;
        let parent = match path.as_str().rsplit_once('/') {
            Some((parent, _)) => {
                self.open(parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC)
            }
            None => self.place().try_clone().map_err(|_| Errno::IO),
        };
        let parent = parent.map_err(|errno| refused(errno, path))?;
        rustix::fs::unlinkat(&parent, path.name(), AtFlags::empty())
            .map_err(|errno| refused(errno, path))
    }

    /// All regular files, within bounds, no link followed.
    pub(in crate::sandbox) fn list(&self) -> io::Result<Listing> {
        self.list_expecting(0)
    }

    /// The same where there were so many.
    pub(in crate::sandbox) fn list_expecting(&self, expected: usize) -> io::Result<Listing> {
        Listing::of(self.descriptors().readable.as_fd(), expected)
    }

    /// The same where they are few; None where they are not.
    pub(in crate::sandbox) fn list_few(&self) -> Option<Listing> {
        Listing::of_few(self.descriptors().readable.as_fd())
    }

    /// Copies every file into another folder, descriptor to descriptor, times kept. Says whether
    /// all of them arrived.
    pub(in crate::sandbox) fn copy_into(&self, target: &Self) -> bool {
        let Ok(listing) = self.list() else { return false };
        let mut whole = !listing.cut;
        for path in listing.files.keys() {
            whole &=
                FilePath::new(path.clone()).is_ok_and(|path| self.copy_file(&path, target).is_ok());
        }
        whole
    }

    fn copy_file(&self, path: &FilePath, target: &Self) -> Result<(), SandboxError> {
        let (_, source) = self.read(path)?;
        let upload = target.upload()?;
        upload.copy_from(&source)?;
        target.publish(&upload, path, &Condition::Always)?;
        Ok(())
    }

    fn open(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        rustix::fs::openat2(self.place(), path, flags, Mode::empty(), BENEATH)
    }

    fn make_parent(&self, path: &FilePath) -> Result<OwnedFd, SandboxError> {
        let folder = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut parent = self.place().try_clone().map_err(SandboxError::Io)?;
        let parts: Vec<&str> = path.as_str().split('/').collect();
        for part in &parts[..parts.len() - 1] {
            match rustix::fs::mkdirat(&parent, *part, Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(refused(errno, path)),
            }
            parent = rustix::fs::openat2(&parent, *part, folder, Mode::empty(), BENEATH)
                .map_err(|errno| refused(errno, path))?;
        }
        Ok(parent)
    }
}

impl Upload {
    /// Takes over content and times of another file.
    pub(in crate::sandbox) fn copy_from(&self, source: &File) -> Result<(), SandboxError> {
        let stat = rustix::fs::fstat(source).map_err(storage)?;
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        rustix::fs::ftruncate(&self.file, size).map_err(storage)?;
        // holes stay holes: a sparse file takes no more room than before
        let mut position = 0;
        while let Ok(data) = rustix::fs::seek(source, SeekFrom::Data(position)) {
            let hole = rustix::fs::seek(source, SeekFrom::Hole(data)).unwrap_or(size);
            rustix::fs::seek(source, SeekFrom::Start(data)).map_err(storage)?;
            rustix::fs::seek(&self.file, SeekFrom::Start(data)).map_err(storage)?;
            let mut piece = io::Read::take(source, hole.saturating_sub(data));
            io::copy(&mut piece, &mut &self.file).map_err(own_doing)?;
            if hole >= size {
                break;
            }
            position = hole;
        }
        let modified =
            rustix::fs::Timespec { tv_sec: stat.st_mtime as _, tv_nsec: stat.st_mtime_nsec as _ };
        let times = rustix::fs::Timestamps { last_access: modified, last_modification: modified };
        rustix::fs::futimens(&self.file, &times).map_err(storage)?;
        rustix::fs::fchmod(&self.file, Mode::from_raw_mode(stat.st_mode & 0o777)).map_err(storage)
    }
}

/// A part of an opened file, as it comes: at most what was told, however much the program goes on writing.
pub(in crate::sandbox) fn content(
    entry: FileEntry,
    mut file: File,
    part: Part,
) -> Result<(FileEntry, ByteStream), SandboxError> {
    let size = entry.size_bytes;
    let (first, length) = part.within(size).ok_or(SandboxError::NoSuchPart(size))?;
    file.seek(io::SeekFrom::Start(first)).map_err(own_doing)?;
    let content = stream::try_unfold((file, length), |(mut file, left)| async move {
        if left == 0 {
            return Ok(None);
        }
        let mut piece = vec![0; READ_BYTES.min(usize::try_from(left).unwrap_or(READ_BYTES))];
        let count = file.read(&mut piece)?;
        if count == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        piece.truncate(count);
        Ok(Some((Bytes::from(piece), (file, left - count as u64))))
    });
    Ok((entry, content.boxed()))
}

/// Work on files, apart from threads that must not wait for a disk.
pub(in crate::sandbox) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SandboxError> + Send + 'static,
) -> Result<T, SandboxError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(SandboxError::Io(error.into())),
    }
}

/// A failed read or write: what is the session's own doing, like being out of room, is no fault.
pub(in crate::sandbox) fn own_doing(error: io::Error) -> SandboxError {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => SandboxError::Full,
        io::ErrorKind::PermissionDenied | io::ErrorKind::WouldBlock => SandboxError::HeldBack,
        _ => SandboxError::Io(error),
    }
}

fn refused(errno: Errno, path: &FilePath) -> SandboxError {
    match errno {
        Errno::NOENT => SandboxError::NoSuchFile(path.to_string()),
        Errno::NOTDIR | Errno::ISDIR | Errno::LOOP | Errno::XDEV | Errno::NXIO | Errno::EXIST => {
            SandboxError::NotAFile(path.to_string())
        }
        other => storage(other),
    }
}

fn storage(errno: Errno) -> SandboxError {
    match errno {
        Errno::NOSPC | Errno::DQUOT => SandboxError::Full,
        // the session's own code has taken the rights away, or holds the file
        Errno::ACCESS | Errno::PERM | Errno::AGAIN | Errno::TXTBSY => SandboxError::HeldBack,
        other => SandboxError::Io(other.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::super::listing::FEW;
    use super::*;

    fn folder() -> (tempfile::TempDir, Files) {
        let folder = tempfile::tempdir().expect("a folder");
        let open = |flags| rustix::fs::open(folder.path(), flags, Mode::empty()).expect("open");
        let files = Files::new(open(OFlags::RDONLY | OFlags::DIRECTORY), open(OFlags::PATH));
        (folder, files)
    }

    fn path(text: &str) -> FilePath {
        FilePath::new(text).expect("a path")
    }

    #[test]
    fn links_that_lead_out_are_refused_and_links_inside_are_followed() {
        let (folder, files) = folder();
        std::fs::write(folder.path().join("a.txt"), "a").expect("written");
        for (target, link) in
            [("/etc/passwd", "abs"), ("../..", "up"), ("a.txt", "in"), ("/proc/self/root", "root")]
        {
            symlink(target, folder.path().join(link)).expect("linked");
        }
        for name in ["abs", "up/etc/passwd", "root/etc/passwd", "up"] {
            assert!(matches!(files.read(&path(name)), Err(SandboxError::NotAFile(_))), "{name}");
        }
        assert!(files.read(&path("in")).is_ok());
        let upload = files.upload().expect("upload");
        assert!(files.publish(&upload, &path("up/x"), &Condition::Always).is_err());
        let listed: Vec<_> = files.list().expect("list").files.into_keys().collect();
        assert_eq!(listed, ["a.txt"]);
    }

    #[test]
    fn a_sparse_file_is_copied_with_its_holes() {
        let (from_folder, from) = folder();
        let (to_folder, to) = folder();
        let sparse = File::create(from_folder.path().join("s.bin")).expect("made");
        sparse.set_len(1 << 30).expect("sparse");
        std::os::unix::fs::FileExt::write_all_at(&sparse, b"middle", 1 << 29).expect("written");
        std::fs::write(from_folder.path().join("plain.txt"), "plain").expect("written");
        assert!(from.copy_into(&to));
        let copy = File::open(to_folder.path().join("s.bin")).expect("copied");
        let metadata = copy.metadata().expect("there");
        assert_eq!(metadata.len(), 1 << 30);
        assert!(std::os::unix::fs::MetadataExt::blocks(&metadata) < 100);
        let mut middle = [0; 6];
        std::os::unix::fs::FileExt::read_exact_at(&copy, &mut middle, 1 << 29).expect("read");
        assert_eq!(&middle, b"middle");
        assert_eq!(std::fs::read(to_folder.path().join("plain.txt")).expect("copied"), b"plain");
    }

    #[test]
    fn few_files_are_listed_like_many_and_many_are_not_listed_as_few() {
        let (folder, files) = folder();
        std::fs::create_dir(folder.path().join("sub")).expect("made");
        for number in 0..FEW - 1 {
            std::fs::write(folder.path().join(format!("sub/{number}")), "x").expect("written");
        }
        let (few, all) = (files.list_few().expect("few"), files.list().expect("all"));
        assert_eq!(few.files, all.files);
        std::fs::create_dir(folder.path().join("one more")).expect("made");
        assert!(files.list_few().is_none());
    }

    #[test]
    fn a_fifo_or_a_folder_is_no_file() {
        let (folder, files) = folder();
        let made = rustix::fs::mknodat(
            rustix::fs::CWD,
            folder.path().join("pipe"),
            FileType::Fifo,
            Mode::from_raw_mode(0o644),
            0,
        );
        made.expect("a pipe");
        std::fs::create_dir(folder.path().join("sub")).expect("made");
        for name in ["pipe", "sub"] {
            assert!(matches!(files.read(&path(name)), Err(SandboxError::NotAFile(_))), "{name}");
        }
    }

    #[test]
    fn an_upload_is_invisible_until_it_is_whole_and_replaces_what_was_there() {
        let (_folder, files) = folder();
        for content in ["one", "two and more"] {
            let before = files.list().expect("list");
            let upload = files.upload().expect("upload");
            io::Write::write_all(&mut &upload.file, content.as_bytes()).expect("written");
            assert_eq!(files.list().expect("list").files, before.files);
            files.publish(&upload, &path("sub/ü x.txt"), &Condition::Always).expect("published");
            let (_, mut file) = files.read(&path("sub/ü x.txt")).expect("read");
            assert_eq!(io::read_to_string(&mut file).expect("text"), content);
        }
        let after = files.list().expect("list");
        assert_eq!(after.changes_since(&Listing::default()).0.len(), 1);
        assert_eq!(after.changes_since(&after).0, []);
    }
}
