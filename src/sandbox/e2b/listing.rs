//! Which files there are at E2B, and what a cell did to them: pure.

use std::collections::BTreeMap;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::envd::Entry;
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stamp {
    size: u64,
    modified: String,
}

impl Stamp {
    pub(super) fn of(entry: &Entry) -> Self {
        Self { size: entry.size(), modified: entry.modified_time.clone() }
    }

    fn time(&self) -> OffsetDateTime {
        OffsetDateTime::parse(&self.modified, &Rfc3339).unwrap_or(OffsetDateTime::UNIX_EPOCH)
    }

    /// Changes whenever the content does: the time is of the file system, to the nanosecond.
    pub(super) fn etag(&self) -> String {
        format!("{:x}-{:x}", self.size, self.time().unix_timestamp_nanos())
    }
}

impl Listing {
    /// What of a sandbox's entries are files of the session. Names that can be no paths of ours are
    /// passed over.
    pub(super) fn of(entries: &[Entry], files_dir: &str) -> Self {
        let mut listing = Self { cut: entries.len() > MAX_ENTRIES, ..Self::default() };
        for entry in entries.iter().take(MAX_ENTRIES).filter(|entry| entry.is_file()) {
            let below = entry.path.strip_prefix(files_dir).and_then(|path| path.strip_prefix('/'));
            if let Some(path) = below.and_then(|path| FilePath::new(path).ok()) {
                listing.files.insert(path, Stamp::of(entry));
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
        modified_at: stamp.time(),
        etag: stamp.etag(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn listing(files: &[(&str, u64, &str)]) -> Listing {
        let entry = |(path, size, time): &(&str, u64, &str)| {
            serde_json::from_value(json!({
                "path": path, "type": "FILE_TYPE_FILE", "size": size.to_string(), "modifiedTime": time
            }))
            .expect("an entry")
        };
        Listing::of(&files.iter().map(entry).collect::<Vec<_>>(), "/files")
    }

    #[test]
    fn new_and_changed_files_are_told_and_no_others() {
        let (one, two) = ("2026-01-01T00:00:00.000000001Z", "2026-01-01T00:00:00.000000002Z");
        let before = listing(&[("/files/a", 1, one), ("/files/b", 1, one), ("/files/c", 1, one)]);
        let now = listing(&[("/files/a", 1, one), ("/files/b", 1, two), ("/files/d/e", 0, one)]);
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
        let time = "2026-01-01T00:00:00Z";
        let found = listing(&[
            ("/etc/passwd", 1, time),
            ("/filesystem/x", 1, time),
            ("/files/../etc/x", 1, time),
            ("/files/ok", 1, "nonsense"),
        ]);
        let entries = found.entries();
        assert_eq!(entries.len(), 1);
        assert_eq!((entries[0].path.as_str(), entries[0].modified_at.year()), ("ok", 1970));
    }
}
