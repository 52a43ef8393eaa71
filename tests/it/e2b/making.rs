//! Sandboxes at E2B are made: once, with our marks, as an entry says.

use futures::future::join_all;
use serde_json::{Value, json};

use super::{furnished, header};
use crate::support::double::{Double, KEY};
use crate::support::problem;

const CREATE: &str = "^POST /v2/sandboxes$";

async fn created(double: &Double) -> Vec<Value> {
    let requests = double.requests("POST /v2/sandboxes").await;
    let creates = requests.iter().filter(|request| request["path"] == "/v2/sandboxes");
    creates
        .map(|request| serde_json::from_str(request["body"].as_str().unwrap()).unwrap())
        .collect()
}

#[tokio::test]
async fn a_sandbox_bears_our_marks_and_its_ports_are_closed_to_others() {
    let double = Double::start(&[]);
    let server = double.serve(&[("E2B_TTL_SECONDS", "120"), ("E2B_TEMPLATE", "base")]);
    let caller = server.caller();
    let (session, _) = furnished(&caller).await;
    let [body] = created(&double).await.try_into().unwrap();
    assert_eq!((&body["templateID"], &body["timeout"]), (&json!("base"), &json!(120)));
    assert_eq!(body["network"], json!({"allowPublicTraffic": false}));
    assert_eq!(body["metadata"]["session"], session.id);
    assert!(body["metadata"]["interpreterd"].as_str().is_some_and(|id| id.len() == 36));
    assert_eq!(body["envVars"], Value::Null, "values of ours are never pasted into code");
    let requests = double.requests("POST /v2/sandboxes").await;
    let sent = [("idempotency-key", session.id.as_str()), ("x-api-key", KEY)];
    for (name, value) in sent {
        assert_eq!(header(&requests[0], name).as_deref(), Some(value));
    }
    session.exec("1").await;
    let runs = double.requests("POST /execute").await;
    for name in ["E2B-Traffic-Access-Token", "X-Access-Token", "E2b-Sandbox-Id", "E2b-Sandbox-Port"]
    {
        assert!(
            runs.iter().all(|run| header(run, name).is_some()),
            "{name}: {}",
            runs[0]["headers"]
        );
    }
}

#[tokio::test]
async fn an_entry_of_the_file_says_how_its_sandboxes_are() {
    let double = Double::start(&[]);
    let server = double.serve_entry(
        "ttl_seconds = 90\npublic_traffic = true\ninternet = false\nallow_out = [\"1.1.1.1\"]\ndeny_out = [\"0.0.0.0/0\"]\n",
    );
    let caller = server.caller();
    let (session, _) = furnished(&caller).await;
    let [body] = created(&double).await.try_into().unwrap();
    assert_eq!((&body["timeout"], &body["allow_internet_access"]), (&json!(90), &json!(false)));
    let network =
        json!({"allowPublicTraffic": true, "allowOut": ["1.1.1.1"], "denyOut": ["0.0.0.0/0"]});
    assert_eq!(body["network"], network);
    let (_, told) = caller.get(&session.path("")).await;
    assert_eq!(
        (&told["provider"], &told["capabilities"]["network"]),
        (&json!("own"), &json!(false))
    );
    assert_eq!(session.text("1 + 1").await, "2");
    let (_, providers) = caller.get("/v1/providers").await;
    let kinds: Vec<_> = providers["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|provider| {
            (provider["name"].clone(), provider["kind"].clone(), provider["ready"].clone())
        })
        .collect();
    let packages = &providers["data"][1]["packages"];
    assert!(packages["pandas"].is_string(), "a sandbox has told of them: {packages}");
    assert!(providers["data"][1]["python"].as_str().is_some_and(|it| it.starts_with("3.")));
    assert_eq!(kinds[1], (json!("own"), json!("e2b"), json!(true)));
    assert!(!providers.to_string().contains(KEY));
}

