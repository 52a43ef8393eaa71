//! Callers who go on while the store is away, and what must be true of what they were told.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::support::server::Server;
use crate::support::{Caller, Session, must_come, send};

const CALLERS: usize = 8;
/// Requests that one caller gives up when they are refused, to be asked again in the end.
const GIVEN_UP: usize = 10;

/// Callers at work.
pub struct Load {
    shared: Arc<Shared>,
    callers: Vec<JoinHandle<Work>>,
    others: [JoinHandle<()>; 3],
}

struct Shared {
    base: String,
    stopping: AtomicBool,
    /// For each caller: what was done, and what was refused.
    counts: watch::Sender<Vec<[usize; 2]>>,
    told: std::sync::Mutex<Told>,
}

/// What was answered with a success, whoever asked.
#[derive(Default)]
struct Told {
    runs: Vec<String>,
    last_run: Option<String>,
    /// Where each file is that was kept, all with the same content.
    files: Vec<String>,
    /// Runs that were to be done later.
    later: Vec<String>,
    deleted: BTreeSet<String>,
}

/// What one caller was told in its session.
struct Work {
    session: String,
    keyed: bool,
    done: BTreeSet<usize>,
    given_up: BTreeSet<usize>,
}

/// How a request went; nothing else may happen while the store is away.
enum Outcome {
    Done(Value),
    /// 503, and nothing was begun.
    Refused,
    /// 409: an earlier try with this key was refused, and its row still stands.
    InProgress,
}

impl Load {
    /// Callers in sessions of their own, one who only reads, one who makes sessions, and one who
    /// executes.
    pub fn start(server: &Server) -> Self {
        let shared = Arc::new(Shared {
            base: server.base.clone(),
            stopping: AtomicBool::new(false),
            counts: watch::channel(vec![[0; 2]; CALLERS]).0,
            told: std::sync::Mutex::default(),
        });
        let calling = |number| tokio::spawn(call(Arc::clone(&shared), number));
        let callers = (0..CALLERS).map(calling).collect();
        let others = [
            tokio::spawn(read(Arc::clone(&shared))),
            tokio::spawn(make_sessions(Arc::clone(&shared))),
            tokio::spawn(execute(Arc::clone(&shared))),
        ];
        Self { shared, callers, others }
    }

    /// Waits until each caller has been answered with a success so many times from now on.
    pub async fn goes_on(&self, times: usize) {
        self.each(0, times).await;
    }

    /// Waits until each caller has been refused.
    pub async fn is_refused(&self) {
        self.each(1, 1).await;
    }

    async fn each(&self, what: usize, times: usize) {
        let mut counts = self.shared.counts.subscribe();
        let before = counts.borrow().clone();
        let enough = |counts: &Vec<[usize; 2]>| {
            counts.iter().zip(&before).all(|(now, before)| now[what] >= before[what] + times)
        };
        let waited =
            tokio::time::timeout(std::time::Duration::from_secs(60), counts.wait_for(enough));
        let done = waited.await.is_ok();
        assert!(done, "{before:?}, and then only {:?}", self.shared.counts.borrow());
    }

    /// Ends the load and looks at everything that anybody was told.
    pub async fn settle(self, server: &Server) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        let mut sessions = BTreeSet::new();
        for other in self.others {
            other.await.unwrap();
        }
        let caller = server.caller();
        for work in self.callers {
            let work = work.await.unwrap();
            work.settle(&caller, &self.shared).await;
            sessions.insert(work.session);
        }
        let told = std::mem::take(&mut *self.shared.told.lock().unwrap());
        nothing_is_left(server, &sessions, &told.deleted).await;
        for id in &told.runs {
            let (status, run) = caller.get(&format!("/v1/runs/{id}")).await;
            assert_eq!((status, &run["status"]), (StatusCode::OK, &json!("success")), "{run}");
        }
        for url in &told.files {
            let file = send(caller.request(Method::GET, url)).await;
            assert_eq!((file.status(), file.text().await.unwrap().as_str()), (StatusCode::OK, "x"));
        }
        for id in &told.later {
            let (status, run) = caller.get(&format!("/v1/runs/{id}")).await;
            let ended = run["status"] == "success"
                || (run["status"] == "error" && run["failure"]["retry_safe"] == true);
            assert!(status == StatusCode::OK && ended, "{run}");
        }
    }
}

