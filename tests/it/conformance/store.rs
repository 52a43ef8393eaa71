//! What every store does.

use std::collections::BTreeMap;
use std::path::Path;

use interpreterd::domain::id::{RunId, SessionId, Tenant};
use interpreterd::domain::limits::Limits;
use interpreterd::domain::list::{Page, RunFilter};
use interpreterd::domain::provider::Capabilities;
use interpreterd::domain::run::{Run, RunKind, RunStatus, RunSummary, Usage};
use interpreterd::domain::session::{EndReason, Session, SessionState};
use interpreterd::store::connect::{Opened, open};
use interpreterd::store::{Recovered, StoredFile};
use time::OffsetDateTime;

const ALL: Page = Page { limit: 100, after: None, descending: false };

async fn opened(folder: &Path) -> Opened {
    open(folder).await.unwrap()
}

async fn close(opened: Opened) {
    opened.store.close().await;
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
    };
    Session {
        id: SessionId::new(),
        provider: "local".to_owned(),
        sandbox_id: None,
        state: SessionState::Starting,
        isolation: None,
        capabilities,
        limits: Limits { memory_bytes: None, disk_bytes: Some(1), processes: None },
        files_dir: "/files".to_owned(),
        packages: Vec::new(),
        created_at: now,
        last_used_at: now,
        expires_at: now,
        ended_at: None,
        end_reason: None,
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
    Run { summary, text: String::new(), code_exec_results: Vec::new(), output_files: Vec::new() }
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
                .finish_run(&tenant, &ended, std::slice::from_ref(&file), None)
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
        opened.store.finish_run(&tenant, &ended(begun.clone(), "first"), &[], None).await.unwrap()
    );
    assert!(
        !opened
            .store
            .finish_run(&tenant, &ended(begun.clone(), "second"), &[], None)
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
        !opened.store.finish_run(&other, &ended(begun.clone(), "theirs"), &[], None).await.unwrap()
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
    first.store.finish_run(&tenant, &done, &[], None).await.unwrap();
    close(first).await;

    let second = opened(folder.path()).await;
    assert_eq!(second.store.recover().await.unwrap(), Recovered { runs: 2, sessions: 1 });
    assert_eq!(second.store.recover().await.unwrap(), Recovered { runs: 0, sessions: 0 });
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
    let lost = second.store.session(&other, known.id).await.unwrap().unwrap();
    assert_eq!((lost.state, lost.end_reason), (SessionState::Ended, Some(EndReason::Lost)));
    close(second).await;
}

#[tokio::test]
async fn many_writes_at_once_are_all_kept() {
    let folder = tempfile::tempdir().unwrap();
    let opened = opened(folder.path()).await;
    let (tenant, _) = tenants();
    let runs: Vec<Run> = (0..300).map(|_| run(SessionId::new(), RunStatus::Running)).collect();
    let write = |run: &Run| {
        let (store, tenant, run) =
            (std::sync::Arc::clone(&opened.store), tenant.clone(), run.clone());
        async move {
            store.begin_run(&tenant, &run.summary, None).await.unwrap();
            assert!(
                store.begin_run(&tenant, &run.summary, None).await.is_err(),
                "an id is used once"
            );
            assert!(store.finish_run(&tenant, &ended(run, "x"), &[], None).await.unwrap());
        }
    };
    futures::future::join_all(runs.iter().map(write)).await;
    let filter = RunFilter { status: Some(RunStatus::Success), ..RunFilter::default() };
    let found = opened.store.runs(&tenant, &filter, Page { limit: 1000, ..ALL }).await.unwrap();
    assert_eq!(found.len(), 300);
    close(opened).await;
}

#[tokio::test]
async fn blobs_that_nothing_speaks_of_are_swept() {
    let folder = tempfile::tempdir().unwrap();
    let opened = opened(folder.path()).await;
    let kept = opened.blobs.write_whole("kept".into()).await.unwrap();
    let orphan = opened.blobs.write_whole("orphan".into()).await.unwrap();
    assert_eq!(opened.blobs.sweep(vec![kept.clone()]).await.unwrap(), 1);
    assert_eq!(opened.blobs.read_whole(&kept).await.unwrap(), "kept");
    assert!(opened.blobs.read_whole(&orphan).await.is_err());
    close(opened).await;
}
