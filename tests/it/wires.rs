//! One conversation over two wires: the same Run, and the history as each service wants it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::support::model::{End, KEY, Reply, Said, StubModel, call, run, said_run, text};
use crate::support::server::{Server, caller};
use crate::support::{send, sse};

const DRAW: &str = "import matplotlib.pyplot as plt\nplt.figure(figsize=(20, 5), dpi=100)\nplt.plot([1, 2])\nplt.savefig('chart.png')\nplt.show()";

/// Everything that a conversation can hold.
fn conversation() -> Vec<Reply> {
    let thinking = Said {
        thinking: Some("So, é 😀.".to_owned()),
        text: "Let me look.".to_owned(),
        ..said_run(&["open('a.csv').read()", "1 / 0"])
    };
    vec![
        thinking.into(),
        text(""),
        call("browser_search", "{}").into(),
        run(&["import sys\nprint('out')\nprint('err', file=sys.stderr)\n6 * 7"]),
        run(&[DRAW]),
        text("It is 42: [the chart](sandbox:/files/chart.png)."),
    ]
}

/// Without what differs from run to run: ids, times, the model's name and its ids of calls.
fn bare(run: &Value) -> Value {
    const OWN: [&str; 11] = [
        "id",
        "run_id",
        "session_id",
        "created_at",
        "started_at",
        "finished_at",
        "duration_ms",
        "model",
        "message",
        "url",
        "sha256",
    ];
    match run {
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(name, _)| !OWN.contains(&name.as_str()));
            Value::Object(kept.map(|(name, value)| (name.clone(), bare(value))).collect())
        }
        Value::Array(list) => list.iter().map(bare).collect(),
        other => other.clone(),
    }
}

async fn play(model: &str, script: &str, streamed: bool) -> Value {
    let message = StubModel::shared().script(script, &conversation());
    let body = json!({"message": message, "model": model, "files": [{"name": "a.csv", "content_base64": STANDARD.encode("n,m\n1,2\n")}]});
    let caller = caller();
    if streamed {
        let request = caller.request(reqwest::Method::POST, "/v1/interpret").json(&body);
        let events = sse::all(send(request.header("accept", "text/event-stream")).await).await;
        return events.last().unwrap().data.clone();
    }
    let (status, run) = caller.post("/v1/interpret", body).await;
    assert_eq!(status, 200, "{run}");
    run
}

#[tokio::test]
async fn the_same_conversation_gives_the_same_run_over_both_wires_whole_and_streamed() {
    let first = play("seeing", "same-seeing", false).await;
    assert_eq!((&first["status"], &first["turns"]), (&json!("success"), &json!(6)), "{first}");
    assert_eq!(first["code_exec_results"].as_array().unwrap().len(), 4);
    assert_eq!(first["output_files"][0]["path"], "chart.png");
    for (model, streamed) in [("seeing", true), ("claude", false), ("claude", true)] {
        let other = play(model, &format!("same-{model}-{streamed}"), streamed).await;
        assert_eq!(bare(&other), bare(&first), "{model}, streamed: {streamed}");
    }
}

#[tokio::test]
async fn each_service_is_told_results_and_pictures_in_its_own_way() {
    play("claude", "told-claude", false).await;
    play("seeing", "told-seeing", false).await;
    let last = |script: &str| StubModel::shared().requests(script).pop().unwrap();
    let claude = last("told-claude");
    let results = &claude["messages"][2]["content"];
    assert_eq!(results[0]["content"][0]["text"], "status: ok\nresult:\n'n,m\\n1,2\\n'\n");
    assert_eq!((&results[0]["is_error"], &results[1]["is_error"]), (&json!(false), &json!(true)));
    let drawn = &claude["messages"][8]["content"][0]["content"];
    assert_eq!(drawn[1]["source"]["media_type"], "image/png");
    let told = drawn[0]["text"].as_str().unwrap();
    assert!(told.starts_with("status: ok\nimage 1 (image/png, "), "{told}");
    let thinking = &claude["messages"][1]["content"];
    assert_eq!(
        thinking[0],
        json!({"type": "thinking", "thinking": "So, é 😀.", "signature": crate::support::model::SIGNATURE})
    );
    assert_eq!(thinking[1], json!({"type": "redacted_thinking", "data": "RED+/=="}));

    let seeing = last("told-seeing");
    let messages = seeing["messages"].as_array().unwrap();
    let shown = messages.last().unwrap();
    assert_eq!(shown["role"], "user");
    let url = shown["content"][1]["image_url"]["url"].as_str().unwrap();
    let png = STANDARD.decode(url.strip_prefix("data:image/png;base64,").unwrap()).unwrap();
    let width = u32::from_be_bytes(png[16..20].try_into().unwrap());
    assert_eq!(width, 1568, "2000 pixels are more than models look at");
    assert_eq!(
        messages[2]["reasoning_content"], "So, é 😀.",
        "what it thought is told to it again"
    );
}