/// No run is open, no session but those that are held, and no end waits.
pub async fn nothing_is_left(server: &Server, held: &BTreeSet<String>, deleted: &BTreeSet<String>) {
    let caller = server.caller();
    let journal = server.data_dir.join("journal");
    let mut left = String::new();
    let settled = async {
        loop {
            let runs = all(&caller, "/v1/runs").await;
            let is_open = |run: &&Value| run["status"] == "queued" || run["status"] == "running";
            let open = runs.iter().filter(is_open).count();
            let sessions = all(&caller, "/v1/sessions").await;
            let is_open = |session: &&Value| session["ended_at"].is_null();
            let id = |session: &Value| session["id"].as_str().unwrap().to_owned();
            let living: BTreeSet<String> = sessions.iter().filter(is_open).map(id).collect();
            let ready = sessions.iter().filter(is_open).all(|session| session["state"] == "ready");
            let waiting = std::fs::read_dir(&journal).unwrap().count();
            if open == 0 && living == *held && ready && waiting == 0 {
                return;
            }
            left = format!("{open} runs, {waiting} ends, sessions {living:?} of {held:?}");
        }
    };
    let settled = tokio::time::timeout(std::time::Duration::from_secs(45), settled).await;
    assert!(settled.is_ok(), "open all the same: {left}");
    assert!(deleted.is_disjoint(held));
}

/// A list to its last page.
async fn all(caller: &Caller, path: &str) -> Vec<Value> {
    let (mut found, mut after) = (Vec::new(), String::new());
    loop {
        let (status, page) = caller.get(&format!("{path}?limit=100{after}")).await;
        assert_eq!(status, StatusCode::OK, "{page}");
        found.extend(page["data"].as_array().unwrap().iter().cloned());
        let Some(cursor) = page["next_cursor"].as_str() else { return found };
        after = format!("&after={cursor}");
    }
}

impl Shared {
    fn stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    fn note(&self, caller: usize, what: usize) {
        self.counts.send_modify(|counts| counts[caller][what] += 1);
    }

    fn note_run(&self, execution: &Value) {
        assert_eq!(execution["status"], "success", "{execution}");
        let id = execution["run_id"].as_str().unwrap().to_owned();
        let mut told = self.told.lock().unwrap();
        told.last_run = Some(id.clone());
        told.runs.push(id);
    }
}

/// Sends, and holds the answer against the rules.
async fn judged(request: RequestBuilder) -> Outcome {
    let response = send(request).await;
    let (status, headers) = (response.status(), response.headers().clone());
    let body = response.bytes().await.unwrap();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    match status.as_u16() {
        200..=204 => Outcome::Done(body),
        409 if body["code"] == "idempotency_in_progress" => Outcome::InProgress,
        503 => {
            let told = (&body["code"], &body["retry_safe"]);
            assert_eq!(told, (&json!("store_unavailable"), &json!(true)), "{body}");
            assert!(headers.contains_key("retry-after"), "{headers:?}");
            Outcome::Refused
        }
        _ => panic!("{status}: {body}"),
    }
}

/// A cell that leaves its number, so that it is seen how often it ran.
async fn leave(session: &Session<'_>, number: usize, keyed: bool, slow: bool) -> Outcome {
    let pause = if slow { "import time; time.sleep(0.1)\n" } else { "" };
    let code = format!("{pause}open('log', 'a').write('{number}\\n')");
    let mut request = session.caller.request(Method::POST, &session.path("/exec"));
    if keyed {
        request = request.header("idempotency-key", format!("{}-{number}", session.id));
    }
    judged(request.json(&json!({"code": code}))).await
}

