//! Sessions: written down, changed, listed, ended once.

use interpreterd::domain::id::SessionId;
use interpreterd::domain::list::Page;
use interpreterd::domain::session::{EndReason, SandboxRecord, Session, SessionState};
use interpreterd::store::OpenSession;
use serde_json::json;

use super::{ALL, Place, close, session, tenants};

every_store! {
    a_session_is_read_as_it_was_last_written,
    the_end_of_a_session_stays,
    sessions_are_listed_in_both_orders_page_by_page,
    what_has_ended_is_not_open,
}

async fn a_session_is_read_as_it_was_last_written(place: &Place) {
    let opened = place.open().await;
    let (tenant, _) = tenants();
    let mut known = session();
    let unwritten = opened.store.session(&tenant, known.id).await.unwrap();
    assert_eq!(unwritten, None);
    opened.store.insert_session(&tenant, &known, None).await.unwrap();
    assert_eq!(opened.store.session(&tenant, known.id).await.unwrap().as_ref(), Some(&known));
    known.state = SessionState::Ready;
    known.sandbox_id = Some("found".to_owned());
    let sandbox = SandboxRecord { sandbox_id: "found".to_owned(), detail: json!({"é": "\0"}) };
    opened.store.furnish_session(&tenant, &known, &sandbox).await.unwrap();
    assert_eq!(opened.store.session(&tenant, known.id).await.unwrap().as_ref(), Some(&known));
    known.metadata.insert("later".to_owned(), "word".to_owned());
    opened.store.update_session(&tenant, &known).await.unwrap();
    assert_eq!(opened.store.session(&tenant, known.id).await.unwrap(), Some(known));
    close(opened).await;
}

async fn the_end_of_a_session_stays(place: &Place) {
    let opened = place.open().await;
    let (tenant, _) = tenants();
    let mut known = session();
    opened.store.insert_session(&tenant, &known, None).await.unwrap();
    known.state = SessionState::Ended;
    known.end_reason = Some(EndReason::Idle);
    opened.store.update_session(&tenant, &known).await.unwrap();
    let late = Session { state: SessionState::Ready, end_reason: None, ..known.clone() };
    opened.store.update_session(&tenant, &late).await.unwrap();
    let sandbox = SandboxRecord { sandbox_id: "late".to_owned(), detail: json!(null) };
    opened.store.furnish_session(&tenant, &late, &sandbox).await.unwrap();
    assert_eq!(opened.store.session(&tenant, known.id).await.unwrap(), Some(known));
    close(opened).await;
}

async fn sessions_are_listed_in_both_orders_page_by_page(place: &Place) {
    let opened = place.open().await;
    let (tenant, other) = tenants();
    let mut ids = Vec::new();
    for number in 0..23 {
        let known = session();
        opened.store.insert_session(&tenant, &known, None).await.unwrap();
        ids.push(known.id);
        if number % 3 == 0 {
            opened.store.insert_session(&other, &session(), None).await.unwrap();
        }
    }
    for descending in [false, true] {
        let mut found: Vec<SessionId> = Vec::new();
        loop {
            let after = found.last().map(|id| id.uuid());
            let page = Page { limit: 5, after, descending };
            let sessions = opened.store.sessions(&tenant, page).await.unwrap();
            assert!(sessions.len() <= 5);
            if sessions.is_empty() {
                break;
            }
            found.extend(sessions.iter().map(|session| session.id));
        }
        if descending {
            found.reverse();
        }
        assert_eq!(found, ids);
    }
    close(opened).await;
}

async fn what_has_ended_is_not_open(place: &Place) {
    let opened = place.open().await;
    let (tenant, other) = tenants();
    for state in [SessionState::Ended, SessionState::Failed] {
        let mut known = session();
        opened.store.insert_session(&tenant, &known, None).await.unwrap();
        known.state = state;
        opened.store.update_session(&tenant, &known).await.unwrap();
    }
    let open = session();
    opened.store.insert_session(&other, &open, None).await.unwrap();
    close(opened).await;
    let again = place.open().await;
    let expected = OpenSession { tenant: other, session: open, sandbox: None };
    assert_eq!(again.store.left_sessions().await.unwrap(), [expected]);
    assert_eq!(again.store.sessions(&tenant, ALL).await.unwrap().len(), 2);
    close(again).await;
}