#[tokio::test]
async fn a_cell_that_drew_and_then_failed_is_told_with_its_picture() {
    for model in ["claude", "seeing"] {
        let script = format!("drew-and-failed-{model}");
        let code = format!("{DRAW}\n1 / 0");
        let message = StubModel::shared().script(&script, &[run(&[&code]), text("I see.")]);
        let (_, run) =
            caller().post("/v1/interpret", json!({"message": message, "model": model})).await;
        assert_eq!((&run["status"], &run["text"]), (&json!("success"), &json!("I see.")), "{run}");
        let told = StubModel::shared().requests(&script)[1]["messages"].to_string();
        assert!(told.contains("ZeroDivisionError") && told.contains("image/png"), "{told}");
    }
}

#[tokio::test]
async fn many_failing_or_equal_calls_in_one_message_are_not_all_run() {
    let failing: Vec<String> = (0..16).map(|number| format!("1 / 0 # {number}")).collect();
    let failing: Vec<&str> = failing.iter().map(String::as_str).collect();
    for (name, codes, ran) in [("failing", failing, 5), ("equal", vec!["1"; 16], 3)] {
        let message =
            StubModel::shared().script(&format!("many-{name}"), &[run(&codes), text("Enough.")]);
        let (_, run) = caller().post("/v1/interpret", json!({"message": message})).await;
        assert_eq!(
            (&run["text"], run["code_exec_results"].as_array().unwrap().len()),
            (&json!("Enough."), ran),
            "{name}"
        );
    }
}

#[tokio::test]
async fn an_answer_that_a_limit_cut_off_says_so() {
    for model in ["stub", "claude"] {
        let cut = |text: &str| Said { text: text.to_owned(), end: End::Cut, ..Said::default() };
        let (half, none) = (format!("half-{model}"), format!("none-{model}"));
        let message = StubModel::shared().script(&half, &[cut("It is for").into()]);
        let (_, run) =
            caller().post("/v1/interpret", json!({"message": message, "model": model})).await;
        assert_eq!(
            (&run["status"], &run["text"], &run["truncated"]),
            (&json!("success"), &json!("It is for"), &json!(true))
        );
        let message = StubModel::shared().script(&none, &[cut("").into()]);
        let (_, run) =
            caller().post("/v1/interpret", json!({"message": message, "model": model})).await;
        assert_eq!(
            (&run["failure"]["kind"], &run["truncated"]),
            (&json!("model_empty"), &json!(false))
        );
        assert!(run["error"].as_str().unwrap().contains("max_tokens"), "{run}");
        let message = StubModel::shared().script(&format!("whole-{model}"), &[text("It is 42.")]);
        let (_, run) =
            caller().post("/v1/interpret", json!({"message": message, "model": model})).await;
        assert_eq!(run["truncated"], false);
    }
}

#[tokio::test]
async fn code_that_is_too_long_is_told_to_the_model() {
    let long = format!("x = '{}'", "y".repeat(1 << 20));
    let message = StubModel::shared()
        .script("long-code", &[run(&[&long]), run(&["1"]), text("Short, then.")]);
    let (_, run) = caller().post("/v1/interpret", json!({"message": message})).await;
    assert_eq!(
        (&run["text"], run["code_exec_results"].as_array().unwrap().len()),
        (&json!("Short, then."), 1),
        "{run}"
    );
    let told = StubModel::shared().requests("long-code")[1]["messages"][3].to_string();
    assert!(told.contains("longer than 1048576 bytes"), "{told}");
}

#[tokio::test]
async fn a_run_that_puts_out_very_much_is_kept_in_part() {
    let print = |number: usize| format!("print('x' * 900_000) # {number}");
    let turns: Vec<Reply> = (0..6)
        .map(|turn| {
            let codes: Vec<String> = (0..6).map(|number| print(turn * 10 + number)).collect();
            run(&codes.iter().map(String::as_str).collect::<Vec<_>>())
        })
        .chain([text("Much.")])
        .collect();
    let message = StubModel::shared().script("very-much", &turns);
    let (_, run) = caller().post("/v1/interpret", json!({"message": message})).await;
    let results = run["code_exec_results"].as_array().unwrap();
    assert_eq!((results.len(), &run["text"]), (36, &json!("Much.")));
    assert_eq!(results[0]["execution"]["stdout_bytes"], 900_001);
    assert_eq!(results[0]["execution"]["truncated"], false);
    let last = &results[35]["execution"];
    assert_eq!((&last["truncated"], &last["stdout_bytes"]), (&json!(true), &json!(900_001)));
    assert!(last["stdout"].as_str().unwrap().len() < 2000);
    assert!(run.to_string().len() < 80 << 20);
}

