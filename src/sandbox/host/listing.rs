//! Which files there are, and what a cell did to them.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use time::OffsetDateTime;

use crate::domain::file::{Change, ChangedFile, FileEntry, MAX_PATH_BYTES};

/// How many files a listing holds at most.
const MAX_ENTRIES: usize = 100_000;
/// How long all paths of a listing are together.
const MAX_PATHS_BYTES: usize = 16 << 20;
/// How deep folders are followed.
const MAX_DEPTH: usize = 64;
/// How many files and folders are looked at without a thread for it.
pub(in crate::sandbox) const FEW: usize = 128;
/// How many changed files an execution tells of.
const MAX_CHANGES: usize = 1000;

/// All regular files by path.
#[derive(Debug, Default)]
pub(in crate::sandbox) struct Listing {
    pub(in crate::sandbox) files: HashMap<String, Stamp>,
    paths_bytes: usize,
    /// Files, folders and whatever else there is.
    seen: usize,
    /// True when there were more than fit.
    pub(in crate::sandbox) cut: bool,
}

/// What tells one state of a file from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::sandbox) struct Stamp {
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Listing {
    /// All regular files below a folder, within bounds, no link followed. `expected`: how many there
    /// were.
    pub(in crate::sandbox) fn of(folder: BorrowedFd<'_>, expected: usize) -> io::Result<Self> {
        let mut listing = Self { files: HashMap::with_capacity(expected), ..Self::default() };
        walk(folder, "", 0, usize::MAX, &mut listing)?;
        Ok(listing)
    }

    /// The same where they are few: that takes less time than the way to another thread.
    /// None where they are not.
    pub(in crate::sandbox) fn of_few(folder: BorrowedFd<'_>) -> Option<Self> {
        let mut listing = Self::default();
        walk(folder, "", 0, FEW, &mut listing).ok()?;
        (!listing.cut).then_some(listing)
    }

    /// Whether it is worth while to look for few.
    pub(in crate::sandbox) fn is_few(&self) -> bool {
        self.files.len() <= FEW
    }

    /// What changed since an earlier listing, and whether that is all that changed.
    pub(in crate::sandbox) fn changes_since(&self, before: &Self) -> (Vec<ChangedFile>, bool) {
        let mut changed: Vec<_> = self
            .files
            .iter()
            .filter_map(|(path, stamp)| match before.files.get(path) {
                None => Some((path, stamp, Change::Created)),
                Some(old) if old != stamp => Some((path, stamp, Change::Modified)),
                Some(_) => None,
            })
            .collect();
        changed.sort_unstable_by_key(|(path, _, _)| *path);
        let whole = !self.cut && changed.len() <= MAX_CHANGES;
        changed.truncate(MAX_CHANGES);
        let told = |(path, stamp, change): (&String, &Stamp, Change)| {
            let FileEntry { path, size_bytes, mime, .. } = entry(path, stamp);
            ChangedFile { path, size_bytes, mime, change }
        };
        (changed.into_iter().map(told).collect(), whole)
    }

    /// All of them, sorted by path.
    pub(in crate::sandbox) fn entries(&self) -> Vec<FileEntry> {
        let mut entries: Vec<_> =
            self.files.iter().map(|(path, stamp)| entry(path, stamp)).collect();
        entries.sort_unstable_by(|one, other| one.path.cmp(&other.path));
        entries
    }
}

impl Stamp {
    /// Changes whenever the content does: any write moves the time of change.
    pub(in crate::sandbox) fn etag(&self) -> String {
        let Self { inode, size, changed: (seconds, nanoseconds), .. } = self;
        format!("{inode:x}-{size:x}-{seconds:x}-{nanoseconds:x}")
    }

    pub(in crate::sandbox) fn of(stat: &Stat) -> Self {
        Self {
            inode: stat.st_ino,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            modified: (stat.st_mtime, stat.st_mtime_nsec as i64),
            changed: (stat.st_ctime, stat.st_ctime_nsec as i64),
        }
    }
}

/// A file as callers see it.
pub(in crate::sandbox) fn entry(path: &str, stamp: &Stamp) -> FileEntry {
    let nanoseconds = i128::from(stamp.modified.0) * 1_000_000_000 + i128::from(stamp.modified.1);
    FileEntry {
        path: path.to_owned(),
        size_bytes: stamp.size,
        mime: mime_guess::from_path(path)
            .first_raw()
            .unwrap_or("application/octet-stream")
            .to_owned(),
        modified_at: OffsetDateTime::from_unix_timestamp_nanos(nanoseconds)
            .ok()
            .filter(|time| (0..=9999).contains(&time.year())) // what RFC 3339 can say
            .unwrap_or(OffsetDateTime::UNIX_EPOCH),
        etag: stamp.etag(),
    }
}

fn walk(
    folder: BorrowedFd<'_>,
    prefix: &str,
    depth: usize,
    most_seen: usize,
    listing: &mut Listing,
) -> io::Result<()> {
    for found in Dir::read_from(folder)? {
        let found = found?;
        let name = found.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let name_text = name.to_string_lossy();
        let mut path = String::with_capacity(prefix.len() + name_text.len());
        path.push_str(prefix);
        path.push_str(&name_text);
        listing.paths_bytes += path.len();
        listing.seen += 1;
        if listing.files.len() >= MAX_ENTRIES
            || listing.paths_bytes > MAX_PATHS_BYTES
            || listing.seen > most_seen
        {
            listing.cut = true;
            return Ok(());
        }
        if path.len() > MAX_PATH_BYTES {
            listing.cut = true;
            continue;
        }
        match found.file_type() {
            FileType::RegularFile => {
                // gone again already is no fault: programs run while we look
                if let Ok(stat) = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
                    listing.files.insert(path, Stamp::of(&stat));
                }
            }
            FileType::Directory if depth < MAX_DEPTH => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                if let Ok(inner) = rustix::fs::openat(folder, name, flags, Mode::empty()) {
                    walk(inner.as_fd(), &format!("{path}/"), depth + 1, most_seen, listing)?;
                }
            }
            FileType::Directory => listing.cut = true,
            _ => {}
        }
    }
    Ok(())
}
