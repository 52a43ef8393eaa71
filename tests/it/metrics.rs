//! What operators read: every count is what happened, and nothing of a caller's stands in it.

use std::time::Duration;

use interpreterd::telemetry::table::families;
use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::support::model::{KEY, Reply, StubModel, run, text};
use crate::support::scrape::Scrape;
use crate::support::server::{Server, shared};
use crate::support::{Caller, must_come, send};

const CALLER_KEY: &str = "caller-key-abcdefghijklmnop";

fn serve(model: &StubModel) -> Server {
    Server::start(&[
        ("MODEL", "stub"),
        ("MODEL_BASE_URL", &model.base_url),
        ("MODEL_API_KEY", KEY),
        ("LOCAL_POOL", "1"),
        ("MAX_SESSIONS", "7"),
    ])
}

/// A count of work with sandboxes.
fn operations(scrape: &Scrape, operation: &str, outcome: &str) -> u64 {
    scrape.count(&format!(
        "sandbox_operation_duration_seconds_count{{provider=\"local\",operation=\"{operation}\",outcome=\"{outcome}\"}}"
    ))
}

/// Looks until it is as it should be.
async fn comes(caller: &Caller, is_so: impl Fn(&Scrape) -> bool) -> Scrape {
    must_come(async {
        loop {
            let scrape = Scrape::of(caller).await;
            if is_so(&scrape) {
                return scrape;
            }
            tokio::task::yield_now().await;
        }
    })
    .await
}

#[tokio::test]
async fn sandboxes_runs_and_requests_are_counted_and_timed() {
    let server = serve(StubModel::shared());
    let caller = server.caller();
    caller.full_pool().await;
    let session = caller.session().await;
    session.exec("print(1)").await;
    session.exec("1/0").await;
    session.exec_with(json!({"code": "while True: pass", "timeout_seconds": 0.2})).await;
    let (status, _) = caller.post(&session.path("/shell"), json!({"command": "exit 3"})).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(session.put("a.csv", "a,b\n1,2\n").await.0, StatusCode::OK);
    assert_eq!(session.download("a.csv").await.text().await.unwrap(), "a,b\n1,2\n");
    assert_eq!(session.download("none").await.status(), StatusCode::NOT_FOUND);
    assert_eq!(session.delete().await, StatusCode::NO_CONTENT);

    let scrape = Scrape::of(&caller).await;
    let done = [
        ("create", "success", 1),
        ("execute", "success", 1),
        ("execute", "error", 1),
        ("execute", "timeout", 1),
        ("shell", "error", 1),
        ("upload", "success", 1),
        ("download", "success", 1),
        ("download", "error", 1),
        ("terminate", "success", 1),
    ];
    for (operation, outcome, count) in done {
        assert_eq!(operations(&scrape, operation, outcome), count, "{operation} {outcome}");
    }
    for (series, value) in [
        ("runs_total{kind=\"exec\",status=\"success\"}", 1),
        ("runs_total{kind=\"exec\",status=\"error\"}", 1),
        ("runs_total{kind=\"exec\",status=\"timeout\"}", 1),
        ("runs_total{kind=\"shell\",status=\"error\"}", 1),
        ("sessions_ended_total{provider=\"local\",reason=\"deleted\"}", 1),
        ("pool_takes_total{provider=\"local\",source=\"pool\"}", 1),
        ("refusals_total{code=\"file_not_found\"}", 1),
        ("http_requests_total{method=\"POST\",route=\"/v1/sessions\",status=\"201\"}", 1),
        (
            "http_requests_total{method=\"POST\",route=\"/v1/sessions/{session_id}/exec\",status=\"200\"}",
            3,
        ),
        ("http_request_duration_seconds_count{method=\"POST\",route=\"/v1/sessions\"}", 1),
        ("store_up", 1),
        ("sessions_max", 7),
        ("pool_size{provider=\"local\"}", 1),
    ] {
        assert_eq!(scrape.count(series), value, "{series}\n{}", scrape.text);
    }
    let executed = "sandbox_operation_duration_seconds_sum{provider=\"local\",operation=\"execute\",outcome=\"timeout\"}";
    assert!((0.2..30.0).contains(&scrape.seconds(executed)), "{}", scrape.seconds(executed));
    for operation in ["read", "write"] {
        let count = format!(
            "store_operation_duration_seconds_count{{operation=\"{operation}\",outcome=\"success\"}}"
        );
        assert!(scrape.count(&count) > 0, "{operation}");
    }
}

