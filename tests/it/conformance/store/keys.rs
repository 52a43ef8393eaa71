//! Idempotency keys: taken once, for a day, with what was begun under them.

use futures::future::join_all;
use interpreterd::domain::claim::{Claim, Claimed, Key, Subject};
use interpreterd::domain::run::{Run, RunStatus};
use interpreterd::domain::session::{Session, SessionState};
use interpreterd::store::{Finish, StoreError};

use super::{Place, begun, claim, close, ended, finish, run, session, tenants};

every_store! {
    a_key_is_taken_once_and_with_it_nothing_else_is_written,
    of_many_that_claim_a_key_at_once_one_gets_it,
    a_key_is_free_again_after_a_day,
    the_key_of_what_was_never_begun_is_free_again,
    a_key_holds_for_its_route_and_its_tenant,
}

async fn a_key_is_taken_once_and_with_it_nothing_else_is_written(place: &Place) {
    let opened = place.open().await;
    let (tenant, other) = tenants();
    let claim = claim("k");
    let (first, second) = (run(RunStatus::Running), run(RunStatus::Running));
    opened.store.begin_run(&tenant, &first.summary, Some(&claim)).await.unwrap();
    let refused = opened.store.begin_run(&tenant, &second.summary, Some(&claim)).await;
    assert!(matches!(refused, Err(StoreError::Claimed)), "{refused:?}");
    assert_eq!(opened.store.run(&tenant, second.summary.id).await.unwrap(), None);
    let claimed = Claimed { request_hash: "h".to_owned(), subject: Subject::Run(first.summary.id) };
    assert_eq!(opened.store.claimed(&tenant, &claim.key).await.unwrap(), Some(claimed));
    assert_eq!(opened.store.claimed(&other, &claim.key).await.unwrap(), None);
    let known = session();
    let refused = opened.store.insert_session(&tenant, &known, Some(&claim)).await;
    assert!(matches!(refused, Err(StoreError::Claimed)), "{refused:?}");
    assert_eq!(opened.store.session(&tenant, known.id).await.unwrap(), None);
    opened.store.begin_run(&other, &second.summary, Some(&claim)).await.unwrap();
    close(opened).await;
}

async fn of_many_that_claim_a_key_at_once_one_gets_it(place: &Place) {
    let opened = place.open().await;
    let (tenant, _) = tenants();
    let (store, key) = (&opened.store, claim("many"));
    let runs: Vec<Run> = (0..32).map(|_| run(RunStatus::Running)).collect();
    let sessions: Vec<Session> = (0..32).map(|_| session()).collect();
    let begin = runs.iter().map(|run| store.begin_run(&tenant, &run.summary, Some(&key)));
    let insert = sessions.iter().map(|known| store.insert_session(&tenant, known, Some(&key)));
    let (begun, inserted) = futures::join!(join_all(begin), join_all(insert));
    let mut winners = Vec::new();
    for (run, result) in runs.iter().zip(&begun) {
        let found = store.run(&tenant, run.summary.id).await.unwrap();
        assert_eq!(found.is_some(), result.is_ok());
        winners.extend(result.is_ok().then_some(Subject::Run(run.summary.id)));
    }
    for (known, result) in sessions.iter().zip(&inserted) {
        let found = store.session(&tenant, known.id).await.unwrap();
        assert_eq!(found.is_some(), result.is_ok());
        winners.extend(result.is_ok().then_some(Subject::Session(known.id)));
    }
    let claimed = store.claimed(&tenant, &key.key).await.unwrap().unwrap();
    assert_eq!(winners, [claimed.subject]);
    let claimed = |result: &Result<(), StoreError>| matches!(result, Err(StoreError::Claimed));
    let refused = begun.iter().chain(&inserted).filter(|result| claimed(result)).count();
    assert_eq!(refused, 63, "{begun:?} {inserted:?}");
    close(opened).await;
}

async fn a_key_is_free_again_after_a_day(place: &Place) {
    let opened = place.open().await;
    let (tenant, _) = tenants();
    let claim = claim("k");
    let (first, second) = (run(RunStatus::Running), run(RunStatus::Running));
    opened.store.begin_run(&tenant, &first.summary, Some(&claim)).await.unwrap();
    place.execute("update idempotency set created_at = created_at - 86399000000").await;
    assert!(opened.store.claimed(&tenant, &claim.key).await.unwrap().is_some());
    assert!(opened.store.begin_run(&tenant, &second.summary, Some(&claim)).await.is_err());
    place.execute("update idempotency set created_at = created_at - 1000000").await;
    assert_eq!(opened.store.claimed(&tenant, &claim.key).await.unwrap(), None);
    let later = Claim { request_hash: "another".to_owned(), ..claim };
    opened.store.begin_run(&tenant, &second.summary, Some(&later)).await.unwrap();
    let subject = Subject::Run(second.summary.id);
    let claimed = Claimed { request_hash: "another".to_owned(), subject };
    assert_eq!(opened.store.claimed(&tenant, &later.key).await.unwrap(), Some(claimed));
    close(opened).await;
}

async fn the_key_of_what_was_never_begun_is_free_again(place: &Place) {
    let opened = place.open().await;
    let (tenant, _) = tenants();
    for (key, release_key) in [("begun", false), ("not-begun", true)] {
        let claim = claim(key);
        let begun = run(RunStatus::Running);
        opened.store.begin_run(&tenant, &begun.summary, Some(&claim)).await.unwrap();
        let ended = ended(begun, "");
        let end = Finish { release_key, ..finish(&opened, &ended, &[]) };
        assert!(opened.store.finish_run(&tenant, &end).await.unwrap());
        let claimed = opened.store.claimed(&tenant, &claim.key).await.unwrap();
        assert_eq!(claimed.is_none(), release_key, "{key}");
    }
    for (key, state) in [("ended", SessionState::Ended), ("failed", SessionState::Failed)] {
        let (claim, mut known) = (claim(key), session());
        opened.store.insert_session(&tenant, &known, Some(&claim)).await.unwrap();
        known.state = state;
        opened.store.update_session(&tenant, &known).await.unwrap();
        let claimed = opened.store.claimed(&tenant, &claim.key).await.unwrap();
        assert_eq!(claimed.is_none(), state == SessionState::Failed, "{key}");
    }
    close(opened).await;
}

async fn a_key_holds_for_its_route_and_its_tenant(place: &Place) {
    let opened = place.open().await;
    let (tenant, other) = tenants();
    // the longest there is, with all that may stand in one
    let visible: String = ('!'..='~').cycle().take(255).collect();
    let mut taken = Vec::new();
    for (tenant, route) in
        [(&tenant, "/v1/execute"), (&tenant, "/v1/interpret"), (&other, "/v1/execute")]
    {
        let key = Key::new(route, &visible).unwrap();
        assert_eq!(opened.store.claimed(tenant, &key).await.unwrap(), None, "{route}");
        let claim = Claim { key, request_hash: "h".to_owned() };
        let run = run(RunStatus::Running);
        opened.store.begin_run(tenant, &run.summary, Some(&claim)).await.unwrap();
        taken.push((tenant, claim.key, Subject::Run(run.summary.id)));
    }
    for (tenant, key, subject) in taken {
        let claimed = opened.store.claimed(tenant, &key).await.unwrap();
        assert_eq!(claimed.map(|claimed| claimed.subject), Some(subject));
    }
    // one without a key leaves them as they are
    begun(&opened, &tenant).await;
    close(opened).await;
}
