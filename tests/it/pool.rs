//! The pool: what is ready is handed out, what is not never, and it never stands in the way.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use interpreterd::domain::id::SessionId;
use interpreterd::domain::limits::{Limits, LimitsRequest};
use interpreterd::domain::package::PackageSet;
use interpreterd::sandbox::pool::{Pool, PoolPlan};
use interpreterd::sandbox::{SandboxProvider, SandboxSpec};
use serde_json::json;

use crate::support::problem;
use crate::support::processes::{all_gone, descendants};
use crate::support::server::{Server, caller};
use crate::support::stub::StubProvider;

const AGE: Duration = Duration::from_secs(3600);

fn plan(size: u32) -> PoolPlan {
    PoolPlan {
        size,
        max_age: AGE,
        lifetime: AGE,
        make_limit: AGE,
        sets: vec![PackageSet::default()],
    }
}

fn spec() -> SandboxSpec {
    SandboxSpec {
        session_id: SessionId::new(),
        limits: Limits::default(),
        env: BTreeMap::from([("KEY".to_owned(), "value".to_owned())]),
        packages: PackageSet::default(),
        lifetime: Duration::from_secs(60),
        primed: false,
    }
}

async fn filled(stub: &StubProvider, size: u32) -> Pool<StubProvider> {
    let pool = Pool::new(stub.clone(), plan(size));
    pool.start();
    until(|| pool.pool()[0].ready == size).await;
    pool
}

/// Time is paused in tests of the stub: it passes at once.
async fn until(reached: impl Fn() -> bool) {
    for _ in 0..10_000 {
        if reached() {
            return;
        }
        tokio::time::advance(Duration::from_millis(5)).await;
        tokio::task::yield_now().await;
    }
    panic!("it does not come");
}

