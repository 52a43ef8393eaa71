//! What is over is forgotten, with its blobs and its key.

use interpreterd::domain::id::RunId;
use interpreterd::domain::list::RunFilter;
use interpreterd::domain::run::RunStatus;
use interpreterd::domain::session::SessionState;
use interpreterd::store::connect::Opened;
use interpreterd::store::{Finish, Keep, StoredFile};
use serde_json::json;
use time::OffsetDateTime;

use super::{Place, begun, claim, close, end, ended, file, finish, run, session, tenants};

every_store! {
    what_is_over_is_forgotten_and_what_is_open_stays,
    a_conversation_is_kept_for_its_tenant_short_or_long_and_forgotten_with_its_run,
    time_is_kept_from_the_end_on_and_a_key_goes_with_its_run,
    an_ended_session_is_forgotten_with_its_key_and_an_open_one_stays,
    of_each_tenant_so_many_are_kept_the_newest,
    much_is_forgotten_step_by_step,
    blobs_that_nothing_speaks_of_are_swept,
    what_a_kill_left_of_a_blob_is_removed_and_a_second_try_takes_no_more_room,
}

/// Forgets step by step, and gives the blobs that nothing speaks of any more.
async fn forget(opened: &Opened, since: OffsetDateTime) -> Vec<String> {
    forget_but(opened, Keep { since, runs: None, sessions: None }).await
}

async fn forget_but(opened: &Opened, keep: Keep) -> Vec<String> {
    let mut blobs = Vec::new();
    loop {
        let expired = opened.store.expire(&keep).await.unwrap();
        if expired.rows == 0 {
            assert_eq!(expired.blobs, Vec::<String>::new());
            return blobs;
        }
        blobs.extend(expired.blobs);
    }
}

fn now() -> OffsetDateTime {
    OffsetDateTime::now_utc()
}

async fn what_is_over_is_forgotten_and_what_is_open_stays(place: &Place) {
    let opened = place.open().await;
    let (tenant, _) = tenants();
    let (open, done) = (begun(&opened, &tenant).await, begun(&opened, &tenant).await);
    let done = ended(done, "x");
    assert!(end(&opened, &tenant, &done, &[file("a")]).await);
    assert_eq!(forget(&opened, now() - time::Duration::HOUR).await, Vec::<String>::new());
    let blobs = forget(&opened, now()).await;
    assert!(
        blobs.len() == 2 && blobs.contains(&file("a").blob),
        "the file's and the events': {blobs:?}"
    );
    assert_eq!(opened.store.run(&tenant, done.summary.id).await.unwrap(), None);
    assert_eq!(opened.store.output_file(&tenant, done.summary.id, "a").await.unwrap(), None);
    assert!(opened.store.run(&tenant, open.summary.id).await.unwrap().is_some());
    close(opened).await;
}

async fn a_conversation_is_kept_for_its_tenant_short_or_long_and_forgotten_with_its_run(
    place: &Place,
) {
    let opened = place.open().await;
    let (tenant, other) = tenants();
    let long = json!(["x".repeat(200_000)]).to_string();
    let mut ids = Vec::new();
    for text in ["[\"short\"]", long.as_str()] {
        let store = &opened.store;
        let open = begun(&opened, &tenant).await;
        let id = open.summary.id;
        assert_eq!(store.conversation(&tenant, id).await.unwrap(), None, "not before its end");
        let ended = ended(open, "x");
        let end = Finish { conversation: Some(text.to_owned()), ..finish(&opened, &ended, &[]) };
        store.finish_run(&tenant, &end).await.unwrap();
        assert_eq!(store.conversation(&tenant, id).await.unwrap().unwrap(), text);
        assert_eq!(store.conversation(&other, id).await.unwrap(), None);
        ids.push(id);
    }
    let mut in_use = Vec::new();
    for shelf in 0..=u8::MAX {
        in_use.extend(opened.store.blobs_in_use(&format!("{shelf:02x}/")).await.unwrap());
    }
    assert_eq!(in_use.iter().filter(|blob| blob.contains("conversation")).count(), 1);
    let mut forgotten = forget(&opened, now()).await;
    forgotten.sort();
    in_use.sort();
    assert_eq!(forgotten, in_use);
    for id in ids {
        assert_eq!(opened.store.conversation(&tenant, id).await.unwrap(), None);
    }
    close(opened).await;
}

async fn time_is_kept_from_the_end_on_and_a_key_goes_with_its_run(place: &Place) {
    let opened = place.open().await;
    let (tenant, _) = tenants();
    let claim = claim("k");
    let mut long = run(RunStatus::Running);
    long.summary.created_at -= time::Duration::DAY;
    opened.store.begin_run(&tenant, &long.summary, Some(&claim)).await.unwrap();
    let mut long = ended(long, "x");
    long.summary.finished_at = Some(now());
    assert!(end(&opened, &tenant, &long, &[]).await);
    forget(&opened, now() - time::Duration::HOUR).await;
    assert!(opened.store.run(&tenant, long.summary.id).await.unwrap().is_some());
    assert!(opened.store.claimed(&tenant, &claim.key).await.unwrap().is_some());
    forget(&opened, now()).await;
    assert_eq!(opened.store.run(&tenant, long.summary.id).await.unwrap(), None);
    assert_eq!(opened.store.claimed(&tenant, &claim.key).await.unwrap(), None);
    close(opened).await;
}

