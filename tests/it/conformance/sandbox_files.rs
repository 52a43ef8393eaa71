//! What files of sandboxes of every provider do, seen through the service.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sha2::Digest;

use super::{can, of};
use crate::support::{Caller, double, must_come, problem, send, server};

every_provider! {
    files_are_written_and_removed_under_conditions,
    files_come_back_byte_for_byte_under_any_name,
    files_that_a_caller_put_in_meanwhile_are_no_cells,
    files_that_a_cell_made_or_changed_are_told,
    one_shots_take_files_in_and_give_files_out,
    parts_of_files_are_read,
    what_is_no_file_is_refused,
}

async fn files_come_back_byte_for_byte_under_any_name(caller: &Caller) {
    let session = caller.session().await;
    let all: Vec<u8> = (0..=255).collect();
    let large: Vec<u8> = (0..5_000_000_u32).map(|number| (number / 7) as u8).collect();
    let names = [
        ("a b.csv", all.clone()),
        ("génération – ü.csv", b"x".to_vec()),
        ("数据.csv", all),
        ("e\u{301}.txt", Vec::new()),
        ("-rf", b"\n".to_vec()),
        ("x\"y 100%+&.csv", b"y".to_vec()),
        ("sub/folder/x.png", large),
    ];
    for (name, content) in &names {
        let (status, entry) = session.put(name, content.clone()).await;
        assert_eq!(status, StatusCode::OK, "{name}: {entry}");
        assert_eq!(of(&entry, ["path", "size_bytes"]), [&json!(name), &json!(content.len())]);
    }
    let code = "import hashlib, os\nsorted((os.path.relpath(os.path.join(d, f)), hashlib.sha256(open(os.path.join(d, f), 'rb').read()).hexdigest()) for d, _, fs in os.walk('.') for f in fs)";
    let inside = session.text(code).await;
    for (name, content) in &names {
        let hash: String =
            sha2::Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(inside.contains(&hash), "{name} is another one inside");
        let response = session.download(name).await;
        assert_eq!(response.status(), StatusCode::OK, "{name}");
        assert_eq!(&response.bytes().await.unwrap()[..], &content[..], "{name}");
    }
    let (_, list) = caller.get(&session.path("/files")).await;
    let mut listed: Vec<&str> = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|file| file["path"].as_str().unwrap())
        .collect();
    let mut expected: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
    listed.sort_unstable();
    expected.sort_unstable();
    assert_eq!(listed, expected);
}

async fn parts_of_files_are_read(caller: &Caller) {
    let session = caller.session().await;
    session.put("x.txt", "0123456789").await;
    for (range, status, content) in [
        ("bytes=2-4", 206, "234"),
        ("bytes=8-", 206, "89"),
        ("bytes=-3", 206, "789"),
        ("bytes=10-", 416, ""),
    ] {
        let request = caller.request(Method::GET, &session.path("/files/x.txt"));
        let response = send(request.header("range", range)).await;
        assert_eq!(response.status().as_u16(), status, "{range}");
        if status == 206 {
            assert_eq!(response.text().await.unwrap(), content, "{range}");
        }
    }
}

async fn files_are_written_and_removed_under_conditions(caller: &Caller) {
    let session = caller.session().await;
    let (_, first) = session.put("x.txt", "1").await;
    let path = session.path("/files/x.txt");
    let put = |name: &'static str, value: String| {
        let request = caller.request(Method::PUT, &path).header(name, value).body("2");
        async move { send(request).await.status().as_u16() }
    };
    let tag = |entry: &Value| format!("\"{}\"", entry["etag"].as_str().unwrap());
    assert_eq!(put("if-none-match", "*".into()).await, 412);
    assert_eq!(put("if-match", "\"other\"".into()).await, 412);
    assert_eq!(session.download("x.txt").await.text().await.unwrap(), "1");
    assert_eq!(put("if-match", tag(&first)).await, 200);
    let (_, second) = session.put("x.txt", "3").await;
    assert_ne!(first["etag"], second["etag"]);
    let delete = |value: String| {
        let request = caller.request(Method::DELETE, &path).header("if-match", value);
        async move { send(request).await.status().as_u16() }
    };
    assert_eq!(delete(tag(&first)).await, 412);
    assert_eq!(delete(tag(&second)).await, 204);
    assert_eq!(session.download("x.txt").await.status(), StatusCode::NOT_FOUND);
    assert_eq!(session.text("import os\nos.listdir()").await, "[]");
}

