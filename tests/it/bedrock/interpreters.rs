//! Other services than the usual one: what is not known of AWS's own may be so.

use reqwest::StatusCode;
use serde_json::{Value, json};

use super::{losses, machine_of};
use crate::support::agentcore::AgentCore;
use crate::support::server::Server;
use crate::support::{Caller, must_come};

/// Variables, an error, a figure, a timeout by alarm, a command, a file: what each session is for.
async fn works(caller: &Caller) {
    let session = caller.session_with(json!({"env": {"OWN": "yes"}})).await;
    let id = machine_of(&session).await;
    let code = "import os\nx = 6\nprint('out')\nos.environ['OWN'], await __import__('asyncio').sleep(0, 7)";
    let first = session.exec(code).await;
    assert_eq!((&first["stdout"], &first["text"]), (&json!("out\n"), &json!("out\n('yes', 7)")));
    let error = session.exec("x / 0").await;
    assert_eq!(error["error_detail"]["name"], "ZeroDivisionError", "{error}");
    let code = "import matplotlib.pyplot as plt\nplt.plot([1])\nplt.show()\ninput()";
    let drawn = session.exec_with(json!({"code": code, "stdin": "line\n"})).await;
    assert_eq!(drawn["outputs"][1]["data"]["text/plain"], "'line'", "{drawn}");
    let code = "import time\nwhile True: time.sleep(0.01)";
    let late = session.exec_with(json!({"code": code, "timeout_seconds": 1})).await;
    assert_eq!((&late["status"], losses(&late)), (&json!("timeout"), (false, false)), "{late}");
    let body = json!({"command": "echo $OWN; echo oops >&2; exit 3"});
    let (_, shell) = caller.post(&session.path("/shell"), body).await;
    assert_eq!((&shell["stdout"], &shell["stderr"]), (&json!("yes\n"), &json!("oops\n")));
    assert_eq!(shell["exit_code"], 3, "{shell}");
    session.put("a.txt", "content").await;
    assert_eq!(session.text("x, open('a.txt').read()").await, "(6, 'content')");
    assert_eq!(session.download("a.txt").await.text().await.unwrap(), "content");
    assert_eq!(machine_of(&session).await, id);
}

async fn works_with(options: &[&str]) -> (AgentCore, Server) {
    let aws = AgentCore::start(options);
    let server = aws.serve(&[]);
    works(&server.caller()).await;
    (aws, server)
}

#[tokio::test]
async fn an_interpreter_that_runs_cells_in_another_thread_will_do() {
    works_with(&["--kernel", "thread"]).await;
}

#[tokio::test]
async fn an_interpreter_that_is_ipython_with_a_loop_of_its_own_will_do() {
    works_with(&["--kernel", "ipython"]).await;
}

#[tokio::test]
async fn commands_without_a_terminal_will_do() {
    works_with(&["--no-pty"]).await;
}

#[tokio::test]
async fn output_that_is_cut_on_its_way_is_fetched() {
    let (_aws, server) = works_with(&["--stdout-limit", "20000"]).await;
    let caller = server.caller();
    let session = caller.session().await;
    let execution = session.exec("print('x' * 100_000 + 'end')").await;
    assert_eq!(execution["stdout_bytes"], 100_004, "{}", execution["error"]);
    assert!(execution["stdout"].as_str().unwrap().ends_with("xend\n"));
}

/// What the service does with two calls at once in one session is not documented.
#[tokio::test]
async fn a_service_that_does_one_thing_at_a_time_will_do() {
    for calls in ["conflict", "queue"] {
        let (aws, server) = works_with(&["--calls", calls]).await;
        let caller = server.caller();
        let session = caller.session().await;
        let running =
            session.exec("import time\ntime.sleep(1)\nopen('a.txt', 'w').write('by the cell')");
        let reading = async {
            must_come(async {
                while session.download("a.txt").await.status() != StatusCode::OK {
                    tokio::task::yield_now().await;
                }
            })
            .await;
            session.put("b.txt", "by the caller").await
        };
        let (execution, (status, _)) = tokio::join!(running, reading);
        assert_eq!(execution["status"], "success", "{calls}: {execution}");
        assert!(status.is_success());
        assert_eq!(session.text("open('b.txt').read()").await, "'by the caller'");
        // nothing can be done beside a cell, so an interrupt is not heard
        let path = session.path("/exec");
        let cell = caller.post(&path, json!({"code": "import time\ntime.sleep(60)"}));
        let executed = aws.executed().await;
        let interrupting = async {
            must_come(async {
                while aws.executed().await == executed {
                    tokio::task::yield_now().await;
                }
            })
            .await;
            loop {
                caller.post(&session.path("/interrupt"), Value::Null).await;
            }
        };
        let (_, execution) = tokio::select! {
            answer = cell => answer,
            () = interrupting => unreachable!("it goes on until it is heard"),
        };
        assert_eq!(execution["failure"]["kind"], "interrupted", "{calls}: {execution}");
        assert_eq!(losses(&execution), (true, true), "{calls}: {execution}");
        assert_eq!(session.text("6 * 7").await, "42");
    }
}

#[tokio::test]
async fn an_interpreter_that_does_not_come_back_costs_its_machine() {
    let aws = AgentCore::start(&["--dead-kernel", "broken"]);
    let server = aws.serve(&[]);
    let caller = server.caller();
    let session = caller.session().await;
    let execution = session.exec("print('last words', flush=True)\nimport os\nos._exit(3)").await;
    assert_eq!(execution["failure"]["kind"], "killed", "{execution}");
    assert_eq!((&execution["stdout"], losses(&execution)), (&json!("last words\n"), (true, true)));
    assert_eq!(session.text("6 * 7").await, "42");
}

#[tokio::test]
async fn an_idle_interpreter_that_died_is_noticed_before_the_next_cell_runs() {
    let aws = AgentCore::start(&[]);
    let server = aws.serve(&[]);
    let caller = server.caller();
    let session = caller.session_with(json!({"env": {"OWN": "yes"}})).await;
    session.exec("x = 7\nopen('kept.txt', 'w').close()").await;
    aws.kill_kernel(&machine_of(&session).await).await;
    let execution =
        session.exec("import os\n'x' in globals(), os.listdir(), os.environ['OWN']").await;
    assert_eq!(execution["text"], "(False, ['kept.txt'], 'yes')", "{execution}");
    assert_eq!(losses(&execution), (true, false));
}
