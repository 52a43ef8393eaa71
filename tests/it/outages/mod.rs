//! The store goes away under load and comes back: nothing is lost, run twice or left open.

mod disk;
mod load;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::postgres::{self, Stop};
use crate::support::scrape::Scrape;
use crate::support::server::{Server, command, open_folder};
use crate::support::{Caller, Session, answer, must_come};
use load::{Load, nothing_is_left};

/// How long the store is away at least.
const AWAY: Duration = Duration::from_secs(3);
/// A cell that ends when there is a file `go`.
const UNTIL_GO: &str = "open('begun', 'w').close()\nimport os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('kept')";

#[tokio::test(flavor = "multi_thread")]
async fn postgres_crashes_under_load_and_comes_back() {
    let Some(store) = postgres::Server::start_private() else { return };
    outage(&store, || store.stop(Stop::Immediate), || store.start()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_is_restarted_under_load() {
    let Some(store) = postgres::Server::start_private() else { return };
    outage(&store, || store.stop(Stop::Fast), || store.start()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_hangs_under_load_and_goes_on() {
    let Some(store) = postgres::Server::start_private() else { return };
    outage(&store, || store.pause(), || store.resume()).await;
}

fn serve(data_dir: &Path, store: &postgres::Server) -> Server {
    Server::start_in(data_dir, &[("DATABASE_URL", &store.url()), ("DATABASE_SECONDS", "1")])
}

async fn outage(store: &postgres::Server, leave: impl Fn(), come_back: impl Fn()) {
    let folder = open_folder();
    let server = serve(&folder.path().join("data"), store);
    let caller = server.caller();
    let session = caller.session().await;
    let load = Load::start(&server);
    load.goes_on(5).await;
    let running = held(&session);
    let away = async {
        has_begun(&session).await;
        leave();
        is_ready(&caller, StatusCode::SERVICE_UNAVAILABLE).await;
        let left = Instant::now();
        session.put("go", "").await;
        load.is_refused().await;
        while left.elapsed() < AWAY {
            assert_eq!(ready(&caller).await, StatusCode::SERVICE_UNAVAILABLE);
        }
    };
    let (execution, ()) = tokio::join!(running, away);
    assert_eq!(execution["stdout"], "kept\n", "the answer is given all the same");
    assert_ne!(journaled(&server), 0, "its end waits on disk");
    let away = Scrape::of(&caller).await;
    assert_eq!(away.count("store_up"), 0);
    assert!(away.count("journal_entries") >= 1, "operators see that it waits");
    come_back();
    is_ready(&caller, StatusCode::OK).await;
    load.goes_on(5).await;
    assert_eq!(Scrape::of(&caller).await.count("store_up"), 1);
    assert_eq!(session.delete().await, StatusCode::NO_CONTENT);
    load.settle(&server).await;
    let (_, run) = caller.get(&run_of(&execution)).await;
    assert_eq!(run["code_exec_results"][0]["execution"], execution);
}

#[tokio::test]
async fn ends_that_wait_while_postgres_is_away_outlive_the_service() {
    let Some(store) = postgres::Server::start_private() else { return };
    let folder = open_folder();
    let data_dir = folder.path().join("data");
    let server = serve(&data_dir, &store);
    let caller = server.caller();
    let [session, other] = [caller.session().await, caller.session().await];
    let lost = other.caller.request(Method::POST, &other.path("/exec"));
    let lost = tokio::spawn(lost.json(&json!({"code": UNTIL_GO})).send());
    has_begun(&other).await;
    let running = held(&session);
    let away = async {
        has_begun(&session).await;
        store.stop(Stop::Immediate);
        session.put("go", "").await;
    };
    let (execution, ()) = tokio::join!(running, away);
    assert_eq!((&execution["status"], journaled(&server)), (&json!("success"), 1));
    server.signal(libc::SIGKILL);
    server.wait();
    assert!(lost.await.unwrap().is_err(), "its caller is told nothing");
    store.start();

    let server = serve(&data_dir, &store);
    let caller = server.caller();
    let (_, run) = caller.get(&run_of(&execution)).await;
    assert_eq!(run["code_exec_results"][0]["execution"], execution);
    let again = Session { caller: &caller, id: session.id.clone() };
    assert_eq!(held(&again).await, execution, "the same request is answered from the store");
    let (_, runs) = caller.get(&format!("/v1/runs?session_id={}", other.id)).await;
    let run = &runs["data"][0];
    assert_eq!((&run["status"], &run["failure"]["retry_safe"]), (&json!("unknown"), &json!(false)));
    nothing_is_left(&server, &BTreeSet::new(), &BTreeSet::new()).await;
}

#[test]
fn a_service_whose_database_is_away_does_not_start_and_tells_no_password() {
    let folder = open_folder();
    for url in ["postgres://one:hush-hush@127.0.0.1:1/none", "postgres://one:hush-hush@[/none"] {
        let mut command = command();
        command.args(["serve", "--listen", "127.0.0.1:0", "--data-dir"]).arg(folder.path());
        let output = command.env("INTERPRETERD_DATABASE_URL", url).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(!output.status.success(), "{said}");
        assert!(said.contains("database") && !said.contains("hush-hush"), "{said}");
    }
}

/// A keyed cell that ends when it is told to.
async fn held(session: &Session<'_>) -> Value {
    let request = session.caller.request(Method::POST, &session.path("/exec"));
    let request = request.header("idempotency-key", "held").json(&json!({"code": UNTIL_GO}));
    let (status, execution) = answer(request).await;
    assert_eq!(status, StatusCode::OK, "{execution}");
    execution
}

async fn has_begun(session: &Session<'_>) {
    must_come(async {
        while session.download("begun").await.status() != StatusCode::OK {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

async fn ready(caller: &Caller) -> StatusCode {
    caller.get("/readyz").await.0
}

async fn is_ready(caller: &Caller, expected: StatusCode) {
    must_come(async {
        while ready(caller).await != expected {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// How many ends wait on disk.
fn journaled(server: &Server) -> usize {
    std::fs::read_dir(server.data_dir.join("journal")).unwrap().count()
}

fn run_of(execution: &Value) -> String {
    format!("/v1/runs/{}", execution["run_id"].as_str().unwrap())
}
