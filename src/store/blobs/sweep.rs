//! Removes blobs that no row speaks of, shelf by shelf.

use std::collections::HashSet;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore};

use crate::store::StoreError;

/// A younger blob may be one whose row is about to be written, by whichever replica.
const OLD: Duration = Duration::from_secs(24 * 3600);
/// Names that are looked at on one shelf; what lies beyond waits until those are fewer.
const MAX_NAMES: usize = 200_000;
/// What the others may do between two shelves.
const BREATH: Duration = Duration::from_millis(5);

/// By what a blob's age is judged: times in microseconds, by the clock that dated the blobs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ages {
    pub(super) now: i64,
    /// When the one process that uses the place opened it: before that others wrote, who are gone.
    pub(super) opened: Option<i64>,
}

impl Ages {
    fn is_old(self, modified: i64) -> bool {
        let before = self.now.saturating_sub(OLD.as_micros() as i64);
        modified < before || self.opened.is_some_and(|opened| modified < opened)
    }
}

/// Removes what is old and not in use, and says how many those were. `in_use` gives the names in use
/// that begin so. A shelf is listed before that is asked: what is written in between is in the answer.
pub(super) async fn sweep<'a>(
    objects: &dyn ObjectStore,
    ages: Ages,
    in_use: impl Fn(String) -> BoxFuture<'a, Result<Vec<String>, StoreError>>,
) -> Result<usize, StoreError> {
    let mut swept = 0;
    for shelf in 0..=u8::MAX {
        let shelf = format!("{shelf:02x}/");
        let old = old_names(objects, &shelf, ages).await?;
        if old.is_empty() {
            tokio::task::yield_now().await;
            continue;
        }
        let in_use: HashSet<String> = in_use(shelf).await?.into_iter().collect();
        let orphans: Vec<_> =
            old.into_iter().filter(|name| !in_use.contains(name.as_ref())).map(Ok).collect();
        let mut deleted = objects.delete_stream(futures::stream::iter(orphans).boxed());
        while let Some(deleted) = deleted.next().await {
            match deleted {
                Ok(_) => swept += 1,
                Err(object_store::Error::NotFound { .. }) => {} // another replica was there first
                Err(error) => return Err(StoreError::Blob(error)),
            }
        }
        tokio::time::sleep(BREATH).await;
    }
    Ok(swept)
}

async fn old_names(
    objects: &dyn ObjectStore,
    shelf: &str,
    ages: Ages,
) -> Result<Vec<Path>, StoreError> {
    let is_old = |object: &ObjectMeta| {
        let is_old = ages.is_old(object.last_modified.timestamp_micros());
        std::future::ready(is_old)
    };
    let listed = objects.list(Some(&Path::from(shelf)));
    let names = listed.try_filter(is_old).map_ok(|object| object.location).take(MAX_NAMES);
    names.try_collect().await.map_err(StoreError::Blob)
}

#[cfg(test)]
mod tests {
    use object_store::ObjectStoreExt;
    use object_store::memory::InMemory;

    use super::*;

    const DAY: i64 = 24 * 3600 * 1_000_000;

    #[test]
    fn a_blob_is_old_after_a_day_or_when_it_is_of_an_earlier_start() {
        let shared = Ages { now: 10 * DAY, opened: None };
        assert!(shared.is_old(9 * DAY - 1) && !shared.is_old(9 * DAY) && !shared.is_old(11 * DAY));
        let own = Ages { now: 10 * DAY, opened: Some(10 * DAY - 5) };
        assert!(own.is_old(10 * DAY - 6) && !own.is_old(10 * DAY - 5), "of the same tick: kept");
        let far = Ages { now: i64::MIN, opened: None };
        assert!(!far.is_old(0));
    }

    #[tokio::test]
    async fn what_is_old_and_not_in_use_is_removed_and_nothing_else() {
        let objects = InMemory::new();
        for name in ["ab/orphan", "ab/used", "00/orphan", "ff/orphan", "probe-x", "zz/foreign"] {
            objects.put(&Path::from(name), "x".into()).await.expect("written");
        }
        let made = objects.head(&Path::from("ab/used")).await.expect("there");
        let made = made.last_modified.timestamp_micros();
        let in_use = |shelf: String| -> BoxFuture<'_, _> {
            assert!(["00/", "ab/", "ff/"].contains(&&*shelf), "nobody asks for empty shelves");
            Box::pin(async { Ok(vec!["ab/used".to_owned()]) })
        };
        let young = Ages { now: made + DAY - 1_000_000, opened: None };
        assert_eq!(sweep(&objects, young, &in_use).await.expect("swept"), 0);
        let old = Ages { now: made + DAY + 1_000_000, opened: None };
        assert_eq!(sweep(&objects, old, &in_use).await.expect("swept"), 3);
        let left: Vec<_> = objects
            .list(None)
            .map_ok(|object| object.location)
            .try_collect()
            .await
            .expect("listed");
        assert_eq!(
            left.iter().map(Path::as_ref).collect::<Vec<_>>(),
            ["ab/used", "probe-x", "zz/foreign"]
        );
    }

    #[tokio::test]
    async fn a_blob_whose_row_is_written_after_the_list_stays() {
        let objects = InMemory::new();
        objects.put(&Path::from("ab/late"), "x".into()).await.expect("written");
        let listed = std::sync::atomic::AtomicUsize::new(0);
        let in_use = |_| -> BoxFuture<'_, _> {
            Box::pin(async {
                // a blob that comes now was not listed, and is not removed however old it seems
                objects.put(&Path::from("ab/later"), "x".into()).await.expect("written");
                listed.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                Ok(vec!["ab/late".to_owned()])
            })
        };
        let ages = Ages { now: i64::MAX, opened: None };
        assert_eq!(sweep(&objects, ages, in_use).await.expect("swept"), 0);
        assert_eq!(listed.into_inner(), 1);
        assert!(objects.head(&Path::from("ab/later")).await.is_ok());
    }

    #[tokio::test]
    async fn nothing_is_removed_when_it_is_not_known_what_is_in_use() {
        let objects = InMemory::new();
        objects.put(&Path::from("ab/one"), "x".into()).await.expect("written");
        let in_use = |_| -> BoxFuture<'_, _> { Box::pin(async { Err(StoreError::Closed) }) };
        let ages = Ages { now: i64::MAX, opened: None };
        assert!(sweep(&objects, ages, in_use).await.is_err());
        assert!(objects.head(&Path::from("ab/one")).await.is_ok());
    }
}