async fn an_ended_session_is_forgotten_with_its_key_and_an_open_one_stays(place: &Place) {
    let opened = place.open().await;
    let (tenant, _) = tenants();
    let (open, mut over) = (session(), session());
    opened.store.insert_session(&tenant, &open, Some(&claim("open"))).await.unwrap();
    opened.store.insert_session(&tenant, &over, Some(&claim("over"))).await.unwrap();
    over.state = SessionState::Ended;
    over.ended_at = Some(now());
    opened.store.update_session(&tenant, &over).await.unwrap();
    forget(&opened, now() - time::Duration::HOUR).await;
    assert!(opened.store.session(&tenant, over.id).await.unwrap().is_some());
    forget(&opened, now() + time::Duration::HOUR).await;
    assert_eq!(opened.store.session(&tenant, over.id).await.unwrap(), None);
    assert_eq!(opened.store.claimed(&tenant, &claim("over").key).await.unwrap(), None);
    assert_eq!(opened.store.session(&tenant, open.id).await.unwrap(), Some(open));
    assert!(opened.store.claimed(&tenant, &claim("open").key).await.unwrap().is_some());
    close(opened).await;
}

async fn of_each_tenant_so_many_are_kept_the_newest(place: &Place) {
    let opened = place.open().await;
    let (tenant, other) = tenants();
    let open = begun(&opened, &tenant).await;
    let mut runs = Vec::new();
    for (number, tenant) in [&tenant, &other, &tenant, &tenant].into_iter().enumerate() {
        let ended = ended(begun(&opened, tenant).await, "x");
        assert!(end(&opened, tenant, &ended, &[file(&number.to_string())]).await);
        runs.push((tenant, ended.summary.id));
        let mut over = session();
        opened.store.insert_session(tenant, &over, None).await.unwrap();
        over.state = SessionState::Ended;
        over.ended_at = Some(now());
        opened.store.update_session(tenant, &over).await.unwrap();
    }
    let since = now() - time::Duration::HOUR;
    let blobs = forget_but(&opened, Keep { since, runs: Some(2), sessions: Some(1) }).await;
    assert!(blobs.len() == 2 && blobs.contains(&file("0").blob), "{blobs:?}");
    for (number, (tenant, id)) in runs.into_iter().enumerate() {
        let found = opened.store.run(tenant, id).await.unwrap();
        assert_eq!(found.is_some(), number > 0, "{number}");
    }
    assert!(opened.store.run(&tenant, open.summary.id).await.unwrap().is_some());
    for tenant in [&tenant, &other] {
        assert_eq!(opened.store.sessions(tenant, super::ALL).await.unwrap().len(), 1);
    }
    close(opened).await;
}

async fn much_is_forgotten_step_by_step(place: &Place) {
    let opened = place.open().await;
    let (tenant, _) = tenants();
    for number in 0..150 {
        let run = run(RunStatus::Running);
        let claim = claim(&format!("k{number}"));
        opened.store.begin_run(&tenant, &run.summary, Some(&claim)).await.unwrap();
        let files = [file(&format!("{number}"))];
        assert!(end(&opened, &tenant, &ended(run, "x"), &files).await);
    }
    let keep = Keep { since: now(), runs: None, sessions: None };
    let first = opened.store.expire(&keep).await.unwrap();
    assert!((1..150).contains(&first.rows), "a step is short: {} rows", first.rows);
    let blobs = forget(&opened, now()).await;
    assert_eq!(blobs.len() + first.blobs.len(), 300);
    let left = opened.store.runs(&tenant, &RunFilter::default(), super::ALL).await.unwrap();
    assert_eq!(left, []);
    close(opened).await;
}

async fn blobs_that_nothing_speaks_of_are_swept(place: &Place) {
    let (tenant, _) = tenants();
    let opened = place.open().await;
    let begun = begun(&opened, &tenant).await;
    let orphan = opened.blobs.write_whole(RunId::new(), "detail", "orphan".into()).await.unwrap();
    let kept = opened.blobs.write_whole(begun.summary.id, "detail", "kept".into()).await.unwrap();
    let files = [StoredFile { blob: kept.clone(), ..file("a") }];
    assert!(end(&opened, &tenant, &ended(begun, "x"), &files).await);
    assert_eq!(opened.blobs.sweep(opened.store.as_ref()).await.unwrap(), 0, "all are young");
    close(opened).await;
    let again = place.open().await;
    assert_eq!(again.blobs.sweep(again.store.as_ref()).await.unwrap(), 1, "of an earlier start");
    assert_eq!(again.blobs.read_whole(&kept).await.unwrap(), "kept");
    assert!(again.blobs.read_whole(&orphan).await.is_err());
    close(again).await;
}

async fn what_a_kill_left_of_a_blob_is_removed_and_a_second_try_takes_no_more_room(place: &Place) {
    let store = place.open().await;
    let run = RunId::new();
    let first = store.blobs.write_whole(run, "detail", "one".into()).await.unwrap();
    let second = store.blobs.write_whole(run, "detail", "one".into()).await.unwrap();
    assert_eq!(first, second);
    let whole = place.folder.path().join("blobs").join(&first);
    let staged = whole.with_file_name("0a#1");
    std::fs::write(&staged, "half").unwrap();
    close(store).await;
    let again = place.open().await;
    assert!(whole.exists() && !staged.exists());
    close(again).await;
}
