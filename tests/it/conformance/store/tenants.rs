//! What is one tenant's is not there for another.

use interpreterd::domain::list::RunFilter;
use interpreterd::domain::run::RunStatus;
use interpreterd::domain::session::{SandboxRecord, Session, SessionState};
use interpreterd::store::OpenSession;
use serde_json::json;

use super::{ALL, Place, begun, claim, close, end, ended, file, run, session, tenants};

every_store! {
    nothing_of_a_tenant_is_seen_by_another,
    nothing_of_a_tenant_is_changed_by_another,
}

async fn nothing_of_a_tenant_is_seen_by_another(place: &Place) {
    let opened = place.open().await;
    let (tenant, other) = tenants();
    let store = &opened.store;
    let known = session();
    store.insert_session(&tenant, &known, Some(&claim("session"))).await.unwrap();
    let begun = run(RunStatus::Running);
    store.begin_run(&tenant, &begun.summary, Some(&claim("run"))).await.unwrap();
    let ended = ended(begun, &"long".repeat(50_000));
    assert!(end(&opened, &tenant, &ended, &[file("a")]).await);
    let id = ended.summary.id;
    for (seen, tenant) in [(true, &tenant), (false, &other)] {
        let sees = |there: bool| assert_eq!(there, seen);
        sees(store.session(tenant, known.id).await.unwrap().is_some());
        sees(!store.sessions(tenant, ALL).await.unwrap().is_empty());
        sees(store.run(tenant, id).await.unwrap().is_some());
        sees(!store.runs(tenant, &RunFilter::default(), ALL).await.unwrap().is_empty());
        let session_id = Some(ended.summary.session_id);
        let filter = RunFilter { session_id, ..RunFilter::default() };
        sees(!store.runs(tenant, &filter, ALL).await.unwrap().is_empty());
        sees(store.output_file(tenant, id, "a").await.unwrap().is_some());
        sees(store.events(tenant, id).await.unwrap().is_some());
        sees(store.conversation(tenant, id).await.unwrap().is_some());
        sees(store.claimed(tenant, &claim("run").key).await.unwrap().is_some());
        sees(store.claimed(tenant, &claim("session").key).await.unwrap().is_some());
    }
    close(opened).await;
}

async fn nothing_of_a_tenant_is_changed_by_another(place: &Place) {
    let opened = place.open().await;
    let (tenant, other) = tenants();
    let store = &opened.store;
    let known = session();
    store.insert_session(&tenant, &known, None).await.unwrap();
    let sandbox = SandboxRecord { sandbox_id: "theirs".to_owned(), detail: json!(null) };
    for state in [SessionState::Ready, SessionState::Ended, SessionState::Failed] {
        let theirs = Session { state, ..known.clone() };
        let _ = store.update_session(&other, &theirs).await;
        let _ = store.furnish_session(&other, &theirs, &sandbox).await;
    }
    assert_eq!(store.session(&tenant, known.id).await.unwrap().as_ref(), Some(&known));
    let queued = run(RunStatus::Queued);
    store.begin_run(&tenant, &queued.summary, None).await.unwrap();
    assert!(!store.start_run(&other, &queued.summary).await.unwrap());
    let running = begun(&opened, &tenant).await;
    for run in [&queued, &running] {
        assert!(!end(&opened, &other, &ended(run.clone(), "theirs"), &[file("a")]).await);
        let id = run.summary.id;
        assert_eq!(store.run(&tenant, id).await.unwrap().as_ref(), Some(run));
        assert_eq!(store.output_file(&other, id, "a").await.unwrap(), None);
        assert_eq!(store.output_file(&tenant, id, "a").await.unwrap(), None);
    }
    close(opened).await;
    let again = place.open().await;
    let as_it_was = OpenSession { tenant, session: known, sandbox: None };
    assert_eq!(again.store.left_sessions().await.unwrap(), [as_it_was]);
    close(again).await;
}