/// The numbers that were left, in order.
async fn left(session: &Session<'_>) -> Vec<usize> {
    let response = session.download("log").await;
    if response.status() == StatusCode::NOT_FOUND {
        return Vec::new();
    }
    assert_eq!(response.status(), StatusCode::OK);
    let text = response.text().await.unwrap();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

/// One caller: cell after cell in a session of its own. The first one uses no keys; every other one
/// has slow cells, some of which run while the store goes away.
async fn call(shared: Arc<Shared>, number: usize) -> Work {
    let caller = Caller::new(&shared.base);
    let session = caller.session().await;
    let (keyed, slow) = (number > 0, number % 2 == 1);
    let (mut done, mut given_up) = (BTreeSet::new(), BTreeSet::new());
    for cell in 0.. {
        let mut refused = false;
        loop {
            match leave(&session, cell, keyed, slow).await {
                Outcome::Done(execution) => {
                    shared.note_run(&execution);
                    shared.note(number, 0);
                    done.insert(cell);
                    break;
                }
                Outcome::Refused => {
                    if !refused {
                        let left = left(&session).await;
                        assert!(!left.contains(&cell), "{cell} was refused and has run");
                    }
                    refused = true;
                    shared.note(number, 1);
                }
                Outcome::InProgress => assert!(refused && keyed),
            }
            if shared.stopping() || !keyed || (cell % 2 == 0 && given_up.len() < GIVEN_UP) {
                given_up.insert(cell);
                break;
            }
        }
        if shared.stopping() {
            break;
        }
    }
    Work { session: session.id, keyed, done, given_up }
}

impl Work {
    /// What was done ran once; what was refused never ran, and runs once when it is asked again.
    async fn settle(&self, caller: &Caller, shared: &Shared) {
        let session = Session { caller, id: self.session.clone() };
        let ran_once = |left: Vec<usize>, expected: &BTreeSet<usize>| {
            let set: BTreeSet<usize> = left.iter().copied().collect();
            assert_eq!(set.len(), left.len(), "something ran twice: {left:?}");
            assert_eq!(&set, expected);
        };
        ran_once(left(&session).await, &self.done);
        if !self.keyed {
            return;
        }
        for cell in &self.given_up {
            let again = async {
                loop {
                    if let Outcome::Done(execution) = leave(&session, *cell, true, false).await {
                        return execution;
                    }
                }
            };
            shared.note_run(&must_come(again).await);
        }
        ran_once(left(&session).await, &self.done.union(&self.given_up).copied().collect());
    }
}

/// One who reads what the others have done.
async fn read(shared: Arc<Shared>) {
    let caller = Caller::new(&shared.base);
    while !shared.stopping() {
        let last = shared.told.lock().unwrap().last_run.clone();
        let one = last.map(|id| format!("/v1/runs/{id}"));
        for path in one.iter().map(String::as_str).chain(["/v1/runs?limit=5", "/v1/sessions"]) {
            judged(caller.request(Method::GET, path)).await;
        }
    }
}

/// One who makes sessions and deletes them; one that was refused is asked for again with its key.
async fn make_sessions(shared: Arc<Shared>) {
    let caller = Caller::new(&shared.base);
    for number in 0.. {
        let mut refused = false;
        let session = loop {
            let request = caller.request(Method::POST, "/v1/sessions").json(&json!({}));
            match judged(request.header("idempotency-key", format!("make-{number}"))).await {
                Outcome::Done(session) => break session,
                Outcome::Refused => refused = true,
                Outcome::InProgress => assert!(refused),
            }
            if shared.stopping() {
                return;
            }
        };
        let id = session["id"].as_str().unwrap().to_owned();
        // refused or not, it is over
        judged(caller.request(Method::DELETE, &format!("/v1/sessions/{id}"))).await;
        shared.told.lock().unwrap().deleted.insert(id);
        if shared.stopping() {
            return;
        }
    }
}

/// One whose code has a sandbox of its own each time, every other time later.
async fn execute(shared: Arc<Shared>) {
    let caller = Caller::new(&shared.base);
    for number in 0.. {
        let mut refused = false;
        loop {
            let body = json!({"code": "open('made', 'w').write('x')"});
            let request = caller.request(Method::POST, "/v1/execute").json(&body);
            let request = request.header("idempotency-key", format!("execute-{number}"));
            let later = number % 2 == 1;
            let request = if later { request.header("prefer", "respond-async") } else { request };
            match judged(request).await {
                Outcome::Done(run) if later => {
                    let id = run["id"].as_str().unwrap().to_owned();
                    shared.told.lock().unwrap().later.push(id);
                    break;
                }
                Outcome::Done(execution) => {
                    shared.note_run(&execution);
                    let url = execution["output_files"][0]["url"].as_str().map(str::to_owned);
                    assert!(url.is_some() || execution["truncated"] == true, "{execution}");
                    shared.told.lock().unwrap().files.extend(url);
                    break;
                }
                Outcome::Refused => refused = true,
                Outcome::InProgress => assert!(refused),
            }
            if shared.stopping() {
                return;
            }
        }
        if shared.stopping() {
            return;
        }
    }
}
