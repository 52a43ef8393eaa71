//! Our MCP server without the service: its lines are written and read by the tests.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::pydantic::{deno, installed};

const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// A server of ours, ended when dropped.
pub struct Direct {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    /// Answers and notifications that came before what was waited for.
    told: VecDeque<Value>,
    last_id: u64,
}

/// The files of our server: of the repository, or of the copy that another user's tests run in.
fn source() -> PathBuf {
    let here = std::env::current_dir().unwrap().join("src/sandbox/pydantic/server");
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/sandbox/pydantic/server");
    if here.is_dir() { here } else { repository }
}

/// The command line by which the service starts it, with files in memory unless options say more.
fn command(readable: &[&Path], writable: &[&Path]) -> Command {
    let guest = installed();
    let (pyodide, packages, snapshot) =
        (guest.join("pyodide"), guest.join("packages"), guest.join("snapshot.bin"));
    let listed = |paths: &[&Path]| {
        let paths: Vec<_> = paths.iter().map(|path| path.to_string_lossy()).collect();
        paths.join(",")
    };
    let source = source();
    let all = [&[source.as_path(), &pyodide, &packages, &snapshot], readable].concat();
    #[expect(clippy::disallowed_methods, reason = "the server is a program")]
    let mut command = Command::new(deno());
    command
        .args(["run", "--no-prompt", "--no-remote", "--no-npm", "--no-config", "--no-lock"])
        .args(["--cached-only", "--v8-flags=--wasm-max-mem-pages=8192,--disallow-code-generation-from-strings,--expose-gc"])
        .arg(format!("--allow-read={}", listed(&all)));
    if !writable.is_empty() {
        command.arg(format!("--allow-write={}", listed(writable)));
    }
    command.arg(source.join("server.mjs"));
    command.env_clear().envs([("DENO_DIR", "/nonexistent"), ("NO_COLOR", "1")]);
    command
}

/// Makes a snapshot, as the installation does.
pub fn make_snapshot(to: &Path) {
    let status = command(&[], &[to])
        .args(["make-snapshot", "--pyodide"])
        .arg(installed().join("pyodide"))
        .arg("--out")
        .arg(to)
        .stderr(Stdio::null())
        .status();
    assert!(status.unwrap().success());
}

impl Direct {
    /// One with the installed snapshot.
    pub fn start(options: &[&str]) -> Self {
        Self::start_with(&installed().join("snapshot.bin"), options)
    }

    pub fn start_with(snapshot: &Path, options: &[&str]) -> Self {
        let guest = installed();
        let mut child = command(&[snapshot], &[])
            .arg("--pyodide")
            .arg(guest.join("pyodide"))
            .arg("--packages")
            .arg(guest.join("packages"))
            .arg("--snapshot")
            .arg(snapshot)
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (sender, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let stdin = child.stdin.take();
        Self { child, stdin, lines, told: VecDeque::new(), last_id: 0 }
    }

    /// Sends a line, whatever it is.
    pub fn send(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("its stdin is open");
        stdin.write_all(format!("{line}\n").as_bytes()).unwrap();
        stdin.flush().unwrap();
    }

    /// Sends a request and gives its id.
    pub fn begin(&mut self, method: &str, params: &Value) -> u64 {
        self.last_id += 1;
        let id = self.last_id;
        let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.send(&request.to_string());
        id
    }

    pub fn begin_call(&mut self, tool: &str, arguments: &Value) -> u64 {
        self.begin("tools/call", &json!({"name": tool, "arguments": arguments}))
    }

    /// The next message that is like this; others are kept.
    pub fn message(&mut self, is_it: impl Fn(&Value) -> bool) -> Value {
        if let Some(place) = self.told.iter().position(&is_it) {
            return self.told.remove(place).unwrap();
        }
        loop {
            let line = self.lines.recv_timeout(WAIT_LIMIT).expect("it answers in time");
            let message: Value = serde_json::from_str(&line).expect("nothing but JSON comes");
            if is_it(&message) {
                return message;
            }
            self.told.push_back(message);
        }
    }

    /// The answer to a request, without what every answer has.
    pub fn answer(&mut self, id: u64) -> Value {
        let mut answer = self.message(|message| message["id"] == id);
        let answer = answer.as_object_mut().unwrap();
        assert_eq!(answer.remove("jsonrpc"), Some(json!("2.0")));
        answer.remove("result").or_else(|| answer.remove("error")).unwrap()
    }

    pub fn ask(&mut self, method: &str, params: &Value) -> Value {
        let id = self.begin(method, params);
        self.answer(id)
    }

    pub fn call(&mut self, tool: &str, arguments: &Value) -> Value {
        let id = self.begin_call(tool, arguments);
        self.answer(id)
    }

    /// The outcome of a cell.
    pub fn run(&mut self, code: &str) -> Value {
        self.call("run_python_code", &json!({"python_code": code}))["structuredContent"].take()
    }

    /// The text of a cell's value.
    pub fn value(&mut self, code: &str) -> String {
        let outcome = self.run(code);
        let outputs = outcome["outputs"].as_array().unwrap();
        let main = outputs.iter().find(|output| output["main"] == true);
        let value = main.and_then(|main| main["data"]["text/plain"].as_str());
        value.unwrap_or_else(|| panic!("{code}: {outcome}")).to_owned()
    }

    /// What has come and was not asked for yet.
    pub fn rest(&mut self) -> Vec<Value> {
        self.told.drain(..).collect()
    }

    /// Ends its stdin and gives how it ended, and how long that took.
    pub fn close(&mut self) -> (ExitStatus, Duration) {
        drop(self.stdin.take());
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return (status, began.elapsed());
            }
            assert!(began.elapsed() < WAIT_LIMIT, "it does not end");
            std::thread::yield_now();
        }
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