#[tokio::test]
async fn turns_and_tokens_of_a_model_are_counted() {
    let model = StubModel::shared();
    let server = serve(model);
    let caller = server.caller();
    let message = model.script("metrics-turns", &[run(&["print(6 * 7)"]), text("42")]);
    let (status, answer) = caller.post("/v1/interpret", json!({"message": message})).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let refused = json!({"error": {"message": "no"}});
    let message = model.script("metrics-refused", &[Reply::Fault(400, refused)]);
    let (status, _) = caller.post("/v1/interpret", json!({"message": message})).await;
    assert_eq!(status, StatusCode::BAD_GATEWAY);

    let scrape = Scrape::of(&caller).await;
    let usage = &answer["usage"];
    assert!(usage["output_tokens"].as_u64().unwrap() > 0, "{usage}");
    for (series, value) in [
        ("model_turn_duration_seconds_count{model=\"stub\",outcome=\"success\"}", 2),
        ("model_turn_duration_seconds_count{model=\"stub\",outcome=\"error\"}", 1),
        (
            "model_tokens_total{model=\"stub\",direction=\"input\"}",
            usage["input_tokens"].as_u64().unwrap(),
        ),
        (
            "model_tokens_total{model=\"stub\",direction=\"output\"}",
            usage["output_tokens"].as_u64().unwrap(),
        ),
        ("runs_total{kind=\"interpret\",status=\"success\"}", 1),
        ("runs_total{kind=\"interpret\",status=\"error\"}", 1),
    ] {
        assert_eq!(scrape.count(series), value, "{series}");
    }
}

#[tokio::test]
async fn what_goes_on_now_is_told_and_over_when_it_is_over() {
    let server = serve(StubModel::shared());
    let caller = server.caller();
    caller.full_pool().await;
    let idle = caller.session().await;
    let session = caller.session().await;
    let post = |code| {
        let request = caller.request(Method::POST, &session.path("/exec"));
        tokio::spawn(request.json(&json!({"code": code})).send())
    };
    let running = post("import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)");
    let state = |state: &str| format!("sessions{{provider=\"local\",state=\"{state}\"}}");
    comes(&caller, |scrape| scrape.count(&state("busy")) == 1).await;
    let waiting = [post("2"), post("3")];
    let scrape = comes(&caller, |scrape| scrape.count("cells_waiting") == 2).await;
    assert_eq!(scrape.count(&state("ready")), 1, "{}", idle.id);
    assert_eq!(scrape.count("runs_live{kind=\"exec\"}"), 3);
    assert_eq!(scrape.count("runs_live{kind=\"interpret\"}"), 0);
    assert!(scrape.text.contains("interpreterd_runs_live{kind=\"interpret\"} 0"), "a zero is told");

    session.put("go", "").await;
    for asked in std::iter::once(running).chain(waiting) {
        assert_eq!(asked.await.unwrap().unwrap().status(), StatusCode::OK);
    }
    let scrape = comes(&caller, |scrape| scrape.count(&state("ready")) == 2).await;
    let now = ["cells_waiting", "runs_live{kind=\"exec\"}"].map(|series| scrape.count(series));
    assert_eq!(now, [0, 0]);
    let pool = "pool_ready{provider=\"local\"}";
    comes(&caller, |scrape| scrape.count(pool) == 1).await;
}

#[tokio::test]
async fn callers_make_no_series_and_nothing_of_theirs_is_told() {
    let server = serve(StubModel::shared());
    let caller = server.caller();
    for path in ["/secret-path-1", "/secret-path-2", "/v1/runs/secret-path-3"] {
        for method in ["GET", "SECRETVERB", "POST"] {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            assert!(send(caller.request(method, path)).await.status().is_client_error(), "{path}");
        }
    }
    let refused = json!({"code": "'secret-code'", "provider": "secret-provider"});
    assert_eq!(caller.post("/v1/execute", refused).await.0, StatusCode::UNPROCESSABLE_ENTITY);
    let model = json!({"message": "secret-message", "model": "secret-model"});
    assert_eq!(caller.post("/v1/interpret", model).await.0, StatusCode::UNPROCESSABLE_ENTITY);
    let session = caller.session().await;
    session.put("secret-file.csv", "secret-content").await;
    session.exec("raise ValueError('secret-error')").await;

    let scrape = Scrape::of(&caller).await;
    assert!(!scrape.text.to_lowercase().contains("secret"), "{}", scrape.text);
    let unknown = |method: &str| {
        scrape.count(&format!(
            "http_requests_total{{method=\"{method}\",route=\"-\",status=\"404\"}}"
        ))
    };
    assert_eq!([unknown("GET"), unknown("POST"), unknown("other")], [2, 2, 2]);
}

