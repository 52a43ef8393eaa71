//! The errors that routes share, on every route: what `scripts/api-coverage` asks for.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use clap::Parser;
use interpreterd::access::Access;
use interpreterd::api::{self, ApiState};
use interpreterd::config::{Action, BlobSettings, CommandLine, StoreSettings};
use interpreterd::domain::id::Tenant;
use interpreterd::llm::connect::Models;
use interpreterd::runs::Runs;
use interpreterd::runs::journal::Journal;
use interpreterd::sessions::{NewSession, Sessions};
use interpreterd::store::connect::open;
use interpreterd::telemetry::metrics::Metrics;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tower::ServiceExt;

use crate::support::server::{Server, caller};
use crate::support::stub::StubProvider;
use crate::support::{Caller, answer, problem, seen, send};

const UNKNOWN: &str = "01a227e1-01f7-72d4-a286-4b13590b4268";

/// Routes below one session, with a body where they take one.
fn session_routes() -> Vec<(Method, &'static str, Option<Value>)> {
    vec![
        (Method::PATCH, "", Some(json!({}))),
        (Method::POST, "/interrupt", None),
        (Method::POST, "/exec", Some(json!({"code": "1"}))),
        (Method::POST, "/shell", Some(json!({"command": "true"}))),
        (Method::GET, "/files", None),
        (Method::GET, "/files/a", None),
        (Method::HEAD, "/files/a", None),
        (Method::PUT, "/files/a", None),
        (Method::DELETE, "/files/a", None),
    ]
}

/// Routes that take a JSON body.
fn body_routes(session: &str) -> Vec<(Method, String)> {
    vec![
        (Method::POST, "/v1/sessions".to_owned()),
        (Method::PATCH, session.to_owned()),
        (Method::POST, format!("{session}/exec")),
        (Method::POST, format!("{session}/shell")),
        (Method::POST, "/v1/execute".to_owned()),
        (Method::POST, "/v1/interpret".to_owned()),
    ]
}

async fn call(caller: &Caller, method: &Method, path: &str, body: Option<&Value>) -> u16 {
    let request = caller.request(method.clone(), path);
    let request = match body {
        Some(body) => request.json(body),
        None => request,
    };
    answer(request).await.0.as_u16()
}

fn form(name: &'static str, content: Vec<u8>) -> reqwest::multipart::Form {
    reqwest::multipart::Form::new()
        .part("file", reqwest::multipart::Part::bytes(content).file_name(name))
}

#[tokio::test]
async fn an_id_that_is_none_an_unknown_and_an_ended_session_are_told_apart() {
    let caller = caller();
    let session = caller.session().await;
    session.delete().await;
    for (id, status) in [("x", 400), (UNKNOWN, 404), (session.id.as_str(), 410)] {
        for (method, rest, body) in session_routes() {
            let path = format!("/v1/sessions/{id}{rest}");
            assert_eq!(
                call(&caller, &method, &path, body.as_ref()).await,
                status,
                "{method} {path}"
            );
        }
        let upload = caller
            .request(Method::POST, &format!("/v1/sessions/{id}/files"))
            .multipart(form("a", b"x".to_vec()));
        assert_eq!(answer(upload).await.0, status);
    }
    for method in [Method::GET, Method::DELETE] {
        assert_eq!(call(&caller, &method, "/v1/sessions/x", None).await, 400);
    }
    for (rest, method) in [
        ("", Method::GET),
        ("/cancel", Method::POST),
        ("/events", Method::GET),
        ("/files/a", Method::GET),
    ] {
        assert_eq!(call(&caller, &method, &format!("/v1/runs/x{rest}"), None).await, 400);
        assert_eq!(call(&caller, &method, &format!("/v1/runs/{UNKNOWN}{rest}"), None).await, 404);
    }
    for (id, status) in [(UNKNOWN, 404), (session.id.as_str(), 410)] {
        let path = format!("/v1/interpret?session_id={id}");
        assert_eq!(
            call(&caller, &Method::POST, &path, Some(&json!({"message": "x"}))).await,
            status
        );
    }
    assert_eq!(
        call(&caller, &Method::POST, "/v1/interpret?colour=red", Some(&json!({"message": "x"})))
            .await,
        400
    );
    assert_eq!(call(&caller, &Method::GET, "/v1/sessions?colour=red", None).await, 400);
    assert_eq!(call(&caller, &Method::GET, "/v1/runs?limit=0", None).await, 422);
}

