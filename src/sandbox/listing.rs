//! Which files a sandbox elsewhere has, and what a cell did to them: pure.

use std::collections::BTreeMap;

use time::OffsetDateTime;

use crate::domain::file::{Change, ChangedFile, FileEntry, FilePath};

/// How many files a listing holds at most.
const MAX_ENTRIES: usize = 100_000;
/// How many changed files an execution tells of.
const MAX_CHANGES: usize = 1000;

/// All regular files by path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Listing {
    pub(super) files: BTreeMap<FilePath, Stamp>,
    /// True when there were more than fit.
    cut: bool,
}

/// What tells one state of a file from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) size: u64,
    pub(super) modified: OffsetDateTime,
}

impl Stamp {
    /// Changes whenever the content does: the time is of the file system, to the nanosecond.
    pub(super) fn etag(&self) -> String {
        format!("{:x}-{:x}", self.size, self.modified.unix_timestamp_nanos())
    }
}

impl Listing {
    /// Files by their paths below the files folder. Names that can be no paths of ours are passed over.
    pub(super) fn of(found: impl Iterator<Item = (String, Stamp)>, cut: bool) -> Self {
        let mut listing = Self { cut, ..Self::default() };
        for (path, stamp) in found {
            if listing.files.len() == MAX_ENTRIES {
                listing.cut = true;
                break;
            }
            if let Ok(path) = FilePath::new(path) {
                listing.files.insert(path, stamp);
            }
        }
        listing
    }

    /// What changed since an earlier listing, and whether that is all that changed.
    pub(super) fn changes_since(&self, before: &Self) -> (Vec<ChangedFile>, bool) {
        let changed = self.files.iter().filter_map(|(path, stamp)| {
            let change = match before.files.get(path) {
                None => Change::Created,
                Some(old) if old != stamp => Change::Modified,
                Some(_) => return None,
            };
            let FileEntry { path, size_bytes, mime, .. } = entry(path, stamp);
            Some(ChangedFile { path, size_bytes, mime, change })
        });
        let mut changed: Vec<_> = changed.collect();
        let whole = !self.cut && changed.len() <= MAX_CHANGES;
        changed.truncate(MAX_CHANGES);
        (changed, whole)
    }

    /// These, with others that are newer.
    pub(super) fn with(mut self, newer: Self) -> Self {
        self.files.extend(newer.files);
        self
    }

    #[cfg(feature = "bedrock")]
    /// Those that another listing does not have, or has in an older state.
    pub(super) fn newer_than(mut self, other: &Self) -> Self {
        let is_newer = |path: &FilePath, stamp: &Stamp| {
            other.files.get(path).is_none_or(|theirs| theirs.modified <= stamp.modified)
        };
        self.files.retain(|path, stamp| is_newer(path, stamp));
        self
    }

    #[cfg(feature = "bedrock")]
    /// Whether there is such a file.
    pub(super) fn has(&self, path: &str) -> bool {
        FilePath::new(path).is_ok_and(|path| self.files.contains_key(&path))
    }

    /// Whether a file is as it is in another listing.
    pub(super) fn has_of(&self, other: &Self, path: &str) -> bool {
        let Ok(path) = FilePath::new(path) else { return false };
        other.files.get(&path).is_some_and(|stamp| self.files.get(&path) == Some(stamp))
    }

    /// All of them, sorted by path.
    pub(super) fn entries(&self) -> Vec<FileEntry> {
        self.files.iter().map(|(path, stamp)| entry(path, stamp)).collect()
    }
}

/// A file as callers see it.
pub(super) fn entry(path: &FilePath, stamp: &Stamp) -> FileEntry {
    FileEntry {
        path: path.to_string(),
        size_bytes: stamp.size,
        mime: path.mime().to_owned(),
        modified_at: stamp.modified,
        etag: stamp.etag(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(files: &[(&str, u64, i64)]) -> Listing {
        let stamp = |size, time| Stamp {
            size,
            modified: OffsetDateTime::from_unix_timestamp(time).expect("a time"),
        };
        let found =
            files.iter().map(|(path, size, time)| ((*path).to_owned(), stamp(*size, *time)));
        Listing::of(found, false)
    }

    #[test]
    fn new_and_changed_files_are_told_and_no_others() {
        let before = listing(&[("a", 1, 1), ("b", 1, 1), ("c", 1, 1)]);
        let now = listing(&[("a", 1, 1), ("b", 1, 2), ("d/e", 0, 1)]);
        let (changes, whole) = now.changes_since(&before);
        let told: Vec<_> =
            changes.iter().map(|change| (change.path.as_str(), change.change)).collect();
        assert_eq!(told, [("b", Change::Modified), ("d/e", Change::Created)]);
        assert!(whole);
        let tags: Vec<_> = [&before, &now].map(|of| of.entries()[1].etag.clone()).into();
        assert_ne!(tags[0], tags[1]);
    }

    #[test]
    fn what_is_no_file_of_the_session_is_passed_over() {
        let found = listing(&[("/etc/passwd", 1, 1), ("../etc/x", 1, 1), ("", 1, 1), ("ok", 1, 1)]);
        let paths: Vec<_> = found.entries().into_iter().map(|entry| entry.path).collect();
        assert_eq!(paths, ["ok"]);
    }
}
