//! What a start of the service finds of the one before.

use interpreterd::domain::run::RunStatus;
use interpreterd::domain::session::{SandboxRecord, Session, SessionState};
use interpreterd::store::{Finish, Open, OpenSession};
use serde_json::json;

use super::{Place, begun, close, end, ended, finish, run, session, tenants};

every_store! {
    the_next_start_ends_what_was_open_and_leaves_what_had_ended,
    the_next_start_finds_the_sandboxes_of_open_sessions,
    what_this_start_has_begun_is_open_until_it_ends,
    a_late_end_of_an_earlier_start_is_taken_from_the_journal_alone,
    the_secret_is_random_and_stays,
}

async fn the_next_start_ends_what_was_open_and_leaves_what_had_ended(place: &Place) {
    let (tenant, other) = tenants();
    let first = place.open().await;
    let running = begun(&first, &tenant).await;
    let theirs = begun(&first, &other).await;
    let queued = run(RunStatus::Queued);
    first.store.begin_run(&tenant, &queued.summary, None).await.unwrap();
    let done = ended(begun(&first, &tenant).await, "done");
    assert!(end(&first, &tenant, &done, &[]).await);
    close(first).await;

    let second = place.open().await;
    assert_eq!(second.store.recover_runs().await.unwrap(), 3);
    assert_eq!(second.store.recover_runs().await.unwrap(), 0);
    for (tenant, run, status, retry_safe) in [
        (&tenant, &running, RunStatus::Unknown, false),
        (&other, &theirs, RunStatus::Unknown, false),
        (&tenant, &queued, RunStatus::Error, true),
    ] {
        let found = second.store.run(tenant, run.summary.id).await.unwrap().unwrap().summary;
        let safe = found.failure.as_ref().map(|failure| failure.retry_safe);
        assert_eq!((found.status, safe), (status, Some(retry_safe)));
        assert!(found.finished_at.is_some());
    }
    assert_eq!(second.store.run(&tenant, done.summary.id).await.unwrap(), Some(done));
    close(second).await;
}

async fn the_next_start_finds_the_sandboxes_of_open_sessions(place: &Place) {
    let (_, other) = tenants();
    let first = place.open().await;
    let known = session();
    first.store.insert_session(&other, &known, None).await.unwrap();
    assert_eq!(first.store.left_sessions().await.unwrap(), [], "it is this start's");
    let maker = first.store.maker();
    close(first).await;
    let second = place.open().await;
    let left = second.store.left_sessions().await.unwrap();
    let as_it_is = OpenSession { tenant: other.clone(), session: known.clone(), sandbox: None };
    assert_eq!(left, [as_it_is]);
    let furnished = Session { sandbox_id: Some("found".to_owned()), ..known };
    let detail = json!({"kernel_id": "k"});
    let sandbox = SandboxRecord { sandbox_id: "found".to_owned(), detail };
    second.store.furnish_session(&other, &furnished, &sandbox).await.unwrap();
    assert_eq!(second.store.session(&other, furnished.id).await.unwrap(), Some(furnished.clone()));
    assert_eq!(second.store.left_sessions().await.unwrap(), [], "it is this start's now");
    second.store.update_session(&other, &furnished).await.unwrap();
    close(second).await;
    let third = place.open().await;
    let left = third.store.left_sessions().await.unwrap();
    assert_eq!(left[0].sandbox, Some(sandbox), "a later word on the session leaves it there");
    assert_eq!(third.store.maker(), maker, "it is the same replica at each start");
    close(third).await;
}

async fn what_this_start_has_begun_is_open_until_it_ends(place: &Place) {
    let (tenant, other) = tenants();
    let first = place.open().await;
    let left = begun(&first, &tenant).await;
    first.store.insert_session(&tenant, &session(), None).await.unwrap();
    assert_eq!(first.store.open().await.unwrap().runs, [(tenant.clone(), left.summary.id)]);
    close(first).await;
    let second = place.open().await;
    assert_eq!(second.store.open().await.unwrap(), Open::default());
    let (queued, running) = (run(RunStatus::Queued), begun(&second, &other).await);
    second.store.begin_run(&tenant, &queued.summary, None).await.unwrap();
    let mut known = session();
    second.store.insert_session(&other, &known, None).await.unwrap();
    let mut open = second.store.open().await.unwrap();
    open.runs.sort_by_key(|(_, id)| *id);
    let mut expected = [(tenant.clone(), queued.summary.id), (other.clone(), running.summary.id)];
    expected.sort_by_key(|(_, id)| *id);
    assert_eq!(
        (open.runs.as_slice(), open.sessions.as_slice()),
        (expected.as_slice(), [(other.clone(), known.id)].as_slice())
    );
    assert!(end(&second, &other, &ended(running, "x"), &[]).await);
    assert!(end(&second, &tenant, &ended(queued, "x"), &[]).await);
    known.state = SessionState::Ended;
    second.store.update_session(&other, &known).await.unwrap();
    assert_eq!(second.store.open().await.unwrap(), Open::default());
    close(second).await;
}

async fn a_late_end_of_an_earlier_start_is_taken_from_the_journal_alone(place: &Place) {
    let (tenant, _) = tenants();
    let first = place.open().await;
    let begun = begun(&first, &tenant).await;
    let epoch = first.store.epoch();
    close(first).await;
    let second = place.open().await;
    assert!(second.store.epoch() > epoch);
    let ended = ended(begun, "late");
    assert!(!end(&second, &tenant, &ended, &[]).await, "another start's run");
    let of_then = Finish { epoch, ..finish(&second, &ended, &[]) };
    assert!(second.store.finish_run(&tenant, &of_then).await.unwrap());
    assert_eq!(second.store.events(&tenant, ended.summary.id).await.unwrap().unwrap(), "line\n");
    close(second).await;
}

async fn the_secret_is_random_and_stays(place: &Place) {
    let elsewhere = place.other();
    let first = place.open().await;
    let secret = first.store.secret();
    close(first).await;
    let (again, other) = (place.open().await, elsewhere.open().await);
    assert_eq!(again.store.secret(), secret);
    assert_ne!(other.store.secret(), secret);
    close(again).await;
    close(other).await;
}
