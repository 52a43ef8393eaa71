//! How machines are started, and what settings say of that.

use reqwest::StatusCode;
use serde_json::{Value, json};

use super::{furnished, machine_of};
use crate::packages::{ready, usual};
use crate::support::agentcore::{AgentCore, SECRET};
use crate::support::server::{Server, command, open_folder};
use crate::support::{must_come, problem};

const START: &str = "PUT /code-interpreters/.*/sessions/start ?$";

async fn starts(aws: &AgentCore) -> Vec<Value> {
    let calls = aws.requests("PUT ").await;
    calls.into_iter().filter(|call| call["path"].as_str().unwrap().ends_with("/start")).collect()
}

async fn is_empty(aws: &AgentCore) {
    must_come(async {
        while !aws.machines().await.is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_machine_is_started_with_a_name_a_token_and_its_time_and_stopped_with_its_session() {
    let aws = AgentCore::start(&[]);
    let server = aws.serve(&[]);
    let caller = server.caller();
    let (session, id) = furnished(&caller).await;
    let machines = aws.machines().await;
    let [machine] = machines.as_slice() else { panic!("one") };
    assert_eq!(machine["sessionId"], id.as_str());
    assert_eq!(machine["sessionTimeoutSeconds"], 900);
    let name = machine["name"].as_str().unwrap();
    assert!(name.starts_with("interpreterd-") && name.contains(&session.id), "{name}");
    assert!(name.len() <= 100);
    let call = &starts(&aws).await[0];
    assert_eq!(call["body"]["clientToken"], name, "one for each that is made");
    let (_, told) = caller.get(&session.path("")).await;
    assert!(told["files_dir"].as_str().unwrap().ends_with("/files"), "{told}");
    let capabilities = &told["capabilities"];
    assert_eq!(
        (&capabilities["packages"], &capabilities["network"]),
        (&json!(false), &json!(false))
    );
    assert_eq!(session.delete().await, StatusCode::NO_CONTENT);
    is_empty(&aws).await;
    let (_, one_shot) = caller.post("/v1/execute", json!({"code": "1 + 1"})).await;
    assert_eq!(one_shot["text"], "2");
    is_empty(&aws).await;
}

#[tokio::test]
async fn a_longer_session_gets_a_longer_machine() {
    let aws = AgentCore::start(&[]);
    let server = aws.serve(&[]);
    let caller = server.caller();
    caller.session_with(json!({"lifetime_seconds": 3600})).await;
    assert_eq!(aws.machines().await[0]["sessionTimeoutSeconds"], 3630);
}

#[tokio::test]
async fn a_start_that_fails_for_a_moment_is_asked_for_again_and_is_the_same() {
    for fault in [
        json!({"match": START, "status": 500, "times": 2}),
        json!({"match": START, "status": 500, "after": true, "times": 2}),
        json!({"match": START, "action": "drop", "after": true, "times": 2}),
        json!({"match": START, "status": 429, "times": 2}),
    ] {
        let aws = AgentCore::start(&[]);
        let server = aws.serve(&[]);
        aws.fault(fault.clone()).await;
        let caller = server.caller();
        let session = caller.session().await;
        assert_eq!(session.text("6 * 7").await, "42", "{fault}");
        assert_eq!((starts(&aws).await.len(), aws.machines().await.len()), (3, 1), "{fault}");
    }
}

#[tokio::test]
async fn a_start_that_fails_for_good_is_told_and_leaves_nothing() {
    let aws = AgentCore::start(&[]);
    let server = aws.serve(&[]);
    let caller = server.caller();
    for (fault, told) in [
        (json!({"match": START, "status": 402}), (429, "provider_limited")),
        (json!({"match": START, "status": 403}), (502, "provider_refused")),
        (
            json!({"match": START, "status": 500, "after": true, "times": 3}),
            (503, "provider_not_ready"),
        ),
        (json!({"match": "executeCode$", "status": 403}), (502, "provider_refused")),
        (json!({"match": "executeCode$", "action": "silent"}), (502, "provider_refused")),
    ] {
        aws.fault(fault.clone()).await;
        let refused = caller.post("/v1/sessions", json!({})).await;
        assert_eq!(problem(&refused), (told.0, told.1.to_owned()), "{fault}: {}", refused.1);
        is_empty(&aws).await;
    }
    assert_eq!(caller.session().await.text("1").await, "1");
}

#[tokio::test]
async fn credentials_that_are_wrong_are_told_and_never_shown() {
    let aws = AgentCore::start(&["--secret", "another-secret"]);
    let server = aws.serve(&[("DEFAULT_PROVIDER", "local")]);
    let caller = server.caller();
    let refused = caller.post("/v1/sessions", json!({"provider": "bedrock"})).await;
    assert_eq!(problem(&refused), (502, "provider_refused".into()));
    let told = refused.1["detail"].as_str().unwrap();
    assert!(told.contains("AccessDeniedException"), "{told}");
    let (_, providers) = caller.get("/v1/providers").await;
    let providers = providers["data"].as_array().unwrap();
    let entry = providers.iter().find(|entry| entry["name"] == "bedrock").unwrap();
    assert_eq!((&entry["kind"], &entry["ready"]), (&json!("bedrock"), &json!(false)), "{entry}");
    assert!(entry["reason"].as_str().unwrap().contains("AccessDenied"), "{entry}");
    let all = format!("{refused:?}{providers:?}{}", server.log());
    assert!(!all.contains(SECRET), "a secret is shown");
}

#[tokio::test]
async fn aws_own_variables_are_honoured() {
    let aws = AgentCore::start(&["--region", "eu-central-1"]);
    let folder = open_folder();
    let variables = [
        ("AWS_REGION", "eu-central-1"),
        ("AWS_ENDPOINT_URL_BEDROCK_AGENTCORE", aws.url()),
        ("AWS_ACCESS_KEY_ID", "AKIDOFTHETESTS"),
        ("AWS_SECRET_ACCESS_KEY", SECRET),
        ("AWS_EC2_METADATA_DISABLED", "true"),
    ];
    let settings = [("DEFAULT_PROVIDER", "bedrock")];
    let server = Server::start_with(folder.path(), &settings, &variables);
    let caller = server.caller();
    assert_eq!(caller.session().await.text("6 * 7").await, "42");
}

#[tokio::test]
async fn without_credentials_a_session_is_refused_and_nothing_was_sent() {
    let aws = AgentCore::start(&[]);
    let folder = open_folder();
    let settings = [("BEDROCK_REGION", "us-west-2"), ("BEDROCK_ENDPOINT_URL", aws.url())];
    let variables = [("AWS_EC2_METADATA_DISABLED", "true"), ("AWS_CONFIG_FILE", "/dev/null")];
    let server = Server::start_with(folder.path(), &settings, &variables);
    let refused = server.caller().post("/v1/sessions", json!({"provider": "bedrock"})).await;
    assert_eq!(problem(&refused), (503, "provider_not_ready".into()));
    assert!(server.log().contains("are there credentials"), "{}", server.log());
    assert!(starts(&aws).await.is_empty());
}

#[test]
fn a_region_that_is_none_stops_the_start() {
    let folder = open_folder();
    for (settings, word) in [
        (vec![("INTERPRETERD_DEFAULT_PROVIDER", "bedrock")], "no region"),
        (
            vec![("INTERPRETERD_BEDROCK_REGION", "us-west-2.evil.example")],
            "must look like us-west-2",
        ),
        (
            vec![
                ("INTERPRETERD_BEDROCK_REGION", "us-west-2"),
                ("INTERPRETERD_BEDROCK_SESSION_SECONDS", "28801"),
            ],
            "between 60 and 28800",
        ),
    ] {
        let mut command = command();
        command.arg("serve").envs(settings.iter().copied());
        let output = command.env("INTERPRETERD_DATA_DIR", folder.path()).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && told.contains(word), "{told}");
    }
}

#[tokio::test]
async fn packages_are_refused_where_there_is_no_way_out() {
    let aws = AgentCore::start(&[]);
    let server = aws.serve(&[]);
    let caller = server.caller();
    let answer = caller.post("/v1/execute", json!({"code": "1", "packages": ["six"]})).await;
    assert_eq!(problem(&answer), (409, "provider_cannot".into()));
    assert!(answer.1["detail"].as_str().unwrap().contains("internet is off"), "{}", answer.1);
    assert!(aws.machines().await.is_empty());
}

#[tokio::test]
async fn packages_are_installed_into_each_machine_of_the_session_that_asks_for_them() {
    let index = usual();
    let aws = AgentCore::start(&[]);
    let lines = format!("internet = true\npackage_index = \"{}\"\n", index.url);
    let server = aws.serve_entry(&lines);
    let caller = server.caller();
    let session = caller.session_with(json!({"packages": ["demo-a"]})).await;
    assert_eq!(ready(&session).await["state"], "ready");
    let code = "import demo_a, subprocess, sys\ndemo_a.VERSION, subprocess.run([sys.executable, '-c', 'import demo_a, demo_b; print(demo_b.VERSION)'], capture_output=True, text=True).stdout";
    assert_eq!(session.text(code).await, "('2.0', '1.0\\n')");
    aws.kill_machine(&machine_of(&session).await).await;
    assert_eq!(session.text("import demo_a\ndemo_a.VERSION").await, "'2.0'");
    let without = caller.session().await;
    assert_eq!(without.exec("import demo_a").await["error_detail"]["name"], "ModuleNotFoundError");
    for package in ["nosuch", "demo-a==9"] {
        let body = json!({"code": "1", "packages": [package]});
        let answer = caller.post("/v1/execute", body).await;
        assert_eq!(problem(&answer), (422, "package_not_found".into()));
        assert!(answer.1["detail"].as_str().unwrap().contains(package), "{}", answer.1);
    }
}

#[tokio::test]
async fn another_machine_of_the_same_session_is_told_by_the_session() {
    let aws = AgentCore::start(&[]);
    let server = aws.serve(&[]);
    let caller = server.caller();
    let (session, id) = furnished(&caller).await;
    aws.kill_machine(&id).await;
    session.exec("1").await;
    let other = machine_of(&session).await;
    assert_ne!(other, id);
    assert_eq!(aws.machines().await[0]["sessionId"], other.as_str());
}

#[tokio::test]
async fn a_machine_that_nobody_waits_for_any_more_is_stopped() {
    let aws = AgentCore::start(&[]);
    let server = aws.serve(&[]);
    let caller = server.caller();
    let (session, id) = furnished(&caller).await;
    aws.kill_machine(&id).await;
    let fault = json!({"match": START, "action": "slow_head", "seconds": 2, "after": true});
    aws.fault(fault).await;
    let request = caller.request(reqwest::Method::GET, &session.path("/files"));
    let listing = request.timeout(std::time::Duration::from_millis(500)).send();
    assert!(listing.await.is_err(), "the caller gives up");
    must_come(async {
        while starts(&aws).await.len() < 2 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(session.delete().await, StatusCode::NO_CONTENT);
    is_empty(&aws).await;
}

#[tokio::test]
async fn a_stop_that_fails_for_a_while_is_made_later() {
    let aws = AgentCore::start(&[]);
    let server = aws.serve(&[]);
    let caller = server.caller();
    let session = caller.session().await;
    aws.fault(json!({"match": "sessions/stop", "status": 500, "times": 3})).await;
    assert_eq!(session.delete().await, StatusCode::NO_CONTENT);
    assert_eq!(aws.machines().await.len(), 1);
    is_empty(&aws).await;
}
