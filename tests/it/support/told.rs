//! What callers are told of cells, short enough to compare whole.

use serde_json::{Map, Value, json};

use super::server::caller;

/// What a caller sees of an execution, without what is empty.
pub fn seen(execution: &Value) -> Value {
    let mut seen = Map::new();
    for stream in ["stdout", "stderr", "late_output"] {
        if execution[stream].as_str().is_some_and(|text| !text.is_empty()) {
            seen.insert(stream.into(), execution[stream].clone());
        }
    }
    let outputs = execution["outputs"].as_array().unwrap();
    if let Some(main) = outputs.iter().find(|output| output["main"] == true) {
        seen.insert("value".into(), main["data"]["text/plain"].clone());
        if !kinds(main).is_empty() {
            seen.insert("as".into(), kinds(main).into());
        }
    }
    let shown: Vec<Value> =
        outputs.iter().filter(|output| output["main"] == false).map(shown).collect();
    if !shown.is_empty() {
        seen.insert("shown".into(), shown.into());
    }
    let files: Vec<Value> =
        execution["files"].as_array().unwrap().iter().map(|file| file["path"].clone()).collect();
    if !files.is_empty() {
        seen.insert("files".into(), files.into());
    }
    if execution["status"] != "success" {
        let detail = &execution["error_detail"];
        let error = if detail.is_null() {
            execution["error"].clone()
        } else {
            json!([detail["name"], first_line(&detail["message"])])
        };
        seen.insert("error".into(), error);
        seen.insert("exit_code".into(), execution["exit_code"].clone());
    }
    if execution["state_lost"] == true {
        seen.insert("state_lost".into(), json!(true));
    }
    seen.into()
}

fn first_line(text: &Value) -> Value {
    text.as_str().unwrap().lines().next().unwrap_or_default().into()
}

/// The MIME types of an output besides plain text.
fn kinds(output: &Value) -> String {
    let data = output["data"].as_object().unwrap();
    let kinds = data.keys().map(String::as_str).filter(|kind| *kind != "text/plain");
    kinds.collect::<Vec<_>>().join(" ")
}

fn shown(output: &Value) -> Value {
    let kinds = kinds(output);
    if kinds.is_empty() { output["data"]["text/plain"].clone() } else { kinds.into() }
}

/// What is seen of a cell in a fresh session.
pub async fn tells(code: &str) -> Value {
    let caller = caller();
    seen(&caller.session().await.exec(code).await)
}

/// The same for a request with more than code.
pub async fn tells_with(body: Value) -> Value {
    let caller = caller();
    seen(&caller.session().await.exec_with(body).await)
}

/// The same for cells that follow each other in one session.
pub async fn each<const COUNT: usize>(cells: [&str; COUNT]) -> Value {
    let caller = caller();
    let session = caller.session().await;
    let mut told = Vec::new();
    for code in cells {
        told.push(seen(&session.exec(code).await));
    }
    told.into()
}

/// What is seen of a shell command in a fresh session.
pub async fn shell(command: &str) -> Value {
    let caller = caller();
    let path = caller.session().await.path("/shell");
    let (status, execution) = caller.post(&path, json!({"command": command})).await;
    assert_eq!(status, 200, "{execution}");
    seen(&execution)
}

/// What is seen of a cell that must end within five seconds: what cannot work fails at once.
pub async fn soon(code: &str) -> Value {
    let caller = caller();
    let execution = caller.session().await.exec(code).await;
    assert!(execution["duration_ms"].as_f64().unwrap() < 5000.0, "{execution}");
    seen(&execution)
}

/// The last line that a cell leaves on stderr.
pub async fn complaint(code: &str) -> String {
    let told = tells(code).await;
    told["stderr"].as_str().unwrap_or_default().lines().last().unwrap_or_default().to_owned()
}

/// The last line of the traceback of a cell that fails within five seconds.
pub async fn last_words(code: &str) -> String {
    let caller = caller();
    let execution = caller.session().await.exec(code).await;
    assert_eq!(execution["status"], "error", "{execution}");
    assert!(execution["duration_ms"].as_f64().unwrap() < 5000.0, "{execution}");
    execution["error"].as_str().unwrap().lines().last().unwrap().to_owned()
}