#[tokio::test]
async fn a_model_without_eyes_is_told_that_there_are_pictures() {
    play("stub", "told-blind", false).await;
    let last = StubModel::shared().requests("told-blind").pop().unwrap();
    let told = last["messages"].to_string();
    assert!(told.contains("not shown, you read no images") && !told.contains("base64"), "{told}");
}

#[tokio::test]
async fn the_question_tells_the_heads_of_tables_as_quoted_data() {
    play("stub", "told-head", false).await;
    let first = &StubModel::shared().requests("told-head")[0];
    let question = first["messages"][1]["content"].as_str().unwrap();
    let head = "- \"a.csv\" (8 bytes, text/csv), its first lines:\n  | n,m\n  | 1,2\n";
    assert!(question.ends_with(head), "{question}");
    let system = first["messages"][0]["content"].as_str().unwrap();
    for fact in ["30 seconds", "600 at most", "512 MiB for memory", "256 MiB for files"] {
        assert!(system.contains(fact), "{system}");
    }
}

#[tokio::test]
async fn the_question_tells_the_sheets_of_workbooks_and_leaves_no_trace_in_the_session() {
    let caller = caller();
    let session = caller.session().await;
    let make = "import pandas as pd\nwith pd.ExcelWriter('a b.xlsx') as book:\n    pd.DataFrame({'n': [1, 2], 'm, x': ['é', None]}).to_excel(book, sheet_name='one', index=False)\n    pd.DataFrame({'k': range(9)}).to_excel(book, sheet_name='two', index=False)";
    assert_eq!(session.exec(make).await["status"], "success");
    let book = session.download("a b.xlsx").await.bytes().await.unwrap();
    let look = "sorted(name for name in globals() if 'book' in name or 'openpyxl' in name)";
    let message = StubModel::shared().script("workbook", &[run(&[look]), text("ok")]);
    // a module of the session that has the same name is not taken, and what is no workbook harms nobody
    let files = json!([
        {"name": "a b.xlsx", "content_base64": STANDARD.encode(&book)},
        {"name": "openpyxl.py", "content_base64": STANDARD.encode("print('[\"a b.xlsx\", [\"no\"]]')")},
        {"name": "a broken one.xlsx", "content_base64": STANDARD.encode("PK no")},
    ]);
    let (_, run) = caller.post("/v1/interpret", json!({"message": message, "files": files})).await;
    assert_eq!(run["status"], "success", "{run}");
    let execution = &run["code_exec_results"][0]["execution"];
    assert_eq!((&execution["text"], &execution["execution_count"]), (&json!("[]"), &json!(1)));
    let first = &StubModel::shared().requests("workbook")[0];
    let question = first["messages"][1]["content"].as_str().unwrap();
    let head = "its first lines:\n  | sheet 'one': 3 rows, 2 columns\n  | n,\"m, x\"\n  | 1,é\n  | 2,\n  | sheet 'two': 10 rows, 1 columns\n  | k\n  | 0\n";
    assert!(question.contains(head), "{question}");
}

#[tokio::test]
async fn a_model_is_set_up_as_its_entry_says() {
    let model = StubModel::start();
    let folder = crate::support::server::open_folder();
    let file = folder.path().join("models.toml");
    let entry = format!(
        "[models.mine]\nmodel = \"gpt-5-x\"\nbase_url = \"{}?api-version=1\"\napi_key_env = \"OWN_KEY\"\nmax_tokens = 7\n\
         stream = false\necho_reasoning = false\nbody = {{ temperature = 0.5, user = \"u\" }}\nheaders = {{ x-own = \"hush-hush-123\" }}\n",
        model.base_url
    );
    std::fs::write(&file, entry).unwrap();
    let server = Server::start_with(
        &folder.path().join("data"),
        &[("CONFIG", file.to_str().unwrap())],
        &[("OWN_KEY", KEY)],
    );
    let thinking = Said { thinking: Some("hm".to_owned()), ..said_run(&["1"]) };
    let message = model.script("entry", &[thinking.into(), text("done")]);
    let request = server.caller().request(reqwest::Method::POST, "/v1/interpret");
    let request = request.json(&json!({"message": message})).header("accept", "text/event-stream");
    let events = sse::all(send(request).await).await;
    let run = &events.last().unwrap().data;
    assert_eq!((&run["status"], &run["model"]), (&json!("success"), &json!("mine")), "{run}");
    assert!(events.iter().all(|event| event.name != "model.delta"), "it is not asked for pieces");
    let last = &model.requests("entry")[1];
    assert_eq!((&last["model"], &last["max_completion_tokens"]), (&json!("gpt-5-x"), &json!(7)));
    assert_eq!((&last["temperature"], &last["user"]), (&json!(0.5), &json!("u")));
    assert!(
        last.get("stream").is_none() && !last.to_string().contains("reasoning_content"),
        "{last}"
    );
    let (_, models) = server.caller().get("/v1/models").await;
    assert_eq!(
        models["data"],
        json!([{"name": "mine", "protocol": "openai", "default": true, "vision": false}])
    );
}
