//! Servers of somebody else's that do not work, and what is said of them.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::pydantic::upstream;
use crate::support::server::{Server, open_folder};
use crate::support::{Caller, problem};

/// A server in few lines; its first argument is what is wrong with it.
const FAKE: &str = r#"
import json, os, sys
way = sys.argv[1]
if way == "ends":
    sys.exit("no such package: mcp-run-python")
if way == "silent":
    sys.stdin.read()
while way == "talks":
    try:
        os.write(1, b"x" * 1000 + b"\n")
    except OSError:
        os._exit(1)
if way == "long":
    print("{" + "x" * (70 << 20))
    sys.stdin.read()
hello = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "fake", "version": "0"}}
names = [] if way == "toolless" else ["run_python_code"]
answers = {
    "initialize": hello,
    "tools/list": {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]},
    "tools/call": {"content": [{"type": "text", "text": "no such value"}]},
}
for line in sys.stdin:
    told = json.loads(line)
    if way == "garbage":
        print("<html>not found</html>", flush=True)
    elif "id" in told:
        print(json.dumps({"jsonrpc": "2.0", "id": told["id"], "result": answers[told["method"]]}), flush=True)
"#;

/// Says what installers say, and then is the genuine server.
const CHATTY: &str = r#"
import os, sys
print("Downloading mcp-run-python (1.2MiB)")
for number in range(300):
    print(f"Installed package {number} of 300 " + "." * number)
print("[notice] A new release is available", "\x1b[1mready\x1b[0m", sep="\n", flush=True)
os.execv(sys.argv[1], sys.argv[1:])
"#;

/// A service with an entry for each name and lines.
fn serve(folder: &Path, entries: &[(&str, String)], create_seconds: &str) -> Server {
    let lines = entries
        .iter()
        .map(|(name, lines)| format!("[providers.{name}]\nkind = \"pydantic\"\n{lines}\n"));
    let path = folder.join("settings.toml");
    std::fs::write(&path, lines.collect::<String>()).unwrap();
    Server::start(&[("CONFIG", path.to_str().unwrap()), ("CREATE_SECONDS", create_seconds)])
}

/// What the service says of an entry that does not work.
async fn reason(caller: &Caller, name: &str) -> String {
    let (_, providers) = caller.get("/v1/providers").await;
    let all = providers["data"].as_array().unwrap();
    let provider = all.iter().find(|provider| provider["name"] == name).unwrap();
    assert_eq!(provider["ready"], false, "{provider}");
    provider["reason"].as_str().unwrap().to_owned()
}

async fn refused(caller: &Caller, name: &str) -> (u16, String) {
    let answer = caller.post("/v1/sessions", json!({"provider": name})).await;
    assert_eq!(answer.1["retry_safe"], true, "{}", answer.1);
    problem(&answer)
}

/// What is said of commands, each of which is refused with this problem, and named by its fault.
async fn are_told(
    cases: &[(&'static str, &'static str)],
    expected: (u16, &str),
    create_seconds: &str,
) {
    let folder = open_folder();
    let fake = folder.path().join("fake.py");
    std::fs::write(&fake, FAKE).unwrap();
    let command = |name: &str| match name {
        "absent" => json!(["/nonexistent/server"]),
        _ => json!(["/usr/bin/python3", fake, name]),
    };
    let entry =
        |(name, _): &(&'static str, &'static str)| (*name, format!("command = {}", command(name)));
    let entries: Vec<(&str, String)> = cases.iter().map(entry).collect();
    let server = serve(folder.path(), &entries, create_seconds);
    let caller = server.caller();
    for (name, words) in cases {
        assert_eq!(refused(&caller, name).await, (expected.0, expected.1.into()), "{name}");
        let reason = reason(&caller, name).await;
        assert!(reason.contains(words), "{name}: {reason}");
    }
    assert_eq!(caller.session().await.text("6 * 7").await, "42", "others work");
}

#[tokio::test]
async fn a_command_that_is_no_working_server_is_told_by_what_is_wrong_with_it() {
    let cases = [
        ("ends", "no such package: mcp-run-python"),
        ("long", "a message is longer than 64 MiB"),
        ("toolless", "has no tool run_python_code"),
        ("valueless", "answer is not that of our program"),
        ("absent", "cannot start /nonexistent/server: No such file or directory"),
    ];
    are_told(&cases, (503, "provider_not_ready"), "60").await;
}

