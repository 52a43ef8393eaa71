//! Bad input: the right problem each, nothing lost, logged once.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::server::{Server, caller};
use crate::support::{answer, problem};

#[tokio::test]
async fn bodies_that_cannot_be_read_are_told_apart() {
    let caller = caller();
    let session = caller.session().await;
    let send = |body: &'static str, mime: &'static str| {
        let request = caller.request(Method::POST, &session.path("/exec"));
        answer(request.header("content-type", mime).body(body))
    };
    let json_type = "application/json";
    for (body, mime, expected) in [
        ("{\"code\": ", json_type, (400, "malformed_json")),
        ("", json_type, (400, "malformed_json")),
        ("{\"code\": \"1\"} x", json_type, (400, "malformed_json")),
        ("{\"code\": \"\u{1}\"}", json_type, (400, "malformed_json")),
        ("{\"code\": \"1\", \"colour\": 1}", json_type, (422, "invalid")),
        ("{\"code\": 1}", json_type, (422, "invalid")),
        ("{}", json_type, (422, "invalid")),
        ("[]", json_type, (422, "invalid")),
        ("{\"code\": \"1\"}", "text/plain", (415, "unsupported_media_type")),
        ("code=1", "application/x-www-form-urlencoded", (415, "unsupported_media_type")),
    ] {
        let answer = send(body, mime).await;
        assert_eq!(problem(&answer), (expected.0, expected.1.into()), "{body:?}");
    }
    let unknown = send("{\"code\": \"1\", \"colour\": 1}", json_type).await;
    assert_eq!(unknown.1["errors"][0]["pointer"], "/colour");
    assert_eq!(session.text("'alive'").await, "'alive'");
    let deep = caller
        .request(Method::POST, &session.path("/exec"))
        .header("content-type", json_type)
        .body("[".repeat(100_000));
    assert_eq!(problem(&answer(deep).await).0, 422);
}

#[tokio::test]
async fn a_problem_has_all_its_parts() {
    let caller = caller();
    let request = caller.request(Method::GET, "/v1/nothing").header("x-request-id", "mine-1");
    let response = crate::support::send(request).await;
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    assert_eq!(response.headers()["x-request-id"], "mine-1");
    let body: Value = response.json().await.unwrap();
    assert_eq!(
        body,
        json!({"type": "about:blank", "title": "Not Found", "status": 404, "detail": "there is no route /v1/nothing", "code": "route_not_found", "request_id": "mine-1"})
    );
    let method = answer(caller.request(Method::PATCH, "/v1/runs")).await;
    assert_eq!(problem(&method), (405, "method_not_allowed".into()));
    let unsafe_id =
        crate::support::send(caller.request(Method::GET, "/healthz").header("x-request-id", "a b"))
            .await;
    assert_eq!(unsafe_id.headers()["x-request-id"].len(), 36);
}

#[tokio::test]
async fn a_body_over_its_limit_is_refused() {
    let server = Server::start(&[("BODY_BYTES", "10000")]);
    let caller = server.caller();
    let body = json!({"code": "1", "metadata": "x".repeat(20_000)});
    for path in ["/v1/execute", "/v1/interpret"] {
        assert_eq!(
            problem(&caller.post(path, body.clone()).await),
            (413, "body_too_large".into()),
            "{path}"
        );
    }
}

#[tokio::test]
async fn foreign_pages_are_turned_away_on_every_route() {
    let caller = caller();
    for path in ["/healthz", "/v1/providers", "/openapi.json", "/docs/", "/nothing"] {
        for (header, value, code) in [
            ("host", "evil.example", "foreign_host"),
            ("origin", "http://evil.example", "foreign_origin"),
            ("origin", "null", "foreign_origin"),
            ("sec-fetch-site", "cross-site", "foreign_origin"),
        ] {
            let answer = answer(caller.request(Method::GET, path).header(header, value)).await;
            assert_eq!(problem(&answer), (403, code.into()), "{path} {header}: {value}");
        }
    }
    let form = reqwest::multipart::Form::new().text("request", "{}");
    let request =
        caller.request(Method::POST, "/v1/interpret").header("origin", "http://evil.example");
    assert_eq!(problem(&answer(request.multipart(form)).await).0, 403);
    let same = caller.base.clone();
    let response =
        crate::support::send(caller.request(Method::GET, "/healthz").header("origin", same)).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert!(!response.headers().contains_key("access-control-allow-origin"));
}