#[tokio::test]
async fn a_create_whose_answer_is_lost_is_the_same_sandbox_when_it_is_asked_for_again() {
    let double = Double::start(&[]);
    let server = double.serve(&[]);
    for action in ["cut", "reset"] {
        double.fault(json!({"match": CREATE, "action": action})).await;
        let caller = server.caller();
        let session = caller.session().await;
        assert_eq!(session.text("1 + 1").await, "2", "{action}");
        double.has_sandboxes(1).await;
        session.delete().await;
        double.has_sandboxes(0).await;
    }
}

#[tokio::test]
async fn a_sandbox_whose_making_nobody_heard_of_is_looked_for_and_ended() {
    let double = Double::start(&[]);
    let server = double.serve(&[]);
    double.fault(json!({"match": CREATE, "action": "cut", "times": 4})).await;
    let answer = server.caller().post("/v1/sessions", json!({})).await;
    assert_eq!(problem(&answer), (503, "provider_not_ready".into()));
    double.has_sandboxes(0).await;
    let listed = double.requests("GET /v2/sandboxes?metadata").await;
    assert!(listed.len() > 1, "by its marks");
    assert_eq!(double.requests("DELETE /sandboxes/").await.len(), 1);
}

#[tokio::test]
async fn an_older_deployment_is_spoken_to_in_its_own_version() {
    let double = Double::start(&["--no-v2", "--envd-version", "0.5.0"]);
    let server = double.serve(&[]);
    let caller = server.caller();
    let session = caller.session().await;
    let creates = double.requests("POST /sandboxes").await;
    let body: Value = serde_json::from_str(creates[0]["body"].as_str().unwrap()).unwrap();
    assert_eq!((&body["secure"], &body["timeout"]), (&json!(true), &json!(600)));
    let content: Vec<u8> = (0..100_000_u32).map(|number| number as u8).collect();
    session.put("sub/a b.bin", content.clone()).await;
    let uploads = double.requests("POST /files").await;
    let kind = header(&uploads[0], "content-type").unwrap();
    assert!(kind.starts_with("multipart/form-data"), "older envd takes forms alone: {kind}");
    assert_eq!(session.download("sub/a b.bin").await.bytes().await.unwrap(), content);
    let other = caller.session().await;
    assert_eq!(other.text("1 + 1").await, "2");
    let second = double.requests("GET /v2/").await.len() + double.requests("POST /v2/").await.len();
    assert_eq!(second, 1, "it is remembered from the first call on");
}

#[tokio::test]
async fn a_rate_limit_is_waited_for_and_many_at_once_all_come_to_be() {
    let double = Double::start(&["--create-rate", "5", "--max-sandboxes", "30"]);
    let server = double.serve(&[]);
    let caller = server.caller();
    let sessions = join_all((0..12).map(|_| caller.session())).await;
    let texts = join_all(sessions.iter().map(|session| session.text("1 + 1"))).await;
    assert!(texts.iter().all(|text| text == "2"));
    let keys: std::collections::BTreeSet<String> = double
        .requests("POST /v2/sandboxes")
        .await
        .iter()
        .filter_map(|request| header(request, "idempotency-key"))
        .collect();
    assert_eq!(keys.len(), 12, "asked for again by the same key");
}

#[tokio::test]
async fn a_plans_limit_is_told_with_its_reason() {
    let double = Double::start(&["--max-sandboxes", "1"]);
    let server = double.serve(&[]);
    let caller = server.caller();
    let first = caller.session().await;
    let answer = caller.post("/v1/sessions", json!({})).await;
    assert_eq!(problem(&answer), (429, "provider_limited".into()));
    let detail = answer.1["detail"].as_str().unwrap();
    assert!(detail.contains("maximum number of concurrent E2B sandboxes (1)"), "{detail}");
    assert_eq!(answer.1["retry_safe"], true);
    first.delete().await;
    caller.session().await;
}

