//! Sole use of a session: in order, bounded, and over with the session.

use std::sync::{Arc, Mutex};

use clap::Parser;
use futures::FutureExt;
use futures::future::join_all;
use interpreterd::config::{Action, BlobSettings, CommandLine, LimitSettings, StoreSettings};
use interpreterd::domain::coded::Coded;
use interpreterd::domain::id::{SessionId, Tenant};
use interpreterd::domain::session::EndReason;
use interpreterd::sessions::{NewSession, RecoveredSessions, SessionError, Sessions};
use interpreterd::store::connect::{Opened, open};
use interpreterd::telemetry::metrics::Metrics;

use crate::support::stub::StubProvider;

struct House {
    sessions: Arc<Sessions>,
    id: SessionId,
    ended: Arc<Mutex<Vec<String>>>,
    opened: Opened,
    _folder: tempfile::TempDir,
}

fn limits() -> LimitSettings {
    let line = CommandLine::try_parse_from(["interpreterd", "serve"]).unwrap();
    let Action::Serve(settings) = line.action else { panic!("serve") };
    settings.limits
}

async fn reopened(folder: &tempfile::TempDir) -> Opened {
    open(folder.path(), &StoreSettings::default(), &BlobSettings::default(), &Metrics::default())
        .await
        .unwrap()
}

async fn house() -> House {
    let folder = tempfile::tempdir().unwrap();
    let opened = reopened(&folder).await;
    let provider = StubProvider::default();
    let ended = Arc::clone(&provider.ended);
    let providers: interpreterd::sandbox::connect::Providers =
        vec![("stub".to_owned(), Arc::new(provider))];
    let sessions =
        Arc::new(Sessions::new(providers, "stub".to_owned(), Arc::clone(&opened.store), limits()));
    let id = sessions.create(&Tenant::single(), NewSession::default()).await.unwrap().id;
    House { sessions, id, ended, opened, _folder: folder }
}

fn code<T>(result: Result<T, SessionError>) -> &'static str {
    result.map_or_else(|error| error.code().name, |_| "ok")
}

#[tokio::test]
async fn those_who_wait_are_served_in_the_order_in_which_they_came() {
    let House { sessions, id, .. } = &house().await;
    let tenant = Tenant::single();
    let first = sessions.lease(&tenant, *id).await.unwrap();
    let order = Mutex::new(Vec::new());
    let holders = Mutex::new(0);
    let wait = |number: usize| {
        let (order, holders, tenant) = (&order, &holders, &tenant);
        async move {
            let lease = sessions.lease(tenant, *id).await.unwrap();
            *holders.lock().unwrap() += 1;
            tokio::task::yield_now().await;
            assert_eq!(*holders.lock().unwrap(), 1, "two hold one session");
            *holders.lock().unwrap() -= 1;
            order.lock().unwrap().push(number);
            drop(lease);
        }
    };
    let served = join_all((0..8).map(wait));
    let letting_go = async {
        tokio::task::yield_now().await;
        drop(first);
    };
    tokio::join!(served, letting_go);
    assert_eq!(*order.lock().unwrap(), (0..8).collect::<Vec<_>>());
}

#[tokio::test]
async fn the_33rd_who_would_wait_is_refused_and_a_place_is_given_back() {
    let House { sessions, id, .. } = &house().await;
    let tenant = Tenant::single();
    let held = sessions.lease(&tenant, *id).await.unwrap();
    let mut waiting: Vec<_> = (0..32).map(|_| Box::pin(sessions.lease(&tenant, *id))).collect();
    for lease in &mut waiting {
        // the store is not asked for a living session, so one poll stands in line
        assert!(futures::poll!(lease).is_pending());
    }
    assert_eq!(sessions.lease(&tenant, *id).now_or_never().map(code), Some("session_busy"));
    drop(waiting.pop());
    let mut last = Box::pin(sessions.lease(&tenant, *id));
    assert!(futures::poll!(&mut last).is_pending());
    drop((waiting, held));
    assert_eq!(code(last.await), "ok");
}

#[tokio::test]
async fn those_who_wait_for_a_session_that_ends_are_told_so() {
    let House { sessions, id, ended, .. } = &house().await;
    let tenant = Tenant::single();
    let held = sessions.lease(&tenant, *id).await.unwrap();
    let mut waiting = Box::pin(sessions.lease(&tenant, *id));
    assert!(futures::poll!(&mut waiting).is_pending());
    assert!(sessions.end(&tenant, *id, EndReason::Deleted).await.unwrap());
    assert!(!sessions.end(&tenant, *id, EndReason::Deleted).await.unwrap());
    drop(held);
    assert_eq!(code(waiting.await), "session_deleted");
    assert_eq!(code(sessions.lease(&tenant, *id).await), "session_deleted");
    assert_eq!(*ended.lock().unwrap(), [id.to_string()], "its sandbox is ended once");
    assert_eq!(sessions.count(), 0);
}

#[tokio::test]
async fn another_tenant_has_no_such_session() {
    let House { sessions, id, opened, .. } = &house().await;
    let other = Tenant::named("other".to_owned());
    assert_eq!(code(sessions.get(&other, *id).await), "session_not_found");
    assert_eq!(code(sessions.lease(&other, *id).await), "session_not_found");
    assert_eq!(code(sessions.end(&other, *id, EndReason::Deleted).await), "session_not_found");
    assert_eq!(code(sessions.sandbox(&other, *id).await), "session_not_found");
    assert_eq!(opened.store.session(&other, *id).await.unwrap(), None);
    assert_eq!(sessions.count(), 1);
}

#[tokio::test]
async fn sessions_of_an_earlier_start_are_taken_up_or_lost_and_strangers_reaped() {
    let House { sessions, id, opened, _folder: folder, .. } = house().await;
    let tenant = Tenant::single();
    let gone = sessions.create(&tenant, NewSession::default()).await.unwrap().id;
    opened.store.close().await;
    drop(opened);
    let opened = reopened(&folder).await;
    let provider = StubProvider {
        there: vec![id.to_string(), "stranger".to_owned()],
        ..StubProvider::default()
    };
    let ended = Arc::clone(&provider.ended);
    let providers: interpreterd::sandbox::connect::Providers =
        vec![("stub".to_owned(), Arc::new(provider))];
    // the next start, with a registry that knows nothing
    let next = Sessions::new(providers, "stub".to_owned(), Arc::clone(&opened.store), limits());
    let recovered = next.recover().await.unwrap();
    assert_eq!(recovered, RecoveredSessions { kept: 1, lost: 1, reaped: 1 });
    assert_eq!(*ended.lock().unwrap(), ["stranger"]);
    assert_eq!(code(next.lease(&tenant, id).await), "ok");
    assert_eq!(code(next.lease(&tenant, gone).await), "session_lost");
}
