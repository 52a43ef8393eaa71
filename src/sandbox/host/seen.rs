//! What a cell did to the files of its session on this host.

use std::sync::{Arc, Mutex, MutexGuard};

use tokio::task::{block_in_place, spawn_blocking};

use super::files::Files;
use super::listing::{Listing, Stamp};
use crate::domain::execution::Execution;
use crate::domain::file::{ChangedFile, FilePath};

/// The files as they were when the last cell ended, with what callers have put in since.
#[derive(Default)]
pub(in crate::sandbox) struct Seen(Mutex<Listing>);

impl Seen {
    fn listing(&self) -> MutexGuard<'_, Listing> {
        self.0.lock().expect("no panic while the listing is held")
    }

    /// Takes these for the files as they are.
    pub(in crate::sandbox) fn set(&self, listing: Listing) {
        *self.listing() = listing;
    }

    /// A caller has put a file in.
    pub(in crate::sandbox) fn note_put(&self, path: &FilePath, stamp: Stamp) {
        self.listing().files.insert(path.to_string(), stamp);
    }

    /// A caller has removed a file.
    pub(in crate::sandbox) fn note_removed(&self, path: &FilePath) {
        self.listing().files.remove(path.as_str());
    }

    /// What the cell did to the files, told in its execution.
    pub(in crate::sandbox) async fn tell<H>(&self, held: Arc<H>, execution: &mut Execution)
    where
        H: AsRef<Files> + Send + Sync + 'static,
    {
        let before = std::mem::take(&mut *self.listing());
        // a folder can be held by the session's own processes, and those by their share of the processors
        let few =
            if before.is_few() { block_in_place(|| (*held).as_ref().list_few()) } else { None };
        let (mut listing, mut changes, whole) = match few {
            Some(listing) => compare(before, Some(listing)),
            None => {
                let look = move || {
                    let now = (*held).as_ref().list_expecting(before.files.len()).ok();
                    compare(before, now)
                };
                spawn_blocking(look).await.unwrap_or_default()
            }
        };
        let mut current = self.listing();
        // what callers have put in meanwhile is no change of the cell
        let put_in = std::mem::take(&mut current.files);
        changes.retain(|change| {
            put_in
                .get(&change.path)
                .is_none_or(|stamp| listing.files.get(&change.path) != Some(stamp))
        });
        listing.files.extend(put_in);
        *current = listing;
        execution.files = changes;
        execution.truncated |= !whole;
    }
}

/// The files as they are now, what a cell did to them, and whether that is all.
fn compare(before: Listing, now: Option<Listing>) -> (Listing, Vec<ChangedFile>, bool) {
    let Some(now) = now else { return (before, Vec::new(), false) };
    let (changes, whole) = now.changes_since(&before);
    (now, changes, whole)
}