#[tokio::test]
async fn what_e2b_says_of_a_failed_placement_reaches_the_caller() {
    let double = Double::start(&[]);
    let server = double.serve(&[]);
    let body = json!({"code": 500, "message": "Failed to place sandbox", "error_code": "sandbox_create_failed"});
    double.fault(json!({"match": CREATE, "status": 500, "times": 4, "body": body})).await;
    let caller = server.caller();
    let answer = caller.post("/v1/sessions", json!({})).await;
    assert_eq!(problem(&answer), (502, "provider_refused".into()));
    let detail = answer.1["detail"].as_str().unwrap();
    assert!(detail.contains("sandbox_create_failed): Failed to place sandbox"), "{detail}");
    assert_eq!(answer.1["retry_safe"], true);
    assert_eq!(created(&double).await.len(), 4, "such a failure may pass: it was asked for again");
    caller.session().await;
}

#[tokio::test]
async fn a_template_that_is_not_there_and_a_key_that_is_refused_are_told() {
    let double = Double::start(&[]);
    let server = double.serve(&[("E2B_TEMPLATE", "nosuch")]);
    let answer = server.caller().post("/v1/sessions", json!({})).await;
    assert_eq!(problem(&answer), (502, "provider_refused".into()));
    assert!(answer.1["detail"].as_str().unwrap().contains("template"), "{}", answer.1);
    let key = "a-key-that-opens-nothing";
    let mut settings = double.settings();
    settings.retain(|(name, _)| !matches!(*name, "E2B_API_KEY" | "DEFAULT_PROVIDER"));
    settings.push(("E2B_API_KEY", key));
    let server = crate::support::server::Server::start(&settings);
    let caller = server.caller();
    let (_, providers) = caller.get("/v1/providers").await;
    let told = &providers["data"][1];
    assert_eq!((&told["name"], &told["ready"]), (&json!("e2b"), &json!(false)));
    assert!(told["reason"].as_str().unwrap().contains("HTTP 401"), "{told}");
    let answer = caller.post("/v1/sessions", json!({"provider": "e2b"})).await;
    assert_eq!(problem(&answer), (502, "provider_refused".into()));
    assert!(!format!("{}{providers}{}", answer.1, server.log()).contains(key));
}

#[tokio::test]
async fn a_sandbox_in_another_domain_is_not_used() {
    let double = Double::start(&["--domain", "elsewhere.example"]);
    let server = double.serve(&[]);
    let answer = server.caller().post("/v1/sessions", json!({})).await;
    assert_eq!(problem(&answer), (502, "provider_refused".into()));
    assert!(answer.1["detail"].as_str().unwrap().contains("another domain"), "{}", answer.1);
    double.has_sandboxes(0).await;
    assert!(double.requests("POST /contexts").await.is_empty(), "nothing is sent there");
    let server = double.serve_entry("domain = \"elsewhere.example\"\n");
    assert_eq!(server.caller().session().await.text("1 + 1").await, "2");
}

#[tokio::test]
async fn a_sandbox_is_kept_alive_while_its_session_lives_and_not_longer() {
    let double = Double::start(&[]);
    let server = double.serve(&[("E2B_TTL_SECONDS", "30")]);
    let caller = server.caller();
    let (session, id) = furnished(&caller).await;
    // a cell that may run longer than the sandbox is to live puts its end off first
    session.exec_with(json!({"code": "1", "timeout_seconds": 100})).await;
    let put_off = double.requests(&format!("POST /sandboxes/{id}/timeout")).await;
    let body: Value = serde_json::from_str(put_off[0]["body"].as_str().unwrap()).unwrap();
    assert!(body["timeout"].as_u64().unwrap() >= 160, "{body}");
    session.delete().await;
    double.has_sandboxes(0).await;
}

#[tokio::test]
async fn a_kept_sandbox_is_handed_out_with_the_sessions_environment() {
    let double = Double::start(&[]);
    let server = double.serve_entry("pool = 2\n");
    let caller = server.caller();
    double.has_sandboxes(2).await;
    crate::support::must_come(async {
        loop {
            let (_, providers) = caller.get("/v1/providers").await;
            if providers["data"][1]["pool"][0]["ready"] == 2 {
                return;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    let session = caller.session_with(json!({"env": {"OWN": "yes"}})).await;
    let code = "import os\nos.environ['OWN'], os.getcwd()";
    assert_eq!(session.text(code).await, "('yes', '/files')");
    double.has_sandboxes(3).await;
}
