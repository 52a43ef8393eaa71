//! Interpret: a question and files in, an answer and files out.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use reqwest::Method;
use reqwest::multipart::{Form, Part};
use serde_json::{Value, json};

use crate::support::model::{Reply, StubModel, call, run, text};
use crate::support::server::{Server, caller};
use crate::support::{answer, problem};

#[tokio::test]
async fn two_turns_one_failing_then_an_answer_with_a_link() {
    let question = StubModel::shared().script("two-turns", &[
        run(&["import pandas as pd\npd.read_csv('sales.csv')['wrong']"]),
        run(&["df = pd.read_csv('sales.csv')\ndf.describe().to_csv('report 1.csv')\nprint(df['n'].sum())", "df['n'].max()"]),
        text("The sum is 6: [the report](sandbox:/files/report%201.csv), [missing](sandbox:/files/no.csv)."),
    ]);
    let caller = caller();
    let body = json!({
        "message": question,
        "files": [{"name": "sales.csv", "content_base64": STANDARD.encode("n\n1\n2\n3\n")}],
        "metadata": {"ticket": "7"},
    });
    let (status, run) = caller.post("/v1/interpret", body).await;
    assert_eq!(status, 200, "{run}");
    assert_eq!(
        (&run["status"], &run["turns"], &run["model"]),
        (&json!("success"), &json!(3), &json!("stub"))
    );
    assert_eq!(run["usage"], json!({"input_tokens": 30, "output_tokens": 15}));
    assert_eq!(
        run["text"],
        "The sum is 6: [the report](sandbox:/files/report%201.csv), [missing](sandbox:/files/no.csv)."
    );
    assert_eq!((&run["message"], &run["metadata"]), (&json!(question), &json!({"ticket": "7"})));
    let results = run["code_exec_results"].as_array().unwrap();
    let statuses: Vec<_> = results.iter().map(|result| &result["execution"]["status"]).collect();
    assert_eq!(statuses, ["error", "success", "success"]);
    assert_eq!(results[0]["execution"]["error_detail"]["name"], "KeyError");
    assert_eq!(results[1]["output"], json!(["6\n"]));
    let file = &run["output_files"][0];
    assert_eq!((&file["path"], &file["linked"]), (&json!("report 1.csv"), &json!(true)));
    assert_eq!(results[2]["output"], json!(["np.int64(3)", file]));
    let content = crate::support::send(caller.request(Method::GET, file["url"].as_str().unwrap()))
        .await
        .text()
        .await
        .unwrap();
    assert!(content.starts_with(",n\ncount,3.0\n"), "{content}");

    let (_, session) =
        caller.get(&format!("/v1/sessions/{}", run["session_id"].as_str().unwrap())).await;
    assert_eq!(session["state"], "ended");
    let (status, again) = caller.get(&format!("/v1/runs/{}", run["id"].as_str().unwrap())).await;
    assert_eq!((status, &again), (reqwest::StatusCode::OK, &run), "the run outlives its session");
    what_the_model_was_told();
}

fn what_the_model_was_told() {
    let requests = StubModel::shared().requests("two-turns");
    let messages = requests[2]["messages"].as_array().unwrap();
    let system = messages[0]["content"].as_str().unwrap();
    for fact in ["Python 3.1", "/files", "pandas", "no network", "stay from call to call"] {
        assert!(system.contains(fact), "{system}");
    }
    assert!(messages[1]["content"].as_str().unwrap().contains("\"sales.csv\" (8 bytes, text/csv)"));
    let failed = messages[3]["content"].as_str().unwrap();
    assert!(
        failed.starts_with("status: error\n") && failed.contains("KeyError: 'wrong'"),
        "{failed}"
    );
    let worked = messages[5]["content"].as_str().unwrap();
    assert!(
        worked.starts_with("status: ok\nstdout:\n6\nfiles created or changed:\n- \"report 1.csv\""),
        "{worked}"
    );
    assert_eq!(messages[6]["content"], "status: ok\nresult:\nnp.int64(3)\n");
}

#[tokio::test]
async fn files_come_as_multipart_and_stay_in_a_given_session() {
    let question = StubModel::shared().script(
        "multipart",
        &[run(&["open('out.txt', 'w').write(open('a ü.txt').read() * 2)"]), text("Done.")],
    );
    let caller = caller();
    let session = caller.session().await;
    let form = Form::new()
        .part(
            "request",
            Part::text(json!({"message": question, "include": ["content"]}).to_string()),
        )
        .part("file", Part::bytes(b"xy".to_vec()).file_name("a ü.txt"));
    let request = caller.request(Method::POST, &format!("/v1/interpret?session_id={}", session.id));
    let (status, run) = answer(request.multipart(form)).await;
    assert_eq!(status, 200, "{run}");
    assert_eq!(run["session_id"], session.id);
    let file = &run["output_files"][0];
    assert_eq!(
        (&file["path"], &file["linked"], &file["content_base64"]),
        (&json!("out.txt"), &json!(false), &json!(STANDARD.encode("xyxy")))
    );
    assert_eq!(session.text("open('out.txt').read()").await, "'xyxy'");
}

