//! What every store does.

use std::collections::BTreeMap;
use std::path::Path;

use interpreterd::domain::claim::{Claim, Claimed, Key, Subject};
use interpreterd::domain::id::{RunId, SessionId, Tenant};
use interpreterd::domain::limits::Limits;
use interpreterd::domain::list::{Page, RunFilter};
use interpreterd::domain::provider::Capabilities;
use interpreterd::domain::run::{Run, RunKind, RunStatus, RunSummary, Usage};
use interpreterd::domain::session::{EndReason, SandboxRecord, Session, SessionState};
use interpreterd::store::connect::{Opened, open};
use interpreterd::store::{Finish, OpenSession, StoreError, StoredFile};
use serde_json::json;
use time::OffsetDateTime;

const ALL: Page = Page { limit: 100, after: None, descending: false };

async fn opened(folder: &Path) -> Opened {
    open(folder).await.unwrap()
}

async fn close(opened: Opened) {
    opened.store.close().await;
}

fn finish<'a>(opened: &Opened, run: &'a Run, files: &'a [StoredFile]) -> Finish<'a> {
    Finish {
        run,
        files,
        events: Some(b"line\n".to_vec()),
        conversation: Some("[]".to_owned()),
        epoch: opened.store.epoch(),
        release_key: false,
    }
}

fn tenants() -> (Tenant, Tenant) {
    (Tenant::single(), Tenant::named("other".to_owned()))
}

fn session() -> Session {
    let now = OffsetDateTime::now_utc();
    let capabilities = Capabilities {
        state: true,
        state_after_timeout: true,
        upload: true,
        download: true,
        shell: true,
        packages: false,
        network: false,
        absolute_files_dir: true,
        streaming: true,
    };
    Session {
        id: SessionId::new(),
        provider: "local".to_owned(),
        sandbox_id: None,
        state: SessionState::Starting,
        isolation: None,
        capabilities,
        limits: Limits { disk_bytes: Some(1), ..Limits::default() },
        files_dir: Some("/files".to_owned()),
        progress: None,
        failure: None,
        packages: Vec::new(),
        created_at: now,
        last_used_at: now,
        expires_at: now,
        ended_at: None,
        end_reason: None,
        one_shot: false,
        metadata: BTreeMap::from([("a".to_owned(), "b".to_owned())]),
    }
}

fn run(session_id: SessionId, status: RunStatus) -> Run {
    let summary = RunSummary {
        id: RunId::new(),
        kind: RunKind::Exec,
        session_id,
        provider: "local".to_owned(),
        model: None,
        status,
        message: None,
        previous_run_id: None,
        error: None,
        failure: None,
        usage: Usage::default(),
        turns: 0,
        created_at: OffsetDateTime::now_utc(),
        started_at: None,
        finished_at: None,
        duration_ms: None,
        metadata: BTreeMap::new(),
    };
    Run::empty(summary)
}

fn ended(mut run: Run, text: &str) -> Run {
    run.summary.status = RunStatus::Success;
    text.clone_into(&mut run.text);
    run
}

#[tokio::test]
async fn what_is_written_is_read_again_short_or_long() {
    let folder = tempfile::tempdir().unwrap();
    let opened = opened(folder.path()).await;
    let (tenant, _) = tenants();
    for text in ["short".to_owned(), "long ".repeat(100_000)] {
        let begun = run(SessionId::new(), RunStatus::Running);
        opened.store.begin_run(&tenant, &begun.summary, None).await.unwrap();
        assert_eq!(opened.store.run(&tenant, begun.summary.id).await.unwrap(), Some(begun.clone()));
        let file = StoredFile {
            path: "a".to_owned(),
            blob: "x/y".to_owned(),
            size_bytes: 3,
            mime: "text/plain".to_owned(),
            sha256: "0".to_owned(),
        };
        let ended = ended(begun, &text);
        assert!(
            opened
                .store
                .finish_run(&tenant, &finish(&opened, &ended, std::slice::from_ref(&file)))
                .await
                .unwrap()
        );
        assert_eq!(opened.store.run(&tenant, ended.summary.id).await.unwrap(), Some(ended.clone()));
        assert_eq!(
            opened.store.output_file(&tenant, ended.summary.id, "a").await.unwrap(),
            Some(file)
        );
    }
    let known = session();
    opened.store.insert_session(&tenant, &known, None).await.unwrap();
    assert_eq!(opened.store.session(&tenant, known.id).await.unwrap(), Some(known));
    close(opened).await;
}