#[tokio::test]
async fn a_bad_body_is_told_by_its_kind_on_every_route_that_takes_one() {
    let server =
        Server::start(&[("BODY_BYTES", "1000"), ("FILE_BYTES", "1000"), ("LOCAL_PACKAGES", "off")]);
    let caller = server.caller();
    let session = caller.session().await;
    for (method, path) in body_routes(&session.path("")) {
        let send = |body: &'static str, mime: &'static str| {
            let request = caller.request(method.clone(), &path).header("content-type", mime);
            async move { problem(&answer(request.body(body)).await).0 }
        };
        assert_eq!(send("{", "application/json").await, 400, "{path}");
        assert_eq!(send("{\"nothing\": 1}", "application/json").await, 422, "{path}");
        assert_eq!(send("{}", "text/plain").await, 415, "{path}");
        let large = json!({"metadata": {"a": "x".repeat(2000)}, "code": "x".repeat(2000)});
        assert_eq!(call(&caller, &method, &path, Some(&large)).await, 413, "{path}");
    }
    let upload =
        caller.request(Method::POST, &session.path("/files")).multipart(form("a", vec![0; 2000]));
    assert_eq!(problem(&answer(upload).await).0, 413);
    let part = caller
        .request(Method::POST, &session.path("/files"))
        .header("content-type", "multipart/form-data; boundary=x")
        .body("--x\r\nbroken");
    assert_eq!(problem(&answer(part).await).0, 400);
    assert_eq!(
        call(&caller, &Method::POST, "/v1/sessions", Some(&json!({"packages": ["six"]}))).await,
        409
    );
    assert_eq!(session.text("1").await, "1");
}

#[tokio::test]
async fn a_body_that_does_not_come_is_told_on_every_route() {
    let server = Server::start(&[("TRANSFER_SECONDS", "0.5")]);
    let caller = server.caller();
    let session = caller.session().await;
    let mut routes = body_routes(&session.path(""));
    routes.push((Method::POST, session.path("/files")));
    let stall = |(method, path): (Method, String)| {
        let mime = if path.ends_with("/files") {
            "multipart/form-data; boundary=x"
        } else {
            "application/json"
        };
        let body = reqwest::Body::wrap_stream(futures::stream::pending::<
            Result<Vec<u8>, std::io::Error>,
        >());
        let request = caller.request(method, &path).header("content-type", mime).body(body);
        async move { (path, send(request).await.status()) }
    };
    for (path, status) in futures::future::join_all(routes.into_iter().map(stall)).await {
        assert_eq!(status, StatusCode::REQUEST_TIMEOUT, "{path}");
    }
}

#[tokio::test]
async fn what_is_no_file_is_a_conflict_and_conditions_hold_for_every_read() {
    let caller = caller();
    let session = caller.session().await;
    session.exec("import os; os.makedirs('folder'); open('f', 'w').write('0123456789')").await;
    for method in [Method::GET, Method::HEAD, Method::DELETE, Method::PUT] {
        assert_eq!(
            call(&caller, &method, &session.path("/files/folder"), None).await,
            409,
            "{method}"
        );
        assert_eq!(
            call(&caller, &method, &session.path("/files/a%00b"), None).await,
            400,
            "{method}"
        );
    }
    let upload = caller.request(Method::POST, &session.path("/files"));
    assert_eq!(problem(&answer(upload.multipart(form("folder", vec![0]))).await).0, 409);
    assert_eq!(call(&caller, &Method::HEAD, &session.path("/files/none"), None).await, 404);
    let (_, execution) =
        caller.post("/v1/execute", json!({"code": "open('f', 'w').write('0123456789')"})).await;
    for path in
        [session.path("/files/f"), execution["output_files"][0]["url"].as_str().unwrap().to_owned()]
    {
        let etag = send(caller.request(Method::GET, &path)).await.headers()["etag"]
            .to_str()
            .unwrap()
            .to_owned();
        for method in [Method::GET, Method::HEAD] {
            let with = |name: &'static str, value: &str| {
                let request = caller.request(method.clone(), &path).header(name, value);
                async move { send(request).await.status().as_u16() }
            };
            assert_eq!(with("if-none-match", &etag).await, 304);
            assert_eq!(with("if-match", "\"other\"").await, 412);
            let get = method == Method::GET; // a range is for GET alone
            assert_eq!(with("range", "bytes=2-3").await, if get { 206 } else { 200 });
            assert_eq!(with("range", "bytes=99-").await, if get { 416 } else { 200 });
        }
    }
}