#[tokio::test]
async fn a_model_that_never_answers_in_text_ends_by_its_turns() {
    let calls: Vec<Reply> = (0..5).map(|number| run(&[&format!("{number}")])).collect();
    let question = StubModel::shared().script("never-ends", &calls);
    let (status, run) =
        caller().post("/v1/interpret", json!({"message": question, "max_turns": 3})).await;
    assert_eq!(status, 200, "{run}");
    assert_eq!(
        (&run["status"], &run["failure"]["kind"], &run["turns"]),
        (&json!("error"), &json!("max_turns"), &json!(3))
    );
    assert_eq!(
        run["code_exec_results"].as_array().unwrap().len(),
        2,
        "the last turn is for the answer"
    );
    let requests = StubModel::shared().requests("never-ends");
    assert_eq!(requests[2]["tool_choice"], "none");
    assert!(requests[0].get("tool_choice").is_none());
}

#[tokio::test]
async fn the_same_call_again_and_again_ends_the_loop() {
    let question = StubModel::shared().script("same-call", &[run(&["1"])]);
    let (_, run) = caller().post("/v1/interpret", json!({"message": question})).await;
    assert_eq!((&run["failure"]["kind"], &run["turns"]), (&json!("max_turns"), &json!(4)), "{run}");
    assert_eq!(run["code_exec_results"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn what_a_model_gets_wrong_is_told_to_it_and_the_loop_goes_on() {
    let question = StubModel::shared().script(
        "wrong-calls",
        &[
            call("browser_search", "{}").into(),
            call("run_python", "{\"code\": \"1").into(),
            call("run_python", "print('bare')").into(),
            text(""),
            text("after all"),
        ],
    );
    let (_, run) = caller().post("/v1/interpret", json!({"message": question})).await;
    assert_eq!((&run["status"], &run["text"]), (&json!("success"), &json!("after all")), "{run}");
    assert_eq!(run["code_exec_results"].as_array().unwrap().len(), 1);
    assert_eq!(run["code_exec_results"][0]["output"], json!(["bare\n"]));
    let requests = StubModel::shared().requests("wrong-calls");
    let told = requests[4]["messages"].to_string();
    assert!(told.contains("there is no tool") && told.contains("not a JSON object"), "{told}");
}

#[tokio::test]
async fn an_empty_model_ends_as_model_empty() {
    let question = StubModel::shared().script("empty", &[text(" ")]);
    let (status, run) = caller().post("/v1/interpret", json!({"message": question})).await;
    assert_eq!((status.as_u16(), &run["failure"]["kind"]), (200, &json!("model_empty")), "{run}");
}

#[tokio::test]
async fn a_model_that_fails_is_a_502_and_the_run_keeps_what_happened() {
    let question = StubModel::shared().script(
        "fails",
        &[
            run(&["x = 1\nprint('done once')"]),
            Reply::Fault(401, json!({"error": {"message": "no such key sk-secret"}})),
        ],
    );
    let caller = caller();
    let answer = caller.post("/v1/interpret", json!({"message": question})).await;
    assert_eq!(problem(&answer), (502, "model_unavailable".into()));
    assert!(!answer.1.to_string().contains("secret"), "{}", answer.1);
    let detail = answer.1["detail"].as_str().unwrap();
    assert!(detail.contains(answer.1["run_id"].as_str().unwrap()), "{detail}");
    let (_, run) = caller.get(&format!("/v1/runs/{}", answer.1["run_id"].as_str().unwrap())).await;
    assert_eq!(
        (&run["status"], &run["failure"]["kind"]),
        (&json!("error"), &json!("model_unavailable"))
    );
    assert_eq!(run["code_exec_results"][0]["execution"]["stdout"], "done once\n");
    let error = run["error"].as_str().unwrap();
    assert!(error.ends_with("refused the key (HTTP 401): no such key sk-secret"), "{error}");
    assert_eq!(run["failure"]["retry_safe"], false, "code has run");
}

#[tokio::test]
async fn a_model_that_is_busy_for_a_moment_is_asked_again() {
    let question =
        StubModel::shared().script("busy", &[Reply::Fault(503, json!({})), text("here")]);
    let (_, run) = caller().post("/v1/interpret", json!({"message": question})).await;
    assert_eq!(
        (&run["status"], &run["text"], &run["turns"]),
        (&json!("success"), &json!("here"), &json!(1)),
        "{run}"
    );
}

#[tokio::test]
async fn the_time_for_the_whole_holds_for_the_model_and_for_its_cells() {
    let caller = caller();
    for (name, script) in [
        ("slow-model", vec![Reply::Never]),
        ("slow-cell", vec![run(&["import time; time.sleep(30)"])]),
    ] {
        let question = StubModel::shared().script(name, &script);
        let (status, run) =
            caller.post("/v1/interpret", json!({"message": question, "timeout_seconds": 1})).await;
        assert_eq!(status, 200, "{run}");
        assert_eq!(
            (&run["status"], &run["failure"]["kind"]),
            (&json!("timeout"), &json!("budget")),
            "{name}: {run}"
        );
        assert!(run["duration_ms"].as_f64().unwrap() < 3000.0);
    }
}

#[tokio::test]
async fn a_caller_who_goes_away_cancels_the_run_and_it_is_recorded() {
    let question = StubModel::shared().script("gone", &[run(&["x = 1"]), Reply::Never]);
    let caller = caller();
    let session = caller.session().await;
    let request = caller.request(Method::POST, &format!("/v1/interpret?session_id={}", session.id));
    let request =
        request.json(&json!({"message": question})).timeout(std::time::Duration::from_secs(1));
    assert!(request.send().await.is_err());
    assert_eq!(session.text("x").await, "1");
    let (_, runs) = caller.get(&format!("/v1/runs?kind=interpret&session_id={}", session.id)).await;
    assert_eq!(runs["data"][0]["status"], "cancelled", "{runs}");
}

#[tokio::test]
async fn without_a_model_it_says_how_to_configure_one() {
    let server = Server::start(&[]);
    let answer = server.caller().post("/v1/interpret", json!({"message": "hi"})).await;
    assert_eq!(problem(&answer), (501, "model_not_configured".into()));
    assert!(answer.1["detail"].as_str().unwrap().contains("INTERPRETERD_MODEL"));
    assert_eq!(server.caller().get("/v1/models").await.1["data"], json!([]));
}

#[tokio::test]
async fn bad_questions_are_problems() {
    let caller = caller();
    let asked = |body: Value| async { problem(&caller.post("/v1/interpret", body).await) };
    assert_eq!(asked(json!({})).await, (422, "invalid".into()));
    assert_eq!(asked(json!({"message": "x", "max_turns": 26})).await, (422, "out_of_range".into()));
    assert_eq!(
        asked(json!({"message": "x", "timeout_seconds": 3601})).await,
        (422, "out_of_range".into())
    );
    assert_eq!(
        asked(json!({"message": "x", "model": "other"})).await,
        (422, "unknown_model".into())
    );
    let (_, unknown) =
        caller.post("/v1/interpret", json!({"message": "x", "model": "other"})).await;
    assert_eq!(unknown["detail"], "there is no model named other, but stub, claude, seeing");
    let request = caller.request(Method::POST, "/v1/interpret").body("{}");
    let typed = answer(request.header("content-type", "text/plain")).await;
    assert_eq!(problem(&typed), (415, "unsupported_media_type".into()));
    assert!(typed.1["detail"].as_str().unwrap().contains("application/json"), "{}", typed.1);
    let form = Form::new().part("file", Part::bytes(b"x".to_vec()).file_name("a"));
    let request = caller.request(Method::POST, "/v1/interpret").multipart(form);
    assert_eq!(problem(&answer(request).await), (400, "malformed_multipart".into()));
    let form = Form::new().part("file", Part::bytes(b"x".to_vec()).file_name("../a"));
    let request = caller.request(Method::POST, "/v1/interpret").multipart(form);
    assert_eq!(problem(&answer(request).await), (400, "malformed_path".into()));
}

#[tokio::test]
async fn no_key_of_the_model_is_in_any_answer_log_or_row() {
    let key = crate::support::model::KEY;
    let question =
        StubModel::shared().script("keys", &[run(&["import os; dict(os.environ)"]), text("ok")]);
    let caller = caller();
    let request = caller.request(Method::POST, "/v1/interpret").header("x-request-id", "keys-run");
    let (_, run) = answer(request.json(&json!({"message": question}))).await;
    let (_, models) = caller.get("/v1/models").await;
    let (_, providers) = caller.get("/v1/providers").await;
    let server = crate::support::server::shared();
    let database = std::fs::read(server.data_dir.join("interpreterd.db")).unwrap();
    let log = std::fs::read(server.data_dir.join("interpreterd.db-wal")).unwrap_or_default();
    let all = format!(
        "{run}{models}{providers}{}{}{}",
        server.log_with("keys-run"),
        String::from_utf8_lossy(&database),
        String::from_utf8_lossy(&log)
    );
    assert!(!all.contains(key));
    let model = |name: &str, protocol: &str| {
        let default = name == "stub";
        json!({"name": name, "protocol": protocol, "default": default, "vision": !default})
    };
    let expected =
        [model("stub", "openai"), model("claude", "anthropic"), model("seeing", "openai")];
    assert_eq!(models["data"], json!(expected));
}

#[tokio::test]
async fn a_message_of_very_many_calls_is_answered_whole_and_run_in_part() {
    let codes: Vec<String> = (0..40).map(|number| number.to_string()).collect();
    let codes: Vec<&str> = codes.iter().map(String::as_str).collect();
    let question = StubModel::shared().script("many-calls", &[run(&codes), text("enough")]);
    let (_, run) = caller().post("/v1/interpret", json!({"message": question})).await;
    assert_eq!(
        (&run["status"], run["code_exec_results"].as_array().unwrap().len()),
        (&json!("success"), 16)
    );
    let told = StubModel::shared().requests("many-calls")[1]["messages"].to_string();
    assert_eq!(told.matches("not run: a message may hold 16 calls").count(), 24);
}
