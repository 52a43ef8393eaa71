//! What users of such servers report, as it goes here.

use futures::future::join_all;
use serde_json::{Value, json};

use super::{came, deno_of};
use crate::support::processes::all_gone;
use crate::support::pydantic::shared;
use crate::support::{must_come, sse};

fn signal(pid: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

/// mcp-run-python 8, pydantic-ai 2655: two requests at once, and one times out, or has the other's
/// output.
#[tokio::test]
async fn a_busy_session_holds_up_no_other_and_no_output_is_mixed() {
    let caller = shared().caller();
    let (busy, other) = (caller.session().await, caller.session().await);
    let begun = "open('begun', 'w').close()\nimport os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('A')";
    let meanwhile = async {
        while busy.download("begun").await.status() != 200 {
            tokio::task::yield_now().await;
        }
        let cells = (0..5).map(|number| {
            let other = &other;
            async move { other.exec(&format!("print('B{number}')")).await["stdout"].clone() }
        });
        let printed = join_all(cells).await;
        let expected: Vec<Value> = (0..5).map(|number| json!(format!("B{number}\n"))).collect();
        assert_eq!(printed, expected);
        busy.put("go", "").await;
    };
    let (execution, ()) = must_come(async { tokio::join!(busy.exec(begun), meanwhile) }).await;
    assert_eq!(execution["stdout"], "A\n");
}

/// langchain-sandbox 6: it is unclear which packages there are.
#[tokio::test]
async fn a_caller_sees_which_packages_there_are_and_asks_for_them_by_name() {
    let caller = shared().caller();
    let (_, providers) = caller.get("/v1/providers").await;
    let all = providers["data"].as_array().unwrap();
    let provider = all.iter().find(|provider| provider["name"] == "pydantic").unwrap();
    let version = &provider["packages"]["pydantic"];
    assert!(version.as_str().is_some_and(|version| version.starts_with("2.")), "{provider}");
    let asked = json!({"packages": ["pydantic"]});
    let session = caller.session_with(asked).await;
    assert_eq!(
        session.text("import pydantic\npydantic.VERSION").await,
        format!("'{}'", version.as_str().unwrap())
    );
    let (status, refused) =
        caller.post("/v1/sessions", json!({"packages": ["nobody-has-this"]})).await;
    assert!(status.is_client_error(), "{refused}");
    assert!(refused["detail"].as_str().unwrap().contains("nobody-has-this"), "{refused}");
}

/// langchain-sandbox 47: seconds for imports alone, with every call.
#[tokio::test]
async fn an_import_costs_its_time_once_a_session() {
    let caller = shared().caller();
    let session = caller.session().await;
    let first = session.exec("import openpyxl").await;
    assert_eq!(came(&first), json!(["success", 0, null, false]), "{first}");
    let again = session.exec("import openpyxl").await;
    let (first, again) = (&first["duration_ms"], &again["duration_ms"]);
    assert!(again.as_f64() < first.as_f64(), "{again} after {first}");
}

/// pyodide 4624, 4736: a wheel that is there does not load from a folder that is only read; dspy
/// 9234: what the loader says is taken for output.
#[tokio::test]
async fn a_wheel_of_native_code_loads_from_a_folder_that_is_only_read_and_says_nothing() {
    let caller = shared().caller();
    let session = caller.session().await;
    let code = "import pydantic_core\npydantic_core.to_json({'a': {1}}).decode()";
    let execution = session.exec(code).await;
    assert_eq!(execution["text"], "'{\"a\":[1]}'", "{execution}");
    assert_eq!((&execution["stdout"], &execution["stderr"]), (&json!(""), &json!("")));
}

/// strukto-ai/mirage 1175: stdout turns to garbage once the memory has grown.
#[tokio::test]
async fn output_is_exact_while_memory_grows_and_in_a_long_session() {
    let caller = shared().caller();
    let session = caller.session().await;
    session.exec("kept = []").await;
    for round in 0..5 {
        let code = format!(
            "for n in range(20):\n  kept.append(bytearray(1 << 20))\n  print(f'é😀 {round} {{n}}', flush=n % 2)"
        );
        let execution = session.exec(&code).await;
        let expected: String = (0..20).map(|n| format!("é😀 {round} {n}\n")).collect();
        assert_eq!(execution["stdout"], expected);
    }
    assert_eq!(session.text("len(kept)").await, "100");
}

/// dspy 10165, 9314, 10449: the process ends in mid-call, and what was asked for is done twice.
#[tokio::test]
async fn a_process_that_is_killed_in_mid_call_is_told_and_the_code_has_run_once() {
    let server = shared();
    let caller = server.caller();
    let session = caller.session_with(json!({"env": {"KEPT": "yes"}})).await;
    session.exec("x = 7").await;
    let deno = deno_of(server, &session).await;
    let code = "open('runs', 'a').write('x')\nopen('begun', 'w').close()\nwhile True: pass";
    let killing = async {
        while session.download("begun").await.status() != 200 {
            tokio::task::yield_now().await;
        }
        signal(deno, rustix::process::Signal::KILL);
    };
    let (execution, ()) = must_come(async { tokio::join!(session.exec(code), killing) }).await;
    assert_eq!(came(&execution), json!(["error", 1, "killed", true]), "{execution}");
    assert_eq!(execution["failure"]["retry_safe"], false);
    let code = "import os\n'x' in globals(), os.environ['KEPT'], open('runs').read()";
    let next = session.exec(code).await;
    assert_eq!(
        (&next["text"], &next["state_lost"]),
        (&json!("(False, 'yes', 'x')"), &json!(false))
    );
}

/// The same between two calls.
#[tokio::test]
async fn a_process_that_was_killed_between_calls_is_told_with_the_next() {
    let server = shared();
    let caller = server.caller();
    let session = caller.session().await;
    session.exec("x = 7").await;
    let deno = deno_of(server, &session).await;
    signal(deno, rustix::process::Signal::KILL);
    all_gone(&[deno]);
    // it is handed over to nobody, or to a process that is there already
    let next = session.exec("open('runs', 'a').write('x')").await;
    assert_eq!(next["state_lost"], true, "{next}");
    let ran = if next["status"] == "success" { "'x'" } else { "None" };
    let code = "import os\nopen('runs').read() if os.path.exists('runs') else None";
    let after = session.exec(code).await;
    let told = after["outputs"][0]["data"]["text/plain"].as_str().unwrap_or("None");
    assert_eq!((told, &after["state_lost"]), (ran, &json!(false)), "{next}");
}

/// langchain 40472, python-sdk 1364: a silent server is waited for, for ever.
#[tokio::test]
async fn a_process_that_hangs_is_given_up_after_the_cells_time_and_another_takes_its_place() {
    let server = shared();
    let caller = server.caller();
    let session = caller.session().await;
    session.exec("x = 7").await;
    let deno = deno_of(server, &session).await;
    signal(deno, rustix::process::Signal::STOP);
    let cell = json!({"code": "1", "timeout_seconds": 1});
    let limit = std::time::Duration::from_secs(20);
    let execution = tokio::time::timeout(limit, session.exec_with(cell)).await;
    let execution = execution.expect("a second of code takes no 20 seconds");
    assert_eq!(came(&execution), json!(["timeout", 1, null, true]), "{execution}");
    assert_eq!(session.text("'x' in globals()").await, "False");
}

/// ggml-org/llama.cpp 11762: `if __name__ == "__main__"` never runs.
#[tokio::test]
async fn a_program_is_the_main_one() {
    let caller = shared().caller();
    let session = caller.session().await;
    let code = "
import dataclasses, pickle, sys, typing, unittest

@dataclasses.dataclass
class Point:
    x: int

class Case(unittest.TestCase):
    def test_it(self): self.assertEqual(pickle.loads(pickle.dumps(Point(1))), Point(1))

def main():
    print(sys.modules['__main__'].Point is Point, typing.get_type_hints(Point))

if __name__ == '__main__':
    main()
    unittest.main(argv=['x'], exit=False, verbosity=0)";
    let execution = session.exec(code).await;
    assert_eq!(execution["stdout"], "True {'x': <class 'int'>}\n", "{execution}");
    assert!(execution["stderr"].as_str().unwrap().ends_with("\nOK\n"), "{execution}");
}

/// open-webui 9614, 9696: a kernel that remembers, and says what it does while it does it.
#[tokio::test]
async fn tasks_go_on_between_cells_and_what_they_print_is_told() {
    let caller = shared().caller();
    let session = caller.session().await;
    let code = "import asyncio\nasync def later():\n  await asyncio.sleep(0.05)\n  print('from a task')\n  open('done', 'w').close()\ntask = asyncio.ensure_future(later())";
    session.exec(code).await;
    must_come(async {
        while session.download("done").await.status() != 200 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let next = session.exec("print('own')").await;
    assert_eq!((&next["stdout"], &next["late_output"]), (&json!("own\n"), &json!("from a task\n")));
}

/// The same, 1,000 lines a moment: none is lost, doubled or out of order on its way.
#[tokio::test]
async fn a_stream_of_many_lines_comes_whole_and_in_order() {
    let caller = shared().caller();
    let session = caller.session().await;
    let code = "import sys\nfor n in range(5_000):\n  print(n, flush=True)\n  if n % 1000 == 0: print('e', n, file=sys.stderr, flush=True)";
    let request = caller.request(reqwest::Method::POST, &session.path("/exec"));
    let request = request.header("accept", "text/event-stream").json(&json!({"code": code}));
    let events = must_come(sse::all(crate::support::send(request).await)).await;
    let heard = |stream: &str| -> String {
        let pieces = events.iter().filter(|event| event.name == stream);
        pieces.map(|event| event.data["text"].as_str().unwrap()).collect()
    };
    let expected: String = (0..5_000).map(|n| format!("{n}\n")).collect();
    assert_eq!(heard("stdout"), expected);
    assert_eq!(heard("stderr"), "e 0\ne 1000\ne 2000\ne 3000\ne 4000\n");
    assert_eq!(events.last().unwrap().data["stdout"], expected);
}
