//! What model services get wrong, over both wires, as a whole and as a stream: an answer or a clear
//! failure comes of it, and the history is whole. The stub refuses what the real services refuse.

mod messages;
mod retries;
mod services;
mod streams;

use std::sync::OnceLock;

use futures::StreamExt;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::model::{Arguments, Call, Reply, Said, StubModel, call, run, said_run, text};
use crate::support::server::caller;
use crate::support::{answer, problem, send, sse};

const WIRES: [&str; 2] = ["stub", "claude"];
const ANSWER: &str = "It is 42, as said: é 😀.";
/// Runs at once.
const AT_ONCE: usize = 6;

/// What must come of it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Expect {
    /// The answer, after so many cells.
    Answer(usize),
    /// A run that ends with this failure, after so many cells.
    Failure(&'static str, usize),
    /// The model could not be asked; before that so many cells ran.
    Unavailable(usize),
    /// It takes too long.
    Timeout,
}

use Expect::{Answer, Failure, Timeout, Unavailable};

/// A fault, and what comes after it.
struct Fault {
    name: &'static str,
    script: Vec<Reply>,
    expect: Expect,
    /// What must come of a stream, where that differs.
    streamed: Option<Expect>,
}

fn good() -> Vec<Reply> {
    vec![run(&["print(6 * 7)"]), text(ANSWER)]
}

/// The fault first, then a cell and the answer.
fn first(name: &'static str, reply: impl Into<Reply>, expect: Expect) -> Fault {
    let script = [vec![reply.into()], good()].concat();
    Fault { name, script, expect, streamed: None }
}

/// A cell first, then the fault, then the answer.
fn second(name: &'static str, reply: impl Into<Reply>, expect: Expect) -> Fault {
    let script = vec![run(&["print(6 * 7)"]), reply.into(), text(ANSWER)];
    Fault { name, script, expect, streamed: None }
}

/// The fault again and again.
fn always(name: &'static str, reply: impl Into<Reply>, expect: Expect) -> Fault {
    Fault { name, script: vec![reply.into()], expect, streamed: None }
}

impl Fault {
    fn streamed(self, expect: Expect) -> Self {
        Self { streamed: Some(expect), ..self }
    }
}

fn said() -> Said {
    said_run(&["print(6 * 7)"])
}

fn answer_text() -> Said {
    Said { text: ANSWER.to_owned(), ..Said::default() }
}

fn python(arguments: &str) -> Call {
    call("run_python", arguments)
}

fn swapped(value: Value) -> Call {
    Call { arguments: Arguments::Swapped(value), ..python("") }
}

fn http(status: u16, headers: Vec<(&'static str, String)>, body: &str) -> Reply {
    Reply::Http { status, headers, body: body.to_owned() }
}

fn error(kind: &str, message: &str) -> Value {
    json!({"type": "error", "error": {"type": kind, "message": message}})
}

/// All faults, each with a number for its script.
fn all() -> &'static [Fault] {
    static ALL: OnceLock<Vec<Fault>> = OnceLock::new();
    ALL.get_or_init(|| {
        let all = [
            messages::arguments(),
            messages::calls(),
            messages::texts(),
            services::statuses(),
            services::bodies(),
            streams::all(),
        ];
        all.into_iter().flatten().collect()
    })
}

struct Trial {
    fault: &'static Fault,
    wire: &'static str,
    streamed: bool,
    script: String,
}

/// One fault over one wire, in one way of asking.
async fn hold(trial: Trial) {
    let Trial { fault, wire, streamed, script } = trial;
    let what = format!("{} over {wire}, streamed: {streamed}", fault.name);
    let message = StubModel::shared().script(&script, &fault.script);
    let expect = fault.streamed.filter(|_| streamed).unwrap_or(fault.expect);
    let seconds = if expect == Timeout { 1 } else { 60 };
    let body = json!({"message": message, "model": wire, "timeout_seconds": seconds});
    let request = caller().request(Method::POST, "/v1/interpret").json(&body);
    let run =
        if streamed { follow(request, &what).await } else { ask(request, expect, &what).await };
    let (_, stored) = caller().get(&format!("/v1/runs/{}", run["id"].as_str().unwrap())).await;
    assert_eq!(stored, run, "{what}: it is recorded as it was told");
    check(expect, &run, &what);
    assert_eq!(run["model"], wire, "{what}");
}

async fn ask(request: reqwest::RequestBuilder, expect: Expect, what: &str) -> Value {
    let told = answer(request).await;
    if matches!(expect, Unavailable(_)) {
        assert_eq!(problem(&told), (502, "model_unavailable".into()), "{what}: {}", told.1);
        let path = format!("/v1/runs/{}", told.1["run_id"].as_str().unwrap());
        return caller().get(&path).await.1;
    }
    assert_eq!(told.0, StatusCode::OK, "{what}: {}", told.1);
    told.1
}

async fn follow(request: reqwest::RequestBuilder, what: &str) -> Value {
    let response = send(request.header("accept", "text/event-stream")).await;
    let events = sse::all(response).await;
    let (last, before) = events.split_last().unwrap();
    assert_eq!(last.name, "run.completed", "{what}");
    let count = |name: &str| before.iter().filter(|event| event.name == name).count();
    let cells = last.data["code_exec_results"].as_array().unwrap().len();
    assert_eq!((count("tool.started"), count("tool.completed")), (cells, cells), "{what}");
    let text = last.data["text"].as_str().unwrap();
    let deltas = before.iter().filter(|event| event.name == "model.delta");
    let told: String = deltas.filter_map(|event| event.data["text"].as_str()).collect();
    assert!(told.ends_with(text), "{what}: {told:?} {text:?}");
    last.data.clone()
}

fn check(expect: Expect, run: &Value, what: &str) {
    let results = run["code_exec_results"].as_array().unwrap();
    let (status, kind, cells) = match expect {
        Answer(cells) => ("success", Value::Null, Some(cells)),
        Failure(kind, cells) => ("error", json!(kind), Some(cells)),
        Unavailable(cells) => ("error", json!("model_unavailable"), Some(cells)),
        Timeout => ("timeout", json!("budget"), None),
    };
    assert_eq!((&run["status"], &run["failure"]["kind"]), (&json!(status), &kind), "{what}: {run}");
    assert!(cells.is_none_or(|cells| cells == results.len()), "{what}: {run}");
    assert_eq!(run["text"], if matches!(expect, Answer(_)) { ANSWER } else { "" }, "{what}");
    assert_eq!(run["error"].is_null(), matches!(expect, Answer(_)), "{what}");
}

fn trials(wire: &'static str, streamed: bool) -> Vec<Trial> {
    let trial = |(number, fault)| {
        let script = format!("fault-{number}-{wire}-{streamed}");
        Trial { fault, wire, streamed, script }
    };
    all().iter().enumerate().map(trial).collect()
}

async fn hold_all(wire: &'static str, streamed: bool) {
    let trials = futures::stream::iter(trials(wire, streamed));
    trials.map(hold).buffer_unordered(AT_ONCE).collect::<Vec<()>>().await;
}

#[tokio::test]
async fn every_fault_over_openai_whole() {
    hold_all(WIRES[0], false).await;
}

#[tokio::test]
async fn every_fault_over_openai_streamed() {
    hold_all(WIRES[0], true).await;
}

#[tokio::test]
async fn every_fault_over_anthropic_whole() {
    hold_all(WIRES[1], false).await;
}

#[tokio::test]
async fn every_fault_over_anthropic_streamed() {
    hold_all(WIRES[1], true).await;
}