#[tokio::test]
async fn a_fault_of_ours_shows_a_fixed_sentence_and_is_logged_once() {
    let server = Server::start(&[]);
    let caller = server.caller();
    let (_, execution) =
        caller.post("/v1/execute", json!({"code": "open('a', 'w').write('x')"})).await;
    std::fs::remove_dir_all(server.data_dir.join("blobs")).unwrap();
    let url = execution["output_files"][0]["url"].as_str().unwrap();
    let request = caller.request(Method::GET, url).header("x-request-id", "find-me");
    let answer = answer(request).await;
    assert_eq!(problem(&answer), (500, "store_failed".into()));
    assert_eq!(answer.1["detail"], "the service failed; its log says why");
    let log = server.log_with("find-me");
    let lines: Vec<_> =
        log.lines().filter(|line| line.contains("find-me") && line.contains("ERROR")).collect();
    assert_eq!(lines.len(), 1, "{log}");
    assert!(lines[0].contains("a blob is missing"), "{}", lines[0]);
}

#[tokio::test]
async fn code_and_contents_are_never_logged() {
    let server = Server::start(&[("LOG", "debug")]);
    let caller = server.caller();
    let session = caller.session().await;
    session.put("private-name.txt", "private-content").await;
    session
        .exec("print('private-output', open('private-name.txt').read()); 1/0 # private-code")
        .await;
    let refused =
        caller.post(&session.path("/exec"), json!({"code": 1, "x": "private-field"})).await;
    let log = server.log_with(refused.1["request_id"].as_str().unwrap());
    assert!(!log.contains("private-"), "{log}");
}

#[tokio::test]
async fn an_environment_that_can_be_none_is_refused_and_harms_nobody() {
    let caller = caller();
    let session = caller.session().await;
    session.exec("x = 1").await;
    for env in [
        json!({"": "x"}),
        json!({"A=B": "x"}),
        json!({"A": "x\0"}),
        json!({"A": "x".repeat(70_000)}),
        json!({"A": "x".repeat(300_000)}),
    ] {
        for (path, body) in [
            ("/v1/sessions".to_owned(), json!({"env": env})),
            ("/v1/execute".to_owned(), json!({"code": "1", "env": env})),
            (session.path("/exec"), json!({"code": "1", "env": env})),
        ] {
            let refused = caller.post(&path, body).await;
            assert_eq!(problem(&refused), (422, "invalid_env".into()), "{path}");
            assert_eq!(refused.1["errors"][0]["pointer"], "/env");
        }
    }
    assert_eq!(session.text("x").await, "1", "every session lives on");
    let largest = json!({"env": {"A": "x".repeat(32 * 1024 - 1)}});
    let session = caller.session_with(largest).await;
    assert_eq!(session.text("import os; len(os.environ['A'])").await, "32767");
}

#[tokio::test]
async fn texts_over_their_limits_are_refused() {
    let caller = caller();
    let session = caller.session().await;
    let long = caller
        .post(&session.path("/exec"), json!({"code": "1", "stdin": "x".repeat((1 << 20) + 1)}))
        .await;
    assert_eq!(problem(&long), (413, "stdin_too_long".into()));
    let notes = caller.post("/v1/sessions", json!({"metadata": {"a": "x".repeat(17_000)}})).await;
    assert_eq!(problem(&notes), (422, "metadata_too_long".into()));
    let question = caller.post("/v1/interpret", json!({"message": "x".repeat(300_000)})).await;
    assert_eq!(problem(&question), (422, "message_too_long".into()));
}