#[tokio::test]
async fn the_first_end_of_a_run_and_of_a_session_stays() {
    let folder = tempfile::tempdir().unwrap();
    let opened = opened(folder.path()).await;
    let (tenant, _) = tenants();
    let begun = run(SessionId::new(), RunStatus::Running);
    opened.store.begin_run(&tenant, &begun.summary, None).await.unwrap();
    assert!(
        opened
            .store
            .finish_run(&tenant, &finish(&opened, &ended(begun.clone(), "first"), &[]))
            .await
            .unwrap()
    );
    assert!(
        !opened
            .store
            .finish_run(&tenant, &finish(&opened, &ended(begun.clone(), "second"), &[]))
            .await
            .unwrap()
    );
    assert_eq!(opened.store.run(&tenant, begun.summary.id).await.unwrap().unwrap().text, "first");
    let mut known = session();
    opened.store.insert_session(&tenant, &known, None).await.unwrap();
    known.state = SessionState::Ended;
    known.end_reason = Some(EndReason::Idle);
    opened.store.update_session(&tenant, &known).await.unwrap();
    let late = Session { state: SessionState::Ready, end_reason: None, ..known.clone() };
    opened.store.update_session(&tenant, &late).await.unwrap();
    assert_eq!(opened.store.session(&tenant, known.id).await.unwrap(), Some(known));
    close(opened).await;
}

#[tokio::test]
async fn one_tenants_things_are_not_there_for_another() {
    let folder = tempfile::tempdir().unwrap();
    let opened = opened(folder.path()).await;
    let (tenant, other) = tenants();
    let known = session();
    opened.store.insert_session(&tenant, &known, None).await.unwrap();
    let begun = run(known.id, RunStatus::Running);
    opened.store.begin_run(&tenant, &begun.summary, None).await.unwrap();
    assert_eq!(opened.store.session(&other, known.id).await.unwrap(), None);
    assert_eq!(opened.store.sessions(&other, ALL).await.unwrap(), []);
    assert_eq!(opened.store.run(&other, begun.summary.id).await.unwrap(), None);
    assert_eq!(opened.store.runs(&other, &RunFilter::default(), ALL).await.unwrap(), []);
    assert!(
        !opened
            .store
            .finish_run(&other, &finish(&opened, &ended(begun.clone(), "theirs"), &[]))
            .await
            .unwrap()
    );
    assert_eq!(opened.store.run(&tenant, begun.summary.id).await.unwrap(), Some(begun));
    close(opened).await;
}

