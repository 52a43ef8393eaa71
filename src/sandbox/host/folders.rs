//! Folders of sessions on the host: emptied, measured, removed, by descriptors and never by paths.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;
use rustix::path::Arg;

/// The deepest folder that is measured: what is deeper is too much.
const MAX_DEPTH: usize = 128;
const FOLDER: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Makes a folder without what an earlier start of the service left in it.
pub(in crate::sandbox) fn make_empty(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for entry in fs::read_dir(folder)?.flatten() {
        if let Err(error) = remove(&entry.path()) {
            tracing::warn!(%error, folder = %entry.path().display(), "left behind");
        }
    }
    Ok(())
}

/// What a folder takes on its file system.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::sandbox) struct Used {
    entries: u64,
    pub(in crate::sandbox) bytes: u64,
}

impl Used {
    /// Counts a folder with all in it, no link followed. False once there are more entries than the
    /// most, or some that cannot be counted.
    pub(in crate::sandbox) fn add(&mut self, folder: &Path, most: u64) -> bool {
        let Ok(top) = rustix::fs::open(folder, FOLDER, Mode::empty()).and_then(Dir::new) else {
            return true; // it is gone
        };
        let mut open = vec![top];
        while let Some(folder) = open.last_mut() {
            let Some(Ok(entry)) = folder.read() else {
                open.pop();
                continue;
            };
            if is_dots(entry.file_name()) {
                continue;
            }
            let Ok(parent) = folder.fd() else { return false };
            let stat = rustix::fs::statat(parent, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW);
            let Ok(stat) = stat else { continue };
            self.count(&stat);
            if self.entries > most {
                return false;
            }
            if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
                continue;
            }
            let inner = rustix::fs::openat(parent, entry.file_name(), FOLDER, Mode::empty());
            match inner.and_then(Dir::new) {
                Ok(_) if open.len() == MAX_DEPTH => return false,
                Ok(inner) => open.push(inner),
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {} // another one by now
                Err(_) => return false,
            }
        }
        true
    }

    fn count(&mut self, stat: &Stat) {
        self.entries += 1;
        self.bytes += u64::try_from(stat.st_blocks).unwrap_or(0) * 512;
    }
}

/// Removes a folder with all in it, by descriptors and never by paths: no link is followed, no path
/// is too long, no depth too deep. What lies in a folder inside is lifted up to the top one first.
pub(in crate::sandbox) fn remove(folder: &Path) -> io::Result<()> {
    let top = open_for_all(rustix::fs::CWD, folder)?;
    let mut lifted = 0_u64;
    while empty_once(&top, &mut lifted)? {}
    Ok(rustix::fs::rmdir(folder)?)
}

/// One pass over the top; true when something was lifted to it or is left.
fn empty_once(top: &OwnedFd, lifted: &mut u64) -> io::Result<bool> {
    let mut more = false;
    for entry in Dir::read_from(top)? {
        let entry = entry?;
        if is_dots(entry.file_name()) || is_unlinked(top, entry.file_name())? {
            continue;
        }
        let inner = open_for_all(top, entry.file_name())?;
        for entry in Dir::read_from(&inner)? {
            let entry = entry?;
            if !is_dots(entry.file_name()) && !is_unlinked(&inner, entry.file_name())? {
                lift(&inner, entry.file_name(), top, lifted)?;
            }
        }
        more = true;
        let _ = rustix::fs::unlinkat(top, entry.file_name(), AtFlags::REMOVEDIR); // else at the next pass
    }
    Ok(more)
}

/// Moves a folder to the top under a name that is free.
fn lift(from: &OwnedFd, name: &CStr, top: &OwnedFd, lifted: &mut u64) -> io::Result<()> {
    drop(open_for_all(from, name)?); // a folder that is not writable cannot be moved
    loop {
        *lifted += 1;
        match rustix::fs::renameat_with(
            from,
            name,
            top,
            format!(".{lifted}"),
            RenameFlags::NOREPLACE,
        ) {
            Err(Errno::EXIST) => {}
            other => return Ok(other?),
        }
    }
}

/// False for a folder.
fn is_unlinked(parent: &OwnedFd, name: &CStr) -> io::Result<bool> {
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::ISDIR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Opens a folder, whatever rights were taken from it; a link is refused.
fn open_for_all(parent: impl AsFd, name: impl Arg) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let place = rustix::fs::openat(parent, name, flags | OFlags::PATH, Mode::empty())?;
    // the descriptor names the folder itself, which chmod by name would not
    rustix::fs::chmod(format!("/proc/self/fd/{}", place.as_raw_fd()), Mode::RWXU)?;
    Ok(rustix::fs::openat(&place, ".", flags, Mode::empty())?)
}

fn is_dots(name: &CStr) -> bool {
    matches!(name.to_bytes(), b"." | b"..")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn tree() -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("sub")).expect("made");
        fs::write(folder.path().join("sub/file"), vec![1; 8192]).expect("written");
        symlink("/usr", folder.path().join("link")).expect("made");
        folder
    }

    #[test]
    fn a_folder_counts_with_all_below_and_no_link_is_followed() {
        let folder = tree();
        let mut used = Used::default();
        assert!(used.add(folder.path(), 3));
        assert!(used.entries == 3 && used.bytes >= 8192, "{used:?}");
        assert!(!Used::default().add(folder.path(), 2));
    }

    #[test]
    fn what_is_closed_or_too_deep_cannot_be_counted() {
        let folder = tree();
        let mut deep = folder.path().to_owned();
        for _ in 0..MAX_DEPTH {
            deep.push("a");
        }
        fs::create_dir_all(&deep).expect("made");
        assert!(!Used::default().add(folder.path(), 1000));
    }

    #[test]
    fn a_folder_goes_with_all_in_it_however_it_is_made() {
        let outside = tempfile::tempdir().expect("a folder");
        fs::write(outside.path().join("kept"), "kept").expect("written");
        let folder = tree();
        symlink(outside.path(), folder.path().join("outside")).expect("made");
        let closed = folder.path().join("closed/inner");
        fs::create_dir_all(&closed).expect("made");
        fs::set_permissions(folder.path().join("closed"), fs::Permissions::from_mode(0o000))
            .expect("closed");
        // too long for any path
        let mut deep = rustix::fs::open(folder.path(), FOLDER, Mode::empty()).expect("open");
        for _ in 0..3000 {
            rustix::fs::mkdirat(&deep, "a", Mode::RWXU).expect("made");
            deep = rustix::fs::openat(&deep, "a", FOLDER, Mode::empty()).expect("open");
        }
        remove(folder.path()).expect("removed");
        assert!(!folder.path().exists());
        assert_eq!(fs::read_to_string(outside.path().join("kept")).expect("read"), "kept");
    }
}
