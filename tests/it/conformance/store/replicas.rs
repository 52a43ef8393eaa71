//! Two replicas in one Postgres: each leaves what the other does alone until that one is gone.

use std::time::Duration;

use futures::future::join_all;
use interpreterd::config::{BlobSettings, StoreSettings};
use interpreterd::domain::run::{Run, RunStatus};
use interpreterd::store::StoreError;
use interpreterd::store::connect::{Opened, open};
use interpreterd::telemetry::metrics::Metrics;

use super::{Place, begun, claim, close, ended, finish, run, session, tenants};
use crate::support::must_come;

/// Two replicas, whose sessions are taken over after one and a half of this.
async fn pair(place: &Place, lease: Duration) -> (Opened, Opened, tempfile::TempDir) {
    let beside = tempfile::tempdir().unwrap();
    let settings = StoreSettings {
        database_url: place.database.as_ref().map(|database| database.url().into()),
        replica_lease_seconds: lease,
        ..StoreSettings::default()
    };
    let blobs = BlobSettings::default();
    // at once: they agree on their tables and their secret
    let metrics = Metrics::default();
    let (one, other) = tokio::join!(
        open(place.folder.path(), &settings, &blobs, &metrics),
        open(beside.path(), &settings, &blobs, &metrics)
    );
    (one.unwrap(), other.unwrap(), beside)
}

#[tokio::test]
async fn they_share_a_secret_and_see_and_refuse_the_same_and_leave_the_others_work_alone() {
    let Some(place) = Place::postgres() else { return };
    let (one, other, _folder) = pair(&place, Duration::from_secs(30)).await;
    let (tenant, _) = tenants();
    assert_eq!(one.store.secret(), other.store.secret());
    let (maker, others) = (one.store.maker(), other.store.maker());
    assert_eq!(maker.deployment_id, others.deployment_id);
    assert_ne!(maker.replica_id, others.replica_id);
    let running = begun(&one, &tenant).await;
    let known = session();
    one.store.insert_session(&tenant, &known, None).await.unwrap();
    assert_eq!(other.store.run(&tenant, running.summary.id).await.unwrap(), Some(running.clone()));
    assert_eq!(other.store.session(&tenant, known.id).await.unwrap(), Some(known));
    assert_eq!(other.store.take_over().await.unwrap(), 0);
    assert_eq!(other.store.recover_runs().await.unwrap(), 0);
    assert_eq!(other.store.left_sessions().await.unwrap(), []);
    assert_eq!(other.store.open().await.unwrap(), interpreterd::store::Open::default());
    assert_eq!(one.store.run(&tenant, running.summary.id).await.unwrap(), Some(running));
    close(one).await;
    close(other).await;
}

#[tokio::test]
async fn of_many_that_claim_a_key_at_two_replicas_one_gets_it() {
    let Some(place) = Place::postgres() else { return };
    let (one, other, _folder) = pair(&place, Duration::from_secs(30)).await;
    let (tenant, _) = tenants();
    for round in 0..20 {
        let claim = claim(&format!("round-{round}"));
        let runs: Vec<Run> = (0..16).map(|_| run(RunStatus::Running)).collect();
        let begin = runs.iter().enumerate().map(|(number, run)| {
            let store = if number % 2 == 0 { &one.store } else { &other.store };
            store.begin_run(&tenant, &run.summary, Some(&claim))
        });
        let begun = join_all(begin).await;
        let claimed = |result: &Result<(), StoreError>| matches!(result, Err(StoreError::Claimed));
        let won = begun.iter().filter(|result| result.is_ok()).count();
        let lost = begun.iter().filter(|result| claimed(result)).count();
        assert_eq!((won, lost), (1, 15), "{begun:?}");
    }
    close(one).await;
    close(other).await;
}

#[tokio::test]
async fn what_a_replica_that_is_gone_has_left_is_taken_over_once_and_its_late_word_is_not_heard() {
    let Some(place) = Place::postgres() else { return };
    let lease = Duration::from_millis(400);
    let (one, other, _folder) = pair(&place, lease).await;
    let (tenant, _) = tenants();
    let running = begun(&one, &tenant).await;
    let known = session();
    one.store.insert_session(&tenant, &known, None).await.unwrap();
    // from here on one says nothing any more, and still lives
    must_come(async {
        loop {
            other.store.beat().await.unwrap();
            if other.store.take_over().await.unwrap() == 1 {
                return;
            }
        }
    })
    .await;
    assert_eq!(other.store.take_over().await.unwrap(), 0);
    assert_eq!(other.store.left_sessions().await.unwrap().len(), 1);
    let late = ended(running.clone(), "late");
    assert!(!one.store.finish_run(&tenant, &finish(&one, &late, &[])).await.unwrap());
    let new = run(RunStatus::Running);
    let refused = one.store.begin_run(&tenant, &new.summary, None).await;
    assert!(matches!(refused, Err(StoreError::Unseen)), "{refused:?}");
    assert!(matches!(one.store.beat().await, Err(StoreError::Replaced)));
    assert!(one.store.begin_run(&tenant, &new.summary, None).await.is_err());
    other.store.beat().await.unwrap();
    assert_eq!(other.store.recover_runs().await.unwrap(), 1);
    let found = other.store.run(&tenant, running.summary.id).await.unwrap().unwrap();
    assert_eq!(found.summary.status, RunStatus::Unknown);
    assert_eq!(other.store.run(&tenant, new.summary.id).await.unwrap(), None);
    close(one).await;
    close(other).await;
}