#[tokio::test]
async fn the_next_start_ends_what_was_open_and_leaves_what_had_ended() {
    let folder = tempfile::tempdir().unwrap();
    let (tenant, other) = tenants();
    let first = opened(folder.path()).await;
    let known = session();
    first.store.insert_session(&other, &known, None).await.unwrap();
    let (running, queued, done) = (
        run(known.id, RunStatus::Running),
        run(known.id, RunStatus::Queued),
        run(known.id, RunStatus::Running),
    );
    for run in [&running, &queued, &done] {
        first.store.begin_run(&tenant, &run.summary, None).await.unwrap();
    }
    let done = ended(done, "done");
    first.store.finish_run(&tenant, &finish(&first, &done, &[])).await.unwrap();
    close(first).await;

    let second = opened(folder.path()).await;
    assert_eq!(second.store.recover_runs().await.unwrap(), 2);
    assert_eq!(second.store.recover_runs().await.unwrap(), 0);
    let running = second.store.run(&tenant, running.summary.id).await.unwrap().unwrap().summary;
    let queued = second.store.run(&tenant, queued.summary.id).await.unwrap().unwrap().summary;
    assert_eq!(
        (running.status, running.failure.map(|failure| failure.retry_safe)),
        (RunStatus::Unknown, Some(false))
    );
    assert_eq!(
        (queued.status, queued.failure.map(|failure| failure.retry_safe)),
        (RunStatus::Error, Some(true))
    );
    assert_eq!(second.store.run(&tenant, done.summary.id).await.unwrap(), Some(done));
    let open = second.store.open_sessions().await.unwrap();
    let as_it_is = OpenSession { tenant: other.clone(), session: known.clone(), sandbox: None };
    assert_eq!(open, [as_it_is]);
    let furnished = Session { sandbox_id: Some("found".to_owned()), ..known };
    let sandbox =
        SandboxRecord { sandbox_id: "found".to_owned(), detail: json!({"kernel_id": "k"}) };
    second.store.furnish_session(&other, &furnished, &sandbox).await.unwrap();
    assert_eq!(second.store.session(&other, furnished.id).await.unwrap(), Some(furnished.clone()));
    second.store.update_session(&other, &furnished).await.unwrap();
    let open = second.store.open_sessions().await.unwrap();
    assert_eq!(open[0].sandbox, Some(sandbox), "a later word on the session leaves it there");
    let maker = second.store.maker();
    close(second).await;
    let third = opened(folder.path()).await;
    assert_eq!(third.store.maker(), maker, "it is the same replica at each start");
    close(third).await;
}

#[tokio::test]
async fn a_late_end_of_an_earlier_start_is_taken_from_the_journal_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (tenant, _) = tenants();
    let first = opened(folder.path()).await;
    let begun = run(SessionId::new(), RunStatus::Running);
    first.store.begin_run(&tenant, &begun.summary, None).await.unwrap();
    let epoch = first.store.epoch();
    close(first).await;
    let second = opened(folder.path()).await;
    assert!(second.store.epoch() > epoch);
    let ended = ended(begun, "late");
    assert!(
        !second.store.finish_run(&tenant, &finish(&second, &ended, &[])).await.unwrap(),
        "another start's run"
    );
    let of_then = Finish { epoch, ..finish(&second, &ended, &[]) };
    assert!(second.store.finish_run(&tenant, &of_then).await.unwrap());
    assert_eq!(second.store.events(&tenant, ended.summary.id).await.unwrap().unwrap(), "line\n");
    close(second).await;
}

#[tokio::test]
async fn a_key_is_taken_once_for_24_hours_and_with_it_nothing_else_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let opened = opened(folder.path()).await;
    let (tenant, other) = tenants();
    let key = Key::new("/v1/execute", "k").unwrap();
    let claim = Claim { key: key.clone(), request_hash: "h".to_owned() };
    let (first, second) =
        (run(SessionId::new(), RunStatus::Running), run(SessionId::new(), RunStatus::Running));
    opened.store.begin_run(&tenant, &first.summary, Some(&claim)).await.unwrap();
    let refused = opened.store.begin_run(&tenant, &second.summary, Some(&claim)).await;
    assert!(matches!(refused, Err(StoreError::Claimed)), "{refused:?}");
    assert_eq!(opened.store.run(&tenant, second.summary.id).await.unwrap(), None);
    let claimed = Claimed { request_hash: "h".to_owned(), subject: Subject::Run(first.summary.id) };
    assert_eq!(opened.store.claimed(&tenant, &key).await.unwrap(), Some(claimed));
    assert_eq!(opened.store.claimed(&other, &key).await.unwrap(), None);
    let refused = opened.store.insert_session(&tenant, &session(), Some(&claim)).await;
    assert!(matches!(refused, Err(StoreError::Claimed)), "{refused:?}");
    opened.store.begin_run(&other, &second.summary, Some(&claim)).await.unwrap();
    close(opened).await;
}

