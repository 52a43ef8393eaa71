//! Keys, and who may listen where.

use reqwest::{Method, StatusCode};

use crate::support::server::{Server, command, open_folder};
use crate::support::{answer, problem};

const KEY: &str = "a-key-of-at-least-16";

#[tokio::test]
async fn with_keys_nothing_is_told_without_one() {
    let server = Server::start(&[("API_KEYS", &format!("other-key-0123456789,{KEY}"))]);
    let caller = server.caller();
    for (method, path) in [
        (Method::GET, "/v1/providers"),
        (Method::GET, "/v1/runs"),
        (Method::POST, "/v1/sessions"),
        (Method::POST, "/v1/execute"),
        (Method::GET, "/v1/sessions/01a227e1-01f7-72d4-a286-4b13590b4268"),
    ] {
        let refused = answer(caller.request(method.clone(), path)).await;
        assert_eq!(problem(&refused), (401, "unauthorized".into()), "{path}");
        let wrong = answer(caller.request(method, path).bearer_auth("wrong-key-0123456789")).await;
        assert_eq!(problem(&wrong).0, 401, "{path}");
    }
    let response =
        crate::support::send(caller.request(Method::GET, "/v1/providers").bearer_auth(KEY)).await;
    assert_eq!(response.status(), StatusCode::OK);
    for path in ["/healthz", "/readyz", "/openapi.json"] {
        assert_eq!(caller.get(path).await.0, StatusCode::OK, "{path}");
    }
    assert!(!server.log().contains(KEY));
}

#[test]
fn without_keys_only_loopback_is_listened_on() {
    let folder = open_folder();
    let output = command()
        .args(["serve", "--listen", "0.0.0.0:0", "--data-dir"])
        .arg(folder.path().join("data"))
        .output()
        .unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("INTERPRETERD_API_KEYS") && said.contains("--allow-anonymous"), "{said}");
}