#[tokio::test]
async fn a_command_that_never_answers_is_waited_for_as_long_as_the_settings_say() {
    are_told(&[("silent", "took too long")], (504, "provider_too_slow"), "1").await;
}

/// mcp-run-python 30: an installer's lines on stdout, in place of what the server should say.
#[tokio::test]
async fn what_a_server_says_in_place_of_the_protocol_is_reported() {
    let folder = open_folder();
    let fake = folder.path().join("fake.py");
    std::fs::write(&fake, FAKE).unwrap();
    let cases = [("garbage", "<html>not found</html>"), ("talks", "xxxxxxxx")];
    let entries = cases
        .map(|(name, _)| (name, format!("command = {}", json!(["/usr/bin/python3", fake, name]))));
    let server = serve(folder.path(), &entries, "3");
    let caller = server.caller();
    for (name, words) in cases {
        let (status, _) = refused(&caller, name).await;
        assert!(matches!(status, 503 | 504), "it does not work, or takes too long: {status}");
        let reason = reason(&caller, name).await;
        assert!(reason.contains(words), "{name}: {reason}");
    }
}

#[tokio::test]
async fn a_default_provider_that_does_not_work_keeps_the_service_from_starting() {
    let output = crate::support::server::command()
        .arg("serve")
        .env("INTERPRETERD_DATA_DIR", open_folder().path().join("data"))
        .env("INTERPRETERD_LISTEN", "127.0.0.1:0")
        .env("INTERPRETERD_DEFAULT_PROVIDER", "pydantic")
        .env("INTERPRETERD_PYDANTIC_COMMAND", "/bin/false mcp")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(said.contains("the default provider does not work"), "{said}");
    assert!(said.contains("the server is no MCP server, or does not work"), "{said}");
}

/// mcp-run-python 30: `uvx` says what it installs before the server answers.
#[tokio::test]
async fn lines_of_an_installer_before_the_handshake_are_passed_over() {
    let folder = open_folder();
    let chatty = folder.path().join("chatty.py");
    std::fs::write(&chatty, CHATTY).unwrap();
    let wrapped = json!(["/usr/bin/python3", chatty]).to_string();
    let lines = upstream().0.lines().replacen(
        "command = [",
        &format!("command = {}, ", wrapped.trim_end_matches(']')),
        1,
    );
    let server = crate::support::pydantic::serve_entry(&lines, &[]);
    let caller = server.caller();
    let session = caller.session().await;
    assert_eq!(session.exec("print('clean')\nx = 7").await["stdout"], "clean\n");
    assert_eq!(session.text("x").await, "7");
}

/// Answers every request in the same way, for as long as the tests run.
fn answers(head: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut vec![0; 65536]);
            let _ = write!(
                stream,
                "HTTP/1.1 {head}\r\ncontent-length: 4\r\nconnection: close\r\n\r\nnope"
            );
        }
    });
    format!("http://127.0.0.1:{port}/mcp")
}

#[tokio::test]
async fn a_url_that_is_no_working_server_is_told_by_what_is_wrong_with_it() {
    let closed = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}/mcp", listener.local_addr().unwrap())
    };
    let cases = [
        ("closed", closed, "error sending request for url"),
        ("forbidden", answers("401 Unauthorized"), "401"),
        ("elsewhere", answers("404 Not Found"), "404"),
        ("broken", answers("500 Internal Server Error"), "500"),
        ("page", answers("200 OK\r\ncontent-type: text/html"), "text/html"),
    ];
    let folder = open_folder();
    let entries = cases.each_ref().map(|(name, url, _)| (*name, format!("url = \"{url}\"")));
    let server = serve(folder.path(), &entries, "20");
    let caller = server.caller();
    let mut told = Vec::new();
    for (name, _, _) in &cases {
        assert_eq!(refused(&caller, name).await, (503, "provider_not_ready".into()), "{name}");
        told.push(reason(&caller, name).await);
    }
    let silent: Vec<Value> = cases
        .iter()
        .zip(&told)
        .filter(|((_, _, word), reason)| !reason.contains(word))
        .map(|((name, _, word), reason)| json!([name, word, reason]))
        .collect();
    assert_eq!(silent, Vec::<Value>::new(), "the cause is not told");
}
