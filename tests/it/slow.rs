//! Slow callers, many callers, large callers: the others are served all the same.

use std::time::{Duration, Instant};

use reqwest::{Method, StatusCode};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::server::Server;
use crate::support::{answer, problem};

fn host(server: &Server) -> String {
    server.base.trim_start_matches("http://").to_owned()
}

/// A connection that has sent this much of a request.
async fn begun(server: &Server, head: &str) -> TcpStream {
    let mut connection = TcpStream::connect(host(server)).await.unwrap();
    connection.write_all(head.as_bytes()).await.unwrap();
    connection
}

/// What comes until the service closes the connection.
async fn rest(mut connection: TcpStream) -> String {
    let mut answer = Vec::new();
    let _ = connection.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

fn post(server: &Server, length: usize) -> String {
    format!(
        "POST /v1/execute HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n",
        host(server)
    )
}

#[tokio::test]
async fn a_body_that_does_not_come_is_given_up_and_a_head_too() {
    let server = Server::start(&[("TRANSFER_SECONDS", "1"), ("HEAD_SECONDS", "1")]);
    let body = begun(&server, &(post(&server, 100) + "{\"code\":")).await;
    let head = begun(&server, "GET /healthz HTTP/1.1\r\nhost: loc").await;
    let silent = TcpStream::connect(host(&server)).await.unwrap();
    let answer = rest(body).await;
    assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("body_too_slow"), "{answer}");
    rest(head).await;
    rest(silent).await;
    assert_eq!(server.caller().get("/healthz").await.0, StatusCode::OK);
}

#[tokio::test]
async fn an_upload_without_progress_is_given_up_and_leaves_nothing() {
    let server = Server::start(&[("TRANSFER_SECONDS", "1")]);
    let caller = server.caller();
    let session = caller.session().await;
    let head = format!(
        "PUT {} HTTP/1.1\r\nhost: {}\r\ncontent-length: 100\r\n\r\nhalf",
        session.path("/files/a"),
        host(&server)
    );
    let answer = rest(begun(&server, &head).await).await;
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("content_cut"), "{answer}");
    assert_eq!(session.text("import os; os.listdir('.')").await, "[]");
}

#[tokio::test]
async fn a_reader_who_does_not_read_is_given_up() {
    let server = Server::start(&[("TRANSFER_SECONDS", "1"), ("MAX_CONNECTIONS", "2")]);
    let caller = server.caller();
    let session = caller.session().await;
    session.exec("open('big', 'wb').truncate(200_000_000)").await;
    let head =
        format!("GET {} HTTP/1.1\r\nhost: {}\r\n\r\n", session.path("/files/big"), host(&server));
    let mut connection = begun(&server, &head).await;
    let mut first = [0; 1000];
    connection.read_exact(&mut first).await.unwrap();
    // its place is somebody else's while nothing is read
    let head =
        format!("GET /healthz HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", host(&server));
    let next = rest(begun(&server, &head).await).await;
    assert!(next.starts_with("HTTP/1.1 200"), "{next}");
    let mut received = 1000;
    let mut piece = vec![0; 1 << 20];
    while let Ok(count @ 1..) = connection.read(&mut piece).await {
        received += count;
    }
    assert!(received < 200_000_000, "{received}");
}

#[tokio::test]
async fn others_are_served_at_the_same_speed_beside_slow_and_idle_ones() {
    let server = Server::start(&[("MAX_CONNECTIONS", "700")]);
    let caller = server.caller();
    let session = caller.session().await;
    let path = session.path("/exec");
    let measure = || async {
        let started = Instant::now();
        for _ in 0..50 {
            assert_eq!(caller.post(&path, json!({"code": "1"})).await.0, StatusCode::OK);
        }
        started.elapsed()
    };
    let alone = measure().await;
    let mut idle = Vec::new();
    for _ in 0..500 {
        idle.push(TcpStream::connect(host(&server)).await.unwrap());
    }
    let noisy = caller.session().await;
    let head = format!(
        "POST {} HTTP/1.1\r\nhost: {}\r\naccept: text/event-stream\r\ncontent-type: application/json\r\ncontent-length: 58\r\n\r\n",
        noisy.path("/exec"),
        host(&server)
    );
    let body = r#"{"code":"while True: print('x' * 99)","timeout_seconds":9}"#;
    let mut reader = begun(&server, &(head + body)).await;
    let mut writer = begun(&server, &(post(&server, 1000) + "{")).await;
    // one byte a second, both ways
    let slowly = async {
        let mut second = tokio::time::interval(Duration::from_secs(1));
        loop {
            second.tick().await;
            let mut byte = [0];
            reader.read_exact(&mut byte).await.unwrap();
            writer.write_all(b" ").await.unwrap();
        }
    };
    let beside = tokio::select! {
        beside = async { let mut all = Duration::ZERO; for _ in 0..4 { all += measure().await; } all / 4 } => beside,
        () = slowly => unreachable!("it has no end"),
    };
    // a noisy session takes one of two cores; a service that waits for slow ones would take seconds
    assert!(beside < alone * 10 + Duration::from_secs(1), "alone {alone:?}, beside {beside:?}");
}

#[tokio::test]
async fn connections_beyond_their_number_wait_and_are_served_then() {
    let server = Server::start(&[("MAX_CONNECTIONS", "2")]);
    let idle = [begun(&server, "GET /").await, begun(&server, "GET /").await];
    let third = tokio::spawn({
        let caller = server.caller();
        async move { caller.get("/healthz").await.0 }
    });
    tokio::task::yield_now().await;
    assert!(!third.is_finished());
    drop(idle);
    assert_eq!(third.await.unwrap(), StatusCode::OK);
}

#[tokio::test]
async fn bodies_together_stay_within_their_budget() {
    let server = Server::start(&[("BODIES_BYTES", "131072"), ("TRANSFER_SECONDS", "1")]);
    let held = begun(&server, &(post(&server, 120_000) + "{")).await;
    let caller = server.caller();
    let (status, small) = caller.post("/v1/execute", json!({"code": "1"})).await;
    assert_eq!(status, 200, "a small one waits for nobody: {small}");
    let code = format!("1 # {}", "x".repeat(100_000));
    loop {
        // the first body is held for a second: whoever comes meanwhile is told to come again, or waits it out
        let (status, body) = caller.post("/v1/execute", json!({"code": code})).await;
        match status.as_u16() {
            200 => break,
            503 => assert_eq!(body["code"], "too_many_bodies"),
            other => panic!("{other}: {body}"),
        }
    }
    assert!(rest(held).await.starts_with("HTTP/1.1 408"));
}

#[tokio::test]
async fn an_upload_that_would_use_up_the_hosts_memory_is_refused() {
    let server = Server::start(&[("LOCAL_RESERVE_BYTES", "1000000000000000")]);
    let caller = server.caller();
    let session = caller.session().await;
    let refused = session.put("a", "x").await;
    assert_eq!(problem(&refused), (503, "no_memory".into()));
    let form = reqwest::multipart::Form::new()
        .part("file", reqwest::multipart::Part::text("x").file_name("a"));
    let refused =
        answer(caller.request(Method::POST, &session.path("/files")).multipart(form)).await;
    assert_eq!(problem(&refused), (503, "no_memory".into()));
    assert_eq!(session.text("1 + 1").await, "2");
}
