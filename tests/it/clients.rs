//! Official clients accept what the stub of the model services says, and what is served to them.

use interpreterd::telemetry::table::families;
use serde_json::json;

use crate::support::model::{KEY, Reply, Said, Shape, StubModel, said_run, text};
use crate::support::server::shared;

/// The Python that has the clients; `make test-clients` sets it.
const PYTHON: &str = "INTERPRETERD_TEST_CLIENTS";
const METRICS_PROGRAM: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/prometheus_official.py");
const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/official.py");

#[test]
fn official_clients_accept_the_stub() {
    let Some(python) = std::env::var_os(PYTHON) else {
        eprintln!("not tried: the clients are not installed, make test-clients does it");
        return;
    };
    let model = StubModel::start();
    let first = || Said {
        thinking: Some("So, é 😀.".to_owned()),
        text: "Let me look.".to_owned(),
        ..said_run(&["print(1)", "print(2)"])
    };
    for name in ["openai-whole", "openai-streamed", "anthropic-whole", "anthropic-streamed"] {
        let script = [first().into(), text("It is 42, as said: é 😀.")];
        model.script(&format!("official-{name}"), &script);
    }
    let error = |kind: &str, code: &str| json!({"type": "error", "error": {"type": kind, "message": "x", "code": code}});
    for (status, kind, code) in [
        (429, "rate_limit_error", ""),
        (400, "invalid_request_error", "context_length_exceeded"),
        (500, "api_error", ""),
    ] {
        let fault = Reply::Fault(status, error(kind, code));
        model.script(&format!("official-{status}"), &[fault]);
    }
    let overloaded = first().shaped(Shape { error_after: Some(2), ..Shape::default() });
    model.script("official-overloaded", &[overloaded]);
    accepts(&python, &[PROGRAM, &model.base_url, KEY], "accept the stub");
}

#[tokio::test]
async fn the_official_parser_of_openmetrics_reads_what_is_served() {
    let Some(python) = std::env::var_os(PYTHON) else {
        eprintln!("not tried: the parser is not installed, make test-clients does it");
        return;
    };
    let server = shared();
    let caller = server.caller();
    assert_eq!(caller.post("/v1/execute", json!({"code": "1"})).await.0, 200);
    assert_eq!(caller.get("/v1/runs/none").await.0, 400);
    let table = families();
    let names: Vec<&str> = table.iter().map(|family| family.name.as_str()).collect();
    let known = names.join(",");
    accepts(&python, &[METRICS_PROGRAM, &server.base, &known], "reads");
}

/// The clients' program ends well and says so.
fn accepts(python: &std::ffi::OsStr, arguments: &[&str], word: &str) {
    #[expect(clippy::disallowed_methods, reason = "the clients are programs of their vendors")]
    let told = std::process::Command::new(python).args(arguments).output().unwrap();
    let (stdout, stderr) =
        (String::from_utf8_lossy(&told.stdout), String::from_utf8_lossy(&told.stderr));
    assert!(told.status.success() && stdout.contains(word), "{stdout}{stderr}");
    print!("{stdout}");
}