#[tokio::test]
async fn a_service_at_its_limits_says_so_on_every_route() {
    let server = Server::start(&[
        ("MAX_STREAMS", "1"),
        ("SESSION_QUEUE", "1"),
        ("MODEL", "stub"),
        ("MODEL_BASE_URL", "http://127.0.0.1:9/v1"),
    ]);
    let caller = server.caller();
    let session = caller.session().await;
    let stream = |method: Method, path: String, body: Value| {
        let request =
            caller.request(method, &path).header("accept", "text/event-stream").json(&body);
        async move { send(request).await }
    };
    let holding = stream(
        Method::POST,
        session.path("/exec"),
        json!({"code": "import time; time.sleep(60)", "timeout_seconds": 60}),
    )
    .await;
    assert_eq!(holding.status(), 200);
    let events =
        caller.get("/v1/runs?status=running").await.1["data"][0]["id"].as_str().unwrap().to_owned();
    let refused = [
        (Method::POST, session.path("/exec"), json!({"code": "1"})),
        (Method::POST, session.path("/shell"), json!({"command": "true"})),
        (Method::POST, "/v1/execute".to_owned(), json!({"code": "1"})),
        (Method::POST, "/v1/interpret".to_owned(), json!({"message": "x"})),
        (Method::GET, format!("/v1/runs/{events}/events"), json!({})),
    ];
    for (method, path, body) in refused {
        assert_eq!(stream(method, path.clone(), body).await.status(), 503, "{path}");
    }
    let later =
        caller.request(Method::POST, &session.path("/shell")).header("prefer", "respond-async");
    assert_eq!(answer(later.json(&json!({"command": "true"}))).await.0, 202);
    while caller.get("/v1/runs?status=queued").await.1["data"].as_array().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    for (path, body) in [
        (session.path("/exec"), json!({"code": "1"})),
        (session.path("/shell"), json!({"command": "true"})),
        (format!("/v1/interpret?session_id={}", session.id), json!({"message": "x"})),
    ] {
        // the one place in line may not have been taken yet: whoever takes it waits, the next is refused
        let (one, two) = tokio::join!(
            tokio::time::timeout(Duration::from_secs(2), caller.post(&path, body.clone())),
            tokio::time::timeout(Duration::from_secs(2), caller.post(&path, body.clone())),
        );
        let busy =
            [one, two].into_iter().flatten().map(|answer| problem(&answer)).collect::<Vec<_>>();
        assert!(busy.contains(&(409, "session_busy".into())), "{path}: {busy:?}");
    }
    drop(holding);
}

/// The router over a provider that makes nothing until it is told to.
async fn house(folder: &std::path::Path, provider: StubProvider) -> (axum::Router, Arc<Sessions>) {
    let line = CommandLine::try_parse_from(["interpreterd", "serve"]).unwrap();
    let Action::Serve(settings) = line.action else { panic!("serve") };
    let metrics = Metrics::default();
    let opened =
        open(folder, &StoreSettings::default(), &BlobSettings::default(), &metrics).await.unwrap();
    let providers: interpreterd::sandbox::connect::Providers =
        vec![("stub".to_owned(), Arc::new(provider))];
    let limits = settings.limits.clone();
    let sessions = Arc::new(Sessions::new(
        providers,
        "stub".to_owned(),
        Arc::clone(&opened.store),
        limits.clone(),
    ));
    let journal = Journal::open(folder.join("journal")).unwrap();
    let models = Models::connect(&settings.model.entries, &metrics).unwrap();
    let runs = Runs::new(
        Arc::clone(&sessions),
        opened.store,
        opened.blobs,
        models,
        limits.clone(),
        folder.to_owned(),
        journal,
    );
    let state = ApiState {
        runs,
        sessions: Arc::clone(&sessions),
        access: Arc::new(Access::new(&[]).unwrap()),
        limits: Arc::new(limits),
        listings: Arc::new(Semaphore::new(1)),
        bodies: Arc::new(Semaphore::new(1000)),
        readers: Arc::new(Semaphore::new(10)),
        metrics,
        allowed_hosts: Arc::new([]),
    };
    (api::router(state), sessions)
}