#[tokio::test(start_paused = true)]
async fn a_session_gets_a_primed_sandbox_that_learns_its_environment_then() {
    let stub = StubProvider::default();
    let pool = filled(&stub, 2).await;
    let made = stub.made.lock().unwrap().clone();
    assert!(made.iter().all(|spec| spec.primed && spec.env.is_empty()));
    let spec = spec();
    let sandbox = pool.create(&spec).await.unwrap();
    assert_eq!(sandbox.record().sandbox_id, made[0].session_id.to_string());
    let (adopted, by) = stub.adopted.lock().unwrap()[0].clone();
    assert_eq!((adopted.session_id, by), (spec.session_id, made[0].session_id.to_string()));
    assert_eq!(adopted.env, spec.env);
    until(|| pool.pool()[0].ready == 2).await; // one was made in its place
    assert_eq!(stub.made.lock().unwrap().len(), 3);
    pool.close().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_no_longer_fit_is_ended_and_never_handed_out() {
    let stub = StubProvider::default();
    let pool = filled(&stub, 2).await;
    let all: Vec<_> =
        stub.made.lock().unwrap().iter().map(|spec| spec.session_id.to_string()).collect();
    stub.unfit.lock().unwrap().extend(all.clone());
    let spec = spec();
    let sandbox = pool.create(&spec).await.unwrap();
    assert_eq!(sandbox.record().sandbox_id, spec.session_id.to_string());
    until(|| *stub.ended.lock().unwrap() == all).await;
    pool.close().await;
}

#[tokio::test(start_paused = true)]
async fn sessions_with_limits_or_packages_of_their_own_go_past_it() {
    let stub = StubProvider::default();
    let pool = filled(&stub, 1).await;
    let limits = Limits { processes: Some(9), ..Limits::default() };
    for spec in [
        SandboxSpec { limits, ..spec() },
        SandboxSpec { packages: "polars".parse().unwrap(), ..spec() },
    ] {
        let sandbox = pool.create(&spec).await.unwrap();
        assert_eq!(sandbox.record().sandbox_id, spec.session_id.to_string());
    }
    assert_eq!(pool.pool()[0].ready, 1);
    assert_eq!(pool.limits(&LimitsRequest::default()).unwrap(), Limits::default());
    pool.close().await;
}

#[tokio::test(start_paused = true)]
async fn it_makes_one_at_a_time_and_none_while_sessions_are_made() {
    let gate = Arc::new(tokio::sync::Notify::new());
    let stub = StubProvider { gate: Some(Arc::clone(&gate)), ..StubProvider::default() };
    let pool = Arc::new(Pool::new(stub.clone(), plan(3)));
    pool.start();
    let own = SandboxSpec { packages: "polars".parse().unwrap(), ..spec() };
    let waiting = {
        let (pool, own) = (Arc::clone(&pool), own.clone());
        tokio::spawn(async move { pool.create(&own).await.map(drop) })
    };
    tokio::task::yield_now().await; // it waits at the gate, and the pool waits for it
    tokio::time::advance(Duration::from_millis(100)).await;
    gate.notify_one();
    // time is paused: where nothing moves any more, the limit is reached at once
    tokio::time::timeout(AGE, waiting).await.expect("it is made first").unwrap().unwrap();
    assert_eq!(stub.made.lock().unwrap()[0].session_id, own.session_id);
    for made in 1..=3 {
        until(|| pool.pool()[0].ready == made - 1).await;
        gate.notify_one(); // opens for one: were there two at the gate, one would stay for ever
        until(|| pool.pool()[0].ready == made).await;
    }
    assert_eq!(stub.made.lock().unwrap().len(), 4);
    pool.close().await;
}

#[tokio::test(start_paused = true)]
async fn old_ones_are_made_anew() {
    let stub = StubProvider::default();
    let pool = filled(&stub, 1).await;
    let first = stub.made.lock().unwrap()[0].session_id.to_string();
    tokio::time::advance(AGE).await;
    until(|| stub.made.lock().unwrap().len() == 2 && pool.pool()[0].ready == 1).await;
    assert_eq!(*stub.ended.lock().unwrap(), [first]);
    pool.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_fails_is_asked_less_and_less_often_and_the_reason_is_told() {
    let stub = StubProvider::default();
    *stub.failures.lock().unwrap() = 5;
    let pool = Pool::new(stub.clone(), plan(1));
    pool.start();
    until(|| pool.pool()[0].reason.is_some()).await;
    let reason = pool.pool()[0].reason.clone().unwrap();
    assert!(reason.contains("cannot make a sandbox"), "{reason}");
    let started = tokio::time::Instant::now();
    until(|| pool.pool()[0].ready == 1).await;
    let took = started.elapsed(); // 1 + 2 + 4 + 8 + 16 seconds
    assert!((30..40).contains(&took.as_secs()), "{took:?}");
    assert_eq!(pool.pool()[0].reason, None);
    pool.close().await;
}

#[tokio::test(start_paused = true)]
async fn closing_ends_what_is_kept_and_what_is_made_meanwhile() {
    let stub = StubProvider::default();
    let pool = filled(&stub, 3).await;
    pool.close().await;
    assert_eq!(stub.ended.lock().unwrap().len(), 3);
    assert_eq!(pool.pool()[0].ready, 0);
}

#[tokio::test]
async fn the_state_of_the_pool_is_told() {
    let pool = caller().full_pool().await;
    assert_eq!(pool, json!({"packages": [], "size": 4, "ready": 4}));
}

#[tokio::test]
async fn a_sandbox_of_the_pool_is_like_a_new_one() {
    let caller = caller();
    let told = "import os\nprint(len(os.listdir('.')), os.environ.get('A'), os.getpid())\n_oh, In";
    let mut seen = Vec::new();
    for limits in [json!({}), json!({"open_files": 1000})] {
        caller.full_pool().await;
        let session = caller.session_with(json!({"limits": limits, "env": {"A": "b"}})).await;
        let execution = session.exec(told).await;
        assert_eq!(execution["execution_count"], 1, "{execution}");
        assert_eq!(execution["files"], json!([]));
        seen.push(execution["text"].clone());
    }
    assert_eq!(seen[0], seen[1]);
    assert!(seen[0].as_str().unwrap().starts_with("0 b 2\n"), "{}", seen[0]);
}

#[tokio::test]
async fn the_environment_of_a_pooled_session_outlives_its_kernel() {
    let caller = caller();
    caller.full_pool().await;
    let session = caller.session_with(json!({"env": {"A": "b"}})).await;
    session.exec("import os; os._exit(3)").await;
    assert_eq!(session.text("import os; os.environ['A']").await, "'b'");
}

#[tokio::test]
async fn a_pool_whose_sandboxes_were_killed_hands_none_of_them_out() {
    let server = Server::start(&[]);
    let caller = server.caller();
    caller.full_pool().await;
    let all = descendants(server.pid());
    for pid in &all {
        if let Some(pid) = rustix::process::Pid::from_raw(pid.cast_signed()) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
    all_gone(&all);
    let session = loop {
        // the warden's end may not have been noticed yet: then it says so
        let answer = caller.post("/v1/sessions", json!({})).await;
        if answer.0 == 201 {
            break answer.1;
        }
        assert_eq!(problem(&answer), (503, "provider_not_ready".to_owned()));
    };
    let exec = format!("/v1/sessions/{}/exec", session["id"].as_str().unwrap());
    let (_, execution) = caller.post(&exec, json!({"code": "1 + 1"})).await;
    assert_eq!(execution["text"], "2", "{execution}");
    assert_eq!(execution["state_lost"], false, "{execution}");
    caller.full_pool().await; // and it fills again
}

#[tokio::test]
async fn without_a_pool_none_is_told_and_sessions_are_made_when_asked_for() {
    let server = Server::start(&[("LOCAL_POOL", "0")]);
    let caller = server.caller();
    let (_, providers) = caller.get("/v1/providers").await;
    assert_eq!(providers["data"][0].get("pool"), None);
    assert_eq!(caller.session().await.text("6 * 7").await, "42");
}