async fn files_that_a_cell_made_or_changed_are_told(caller: &Caller) {
    let session = caller.session().await;
    session.put("in.csv", "a\n1\n").await;
    session.put("same.csv", "a\n").await;
    let code = "import os\nopen('in.csv', 'a').write('2\\n')\nos.makedirs('sub/er')\nopen('sub/er/new.json', 'w').write('{}')\nraise SystemError('after')";
    let execution = session.exec(code).await;
    let files = json!([
        {"path": "in.csv", "size_bytes": 6, "mime": "text/csv", "change": "modified"},
        {"path": "sub/er/new.json", "size_bytes": 2, "mime": "application/json", "change": "created"}
    ]);
    assert_eq!(execution["files"], files, "{execution}");
    assert_eq!(session.exec("1").await["files"], json!([]));
}

async fn files_that_a_caller_put_in_meanwhile_are_no_cells(caller: &Caller) {
    if !can(caller, "streaming").await {
        return files_that_are_put_in_wait_for_the_cell(caller).await;
    }
    let session = caller.session().await;
    let code = "open('mine', 'w').close()\nimport os, time\nwhile not os.path.exists('go'): time.sleep(0.01)";
    let putting = async {
        must_come(async {
            while session.download("mine").await.status() != StatusCode::OK {
                tokio::task::yield_now().await;
            }
        })
        .await;
        session.put("theirs", "x").await;
        session.put("go", "").await;
    };
    let (execution, ()) = tokio::join!(session.exec(code), putting);
    let files = execution["files"].as_array().unwrap();
    let paths: Vec<&str> = files.iter().map(|file| file["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["mine"], "{execution}");
    assert_eq!(session.exec("1").await["files"], json!([]));
}

async fn files_that_are_put_in_wait_for_the_cell(caller: &Caller) {
    let session = caller.session().await;
    let code = "import time\ntime.sleep(0.2)\nopen('mine', 'w').close()";
    let (execution, (status, _)) = tokio::join!(session.exec(code), session.put("theirs", "x"));
    assert_eq!((execution["files"][0]["path"].clone(), status), (json!("mine"), StatusCode::OK));
    assert_eq!(session.exec("1").await["files"], json!([]));
}

async fn what_is_no_file_is_refused(caller: &Caller) {
    let session = caller.session().await;
    // in WebAssembly there are no links: then it is a folder
    let link = if can(caller, "shell").await {
        "os.symlink('/etc/hostname', 'link')"
    } else {
        "try: os.symlink('/etc/hostname', 'link')\nexcept OSError: os.mkdir('link')"
    };
    let code = format!("import os\nos.makedirs('folder')\nopen('file', 'w').close()\n{link}");
    assert_eq!(session.exec(&code).await["status"], "success");
    let status = |response: reqwest::Response| response.status().as_u16();
    assert_eq!(status(session.download("absent").await), 404);
    assert_eq!(status(session.download("folder").await), 409);
    assert_eq!(status(session.download("link").await), 409);
    for name in ["folder", "file/below"] {
        assert_eq!(problem(&session.put(name, "x").await), (409, "not_a_file".into()), "{name}");
    }
    let path = session.path("/files/folder");
    assert_eq!(caller.delete(&path).await.as_u16(), 409);
    assert_eq!(caller.delete(&session.path("/files/absent")).await.as_u16(), 404);
}

async fn one_shots_take_files_in_and_give_files_out(caller: &Caller) {
    let body = json!({
        "code": "text = open('in.txt').read()\nopen('out.txt', 'w').write(text[::-1])\nprint(len(text))",
        "files": [{"name": "in.txt", "content_base64": "YWJj"}], "include": ["content"],
    });
    let (status, execution) = caller.post("/v1/execute", body).await;
    assert_eq!(status, StatusCode::OK, "{execution}");
    let file = &execution["output_files"][0];
    assert_eq!(of(file, ["path", "content_base64"]), [&json!("out.txt"), &json!("Y2Jh")]);
    let response = send(caller.request(Method::GET, file["url"].as_str().unwrap())).await;
    assert_eq!(response.text().await.unwrap(), "cba");
    let path = format!("/v1/sessions/{}", execution["session_id"].as_str().unwrap());
    let (_, told) = caller.get(&path).await;
    assert_eq!(of(&told, ["state", "one_shot"]), [&json!("ended"), &json!(true)]);
}