async fn ask(
    router: &axum::Router,
    method: &Method,
    path: &str,
    body: Option<&Value>,
) -> (StatusCode, Value) {
    let request =
        axum::http::Request::builder().method(method).uri(path).header("host", "localhost");
    let request = match body {
        Some(body) => {
            request.header("content-type", "application/json").body(Body::from(body.to_string()))
        }
        None => request.body(Body::empty()),
    };
    let response = router.clone().oneshot(request.unwrap()).await.unwrap();
    let status = response.status();
    let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let value = serde_json::from_slice(&bytes).unwrap_or_default();
    seen::note(method, path, status, Some(&value));
    (status, value)
}

#[tokio::test]
async fn calls_wait_while_a_session_is_starting_but_for_those_that_need_not() {
    let folder = tempfile::tempdir().unwrap();
    let gate = Arc::new(tokio::sync::Notify::new());
    let (router, sessions) = house(
        folder.path(),
        StubProvider { gate: Some(Arc::clone(&gate)), ..StubProvider::default() },
    )
    .await;
    let tenant = Tenant::single();
    let making = tokio::spawn({
        let (sessions, tenant) = (Arc::clone(&sessions), tenant.clone());
        async move { sessions.create(&tenant, NewSession::default()).await.unwrap() }
    });
    while sessions.count() == 0 {
        tokio::task::yield_now().await;
    }
    let path = loop {
        let (_, list) = ask(&router, &Method::GET, "/v1/sessions", None).await;
        if let Some(session) = list["data"].as_array().unwrap().first() {
            assert_eq!(session["state"], "starting");
            break format!("/v1/sessions/{}", session["id"].as_str().unwrap());
        }
    };
    let lifetime = json!({"lifetime_seconds": 5});
    let (status, told) = ask(&router, &Method::PATCH, &path, Some(&lifetime)).await;
    assert_eq!((status.as_u16(), &told["code"]), (409, &json!("session_starting")));
    let (status, _) = ask(&router, &Method::POST, &format!("{path}/interrupt"), None).await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    let waits = |(method, rest, _): &(Method, &str, Option<Value>)| {
        *method != Method::PATCH && *rest != "/interrupt"
    };
    let waiting = session_routes().into_iter().filter(waits).map(|(method, rest, body)| {
        let (router, path) = (router.clone(), format!("{path}{rest}"));
        async move { ask(&router, &method, &path, body.as_ref()).await }
    });
    let mut waiting = Box::pin(futures::future::join_all(waiting));
    assert!(futures::poll!(&mut waiting).is_pending());
    gate.notify_one();
    assert_eq!(format!("/v1/sessions/{}", making.await.unwrap().id), path);
    for (status, told) in waiting.await {
        // a stub has no files; what HEAD is told has no words
        let cannot = told.is_null() || told["code"] == "provider_cannot";
        assert!(status.is_success() || status == 409 && cannot, "{status}: {told}");
    }
}

#[tokio::test]
async fn a_provider_that_is_not_ready_makes_the_service_not_ready_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let (router, sessions) = house(folder.path(), StubProvider::default()).await;
    let (status, told) = ask(&router, &Method::GET, "/readyz", None).await;
    assert_eq!((status.as_u16(), &told["code"]), (503, &json!("provider_not_ready")));
    let (_, providers) = ask(&router, &Method::GET, "/v1/providers", None).await;
    assert_eq!(
        (&providers["data"][0]["ready"], &providers["data"][0]["reason"]),
        (&json!(false), &json!("it has not been tried yet"))
    );
    sessions.check().await.unwrap();
    assert_eq!(ask(&router, &Method::GET, "/readyz", None).await.0, StatusCode::OK);
}