#[tokio::test]
async fn the_secret_is_random_and_stays() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let first = opened(one.path()).await;
    let secret = first.store.secret();
    close(first).await;
    let (again, other) = (opened(one.path()).await, opened(two.path()).await);
    assert_eq!(again.store.secret(), secret);
    assert_ne!(other.store.secret(), secret);
    close(again).await;
    close(other).await;
}

#[tokio::test]
async fn what_is_over_is_forgotten_and_what_is_open_stays() {
    let folder = tempfile::tempdir().unwrap();
    let opened = opened(folder.path()).await;
    let (tenant, _) = tenants();
    let (open, done) =
        (run(SessionId::new(), RunStatus::Running), run(SessionId::new(), RunStatus::Running));
    for run in [&open, &done] {
        opened.store.begin_run(&tenant, &run.summary, None).await.unwrap();
    }
    let file = StoredFile {
        path: "a".to_owned(),
        blob: "x/y".to_owned(),
        size_bytes: 3,
        mime: "text/plain".to_owned(),
        sha256: "0".to_owned(),
    };
    let done = ended(done, "x");
    opened
        .store
        .finish_run(&tenant, &finish(&opened, &done, std::slice::from_ref(&file)))
        .await
        .unwrap();
    let before = OffsetDateTime::now_utc() - time::Duration::HOUR;
    assert_eq!(opened.store.expire(before).await.unwrap(), Vec::<String>::new());
    let blobs = opened.store.expire(OffsetDateTime::now_utc()).await.unwrap();
    assert!(
        blobs.len() == 2 && blobs.contains(&"x/y".to_owned()),
        "the file's and the events': {blobs:?}"
    );
    assert_eq!(opened.store.run(&tenant, done.summary.id).await.unwrap(), None);
    assert_eq!(opened.store.output_file(&tenant, done.summary.id, "a").await.unwrap(), None);
    assert!(opened.store.run(&tenant, open.summary.id).await.unwrap().is_some());
    close(opened).await;
}

#[tokio::test]
async fn a_conversation_is_kept_for_its_tenant_short_or_long_and_forgotten_with_its_run() {
    let folder = tempfile::tempdir().unwrap();
    let opened = opened(folder.path()).await;
    let (tenant, other) = tenants();
    let long = json!(["x".repeat(200_000)]).to_string();
    let mut ids = Vec::new();
    for text in ["[\"short\"]", long.as_str()] {
        let open = run(SessionId::new(), RunStatus::Running);
        let store = &opened.store;
        store.begin_run(&tenant, &open.summary, None).await.unwrap();
        let id = open.summary.id;
        assert_eq!(store.conversation(&tenant, id).await.unwrap(), None, "not before its end");
        let ended = ended(open, "x");
        let end = Finish { conversation: Some(text.to_owned()), ..finish(&opened, &ended, &[]) };
        store.finish_run(&tenant, &end).await.unwrap();
        assert_eq!(store.conversation(&tenant, id).await.unwrap().unwrap(), text);
        assert_eq!(store.conversation(&other, id).await.unwrap(), None);
        ids.push(id);
    }
    let in_use = opened.store.blobs_in_use().await.unwrap();
    let blob = in_use.iter().find(|blob| blob.contains("conversation")).unwrap();
    assert!(opened.store.expire(OffsetDateTime::now_utc()).await.unwrap().contains(blob));
    for id in ids {
        assert_eq!(opened.store.conversation(&tenant, id).await.unwrap(), None);
    }
    close(opened).await;
}