#[tokio::test]
async fn a_request_whose_caller_goes_away_is_counted() {
    let server = serve(StubModel::shared());
    let caller = server.caller();
    let session = caller.session().await;
    let busy = "sessions{provider=\"local\",state=\"busy\"}";
    let asked = caller.request(Method::POST, &session.path("/exec"));
    let asked = tokio::spawn(asked.json(&json!({"code": "import time; time.sleep(25)"})).send());
    comes(&caller, |scrape| scrape.count(busy) == 1).await;
    asked.abort();
    let gone = "http_requests_total{method=\"POST\",route=\"/v1/sessions/{session_id}/exec\",status=\"499\"}";
    comes(&caller, |scrape| scrape.count(gone) == 1).await;
    comes(&caller, |scrape| scrape.count(busy) == 0).await;
}

#[tokio::test]
async fn a_file_that_is_only_looked_at_is_no_download() {
    let server = serve(StubModel::shared());
    let caller = server.caller();
    let session = caller.session().await;
    session.put("a.csv", "0123456789").await;
    let file = session.path("/files/a.csv");
    assert_eq!(send(caller.request(Method::HEAD, &file)).await.status(), StatusCode::OK);
    let part = caller.request(Method::GET, &file).header("range", "bytes=2-4");
    assert_eq!(send(part).await.text().await.unwrap(), "234");
    session.put("empty", "").await;
    assert_eq!(session.download("empty").await.text().await.unwrap(), "");
    let scrape = Scrape::of(&caller).await;
    let told = ["success", "cancelled"].map(|outcome| operations(&scrape, "download", outcome));
    assert_eq!(told, [2, 0], "a part and an empty file");
}

#[tokio::test]
async fn metrics_are_behind_a_key_where_there_are_keys() {
    let server = Server::start(&[("API_KEYS", CALLER_KEY)]);
    let caller = server.caller();
    let (status, problem) = caller.get("/metrics").await;
    assert_eq!((status, &problem["code"]), (StatusCode::UNAUTHORIZED, &json!("unauthorized")));
    let asked = caller.request(Method::GET, "/metrics").bearer_auth(CALLER_KEY);
    let response = send(asked).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(
        response.headers()["content-type"],
        "application/openmetrics-text; version=1.0.0; charset=utf-8"
    );
    let text = response.text().await.unwrap();
    assert!(text.contains("interpreterd_refusals_total{code=\"unauthorized\"} 1"), "{text}");
    assert!(!text.contains(CALLER_KEY));
}

#[tokio::test]
async fn every_series_that_is_served_stands_in_the_table_of_metrics() {
    let table = families();
    let scrape = Scrape::of(&shared().caller()).await;
    let known = |series: &str| {
        let name = series.split('{').next().unwrap_or_default();
        table.iter().any(|family| match family.kind.as_str() {
            "histogram" => ["_bucket", "_sum", "_count"]
                .iter()
                .any(|suffix| name.strip_suffix(suffix) == Some(&family.name)),
            _ => name == family.name,
        })
    };
    let unknown: Vec<_> = scrape.names().filter(|series| !known(series)).collect();
    assert_eq!(unknown, Vec::<&str>::new());
    assert!(scrape.text.ends_with("# EOF\n"));
    let told = table.iter().find(|family| family.name == "interpreterd_runs_total").unwrap();
    assert_eq!(
        (told.kind.as_str(), &*told.labels),
        ("counter", &["kind".into(), "status".into()][..])
    );
}

#[tokio::test]
async fn a_reading_of_metrics_ends_while_the_store_hangs() {
    let Some(store) = crate::support::postgres::Server::start_private() else { return };
    let server = Server::start(&[("DATABASE_URL", &store.url()), ("DATABASE_SECONDS", "60")]);
    store.pause();
    let caller = server.caller();
    let scraping = Scrape::of(&caller);
    let scrape = tokio::time::timeout(Duration::from_secs(10), scraping).await;
    store.resume();
    assert_eq!(scrape.expect("a scrape has a limit").count("store_up"), 0);
}