#[tokio::test]
async fn many_writes_at_once_are_all_kept() {
    let folder = tempfile::tempdir().unwrap();
    let opened = opened(folder.path()).await;
    let (tenant, _) = tenants();
    let runs: Vec<Run> = (0..300).map(|_| run(SessionId::new(), RunStatus::Running)).collect();
    let (opened, tenant) = (&opened, &tenant);
    let write = |run: &Run| {
        let run = run.clone();
        async move {
            opened.store.begin_run(tenant, &run.summary, None).await.unwrap();
            assert!(
                opened.store.begin_run(tenant, &run.summary, None).await.is_err(),
                "an id is used once"
            );
            let ended = ended(run, "x");
            assert!(opened.store.finish_run(tenant, &finish(opened, &ended, &[])).await.unwrap());
        }
    };
    futures::future::join_all(runs.iter().map(write)).await;
    let filter = RunFilter { status: Some(RunStatus::Success), ..RunFilter::default() };
    let found = opened.store.runs(tenant, &filter, Page { limit: 1000, ..ALL }).await.unwrap();
    assert_eq!(found.len(), 300);
    opened.store.close().await;
}

#[tokio::test]
async fn blobs_that_nothing_speaks_of_are_swept() {
    let folder = tempfile::tempdir().unwrap();
    let opened = opened(folder.path()).await;
    let (one, other) = (RunId::new(), RunId::new());
    let kept = opened.blobs.write_whole(one, "detail", "kept".into()).await.unwrap();
    let orphan = opened.blobs.write_whole(other, "detail", "orphan".into()).await.unwrap();
    assert_eq!(opened.blobs.sweep(vec![kept.clone()]).await.unwrap(), 1);
    assert_eq!(opened.blobs.read_whole(&kept).await.unwrap(), "kept");
    assert!(opened.blobs.read_whole(&orphan).await.is_err());
    close(opened).await;
}

#[tokio::test]
async fn what_a_kill_left_of_a_blob_is_removed_and_a_second_try_takes_no_more_room() {
    let folder = tempfile::tempdir().unwrap();
    let store = opened(folder.path()).await;
    let run = RunId::new();
    let first = store.blobs.write_whole(run, "detail", "one".into()).await.unwrap();
    let second = store.blobs.write_whole(run, "detail", "two".into()).await.unwrap();
    assert_eq!(first, second);
    let whole = folder.path().join("blobs").join(&first);
    let staged = whole.with_file_name("0a#1");
    std::fs::write(&staged, "half").unwrap();
    close(store).await;
    let again = opened(folder.path()).await;
    assert!(whole.exists() && !staged.exists());
    close(again).await;
}

#[tokio::test]
async fn the_key_of_what_was_never_begun_is_free_again() {
    let folder = tempfile::tempdir().unwrap();
    let opened = opened(folder.path()).await;
    let (tenant, _) = tenants();
    let claim =
        |key| Claim { key: Key::new("/v1/execute", key).unwrap(), request_hash: "h".to_owned() };
    for (key, release_key) in [("begun", false), ("not-begun", true)] {
        let claim = claim(key);
        let begun = run(SessionId::new(), RunStatus::Running);
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

#[tokio::test]
async fn time_is_kept_from_the_end_on_and_a_key_goes_with_its_run() {
    let folder = tempfile::tempdir().unwrap();
    let opened = opened(folder.path()).await;
    let (tenant, _) = tenants();
    let claim = Claim { key: Key::new("/v1/execute", "k").unwrap(), request_hash: "h".to_owned() };
    let mut long = run(SessionId::new(), RunStatus::Running);
    long.summary.created_at -= time::Duration::DAY;
    opened.store.begin_run(&tenant, &long.summary, Some(&claim)).await.unwrap();
    let mut long = ended(long, "x");
    long.summary.finished_at = Some(OffsetDateTime::now_utc());
    assert!(opened.store.finish_run(&tenant, &finish(&opened, &long, &[])).await.unwrap());
    opened.store.expire(OffsetDateTime::now_utc() - time::Duration::HOUR).await.unwrap();
    assert!(opened.store.run(&tenant, long.summary.id).await.unwrap().is_some());
    assert!(opened.store.claimed(&tenant, &claim.key).await.unwrap().is_some());
    opened.store.expire(OffsetDateTime::now_utc()).await.unwrap();
    assert_eq!(opened.store.run(&tenant, long.summary.id).await.unwrap(), None);
    assert_eq!(opened.store.claimed(&tenant, &claim.key).await.unwrap(), None);
    close(opened).await;
}
