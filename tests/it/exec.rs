//! Exec: what callers get for each way that a cell can end.

use serde_json::{Value, json};

use crate::support::problem;
use crate::support::server::caller;

/// The parts of an execution that tell how it ended.
fn end(execution: &Value) -> Value {
    json!({
        "status": execution["status"],
        "exit_code": execution["exit_code"],
        "state_lost": execution["state_lost"],
        "failure": execution["failure"]["kind"],
    })
}

#[tokio::test]
async fn state_is_kept_from_cell_to_cell() {
    let caller = caller();
    let session = caller.session().await;
    session.exec("x = 41").await;
    let execution = session.exec("x + 1").await;
    assert_eq!(execution["text"], "42");
    assert_eq!(execution["execution_count"], 2);
    assert_eq!(
        execution["outputs"],
        json!([{"data": {"text/plain": "42"}, "metadata": {}, "main": true}])
    );
    assert_eq!(
        end(&execution),
        json!({"status": "success", "exit_code": 0, "state_lost": false, "failure": null})
    );
}

#[tokio::test]
async fn a_long_session_of_values_says_nothing_of_its_own() {
    let caller = caller();
    let session = caller.session().await;
    for number in 0..60 {
        let execution = session.exec(&format!("{number}")).await;
        assert_eq!(execution["text"], number.to_string(), "{execution}");
    }
    assert_eq!(session.text("Out[60]").await, "59");
}

#[tokio::test]
async fn output_comes_apart_and_together() {
    let caller = caller();
    let session = caller.session().await;
    let execution =
        session.exec("import sys\nprint('out')\nprint('err', file=sys.stderr)\n'value'").await;
    assert_eq!(execution["stdout"], "out\n");
    assert_eq!(execution["stderr"], "err\n");
    assert_eq!(execution["text"], "out\nerr\n'value'");
    assert_eq!((&execution["stdout_bytes"], &execution["stderr_bytes"]), (&json!(4), &json!(4)));
}

#[tokio::test]
async fn an_error_comes_with_its_traceback_and_its_line() {
    let caller = caller();
    let session = caller.session().await;
    let execution = session.exec("def f(a):\n    return 1 / a\n\nf(0)").await;
    assert_eq!(
        end(&execution),
        json!({"status": "error", "exit_code": 1, "state_lost": false, "failure": null})
    );
    let detail = &execution["error_detail"];
    assert_eq!(
        (&detail["name"], &detail["message"], &detail["line"]),
        (&json!("ZeroDivisionError"), &json!("division by zero"), &json!(2))
    );
    assert_eq!(execution["error"], detail["traceback"]);
    assert!(!execution.to_string().contains("\\u001b"), "{execution}");
    assert_eq!(session.text("'alive'").await, "'alive'");
}

#[tokio::test]
async fn a_syntax_error_names_its_line_and_none_of_our_frames() {
    let caller = caller();
    let session = caller.session().await;
    let execution = session.exec("x = 1\ndef f(:\n  pass").await;
    assert_eq!(execution["error_detail"]["name"], "SyntaxError");
    assert_eq!(execution["error_detail"]["line"], 2);
    let interrupted =
        session.exec_with(json!({"code": "while True: pass", "timeout_seconds": 0.2})).await;
    for execution in [execution, interrupted] {
        assert!(!execution.to_string().contains("interpreterd_guest"), "{execution}");
    }
}

#[tokio::test]
async fn a_timeout_keeps_the_state() {
    let caller = caller();
    let session = caller.session().await;
    session.exec("x = 7").await;
    let execution = session
        .exec_with(
            json!({"code": "print('a')\nimport time; time.sleep(60)", "timeout_seconds": 0.5}),
        )
        .await;
    assert_eq!(
        end(&execution),
        json!({"status": "timeout", "exit_code": 1, "state_lost": false, "failure": null})
    );
    assert_eq!(execution["stdout"], "a\n");
    assert!(execution["duration_ms"].as_f64().unwrap() < 1500.0, "{execution}");
    assert_eq!(session.text("x").await, "7");
}

#[tokio::test]
async fn a_cell_that_ignores_interrupts_is_killed_and_the_files_are_carried_over() {
    let caller = caller();
    let session = caller.session().await;
    session.put("data/a b.txt", "kept").await;
    let code = "import signal\nopen('made.txt', 'w').write('x')\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass";
    let execution = session.exec_with(json!({"code": code, "timeout_seconds": 0.5})).await;
    assert_eq!(
        end(&execution),
        json!({"status": "timeout", "exit_code": 1, "state_lost": true, "failure": "killed"})
    );
    assert_eq!(execution["files_lost"], false);
    assert_eq!(execution["files"][0]["path"], "made.txt");
    let after = session
        .exec("sorted(__import__('pathlib').Path('.').rglob('*.txt')), open('data/a b.txt').read()")
        .await;
    assert_eq!(after["text"], "([PosixPath('data/a b.txt'), PosixPath('made.txt')], 'kept')");
    assert_eq!(after["files"], json!([]), "carried files are no change of this cell");
}

#[tokio::test]
async fn a_crash_says_how_it_ended_and_the_session_goes_on() {
    let caller = caller();
    let session = caller.session().await;
    session.put("f.txt", "kept").await;
    for (code, exit_code) in [
        ("import os; os._exit(3)", 3),
        ("import ctypes; ctypes.string_at(0)", 139),
        ("import os; os.abort()", 134),
        ("import os; os.kill(os.getpid(), 9)", 137),
    ] {
        let execution = session.exec(code).await;
        let expected = json!({"status": "error", "exit_code": exit_code, "state_lost": true, "failure": "killed"});
        assert_eq!(end(&execution), expected, "{code}");
        assert_eq!(session.text("open('f.txt').read()").await, "'kept'", "{code}");
    }
}

#[tokio::test]
async fn a_kernel_that_dies_between_cells_is_replaced_and_said_so() {
    let caller = caller();
    let session = caller.session().await;
    let code = "x = 1\nimport os, threading\nopen('carried', 'w').write('x')\ndef die():\n    open('dead', 'w').close(); os._exit(0)\nthreading.Timer(0.2, die).start()";
    session.exec(code).await;
    while session.download("dead").await.status() != 200 {
        tokio::task::yield_now().await;
    }
    let execution = session.exec("'x' in globals()").await;
    assert_eq!(execution["state_lost"], true, "{execution}");
    let files = execution["files"].as_array().unwrap();
    assert!(
        files.iter().all(|file| file["path"] == "dead"),
        "carried files are no change of this cell: {files:?}"
    );
    assert_eq!(session.text("'x' in globals()").await, "False");
}

#[tokio::test]
async fn sys_exit_ends_the_cell_with_its_code_and_not_the_session() {
    let caller = caller();
    let session = caller.session().await;
    session.exec("x = 5").await;
    for (code, status, exit_code) in [
        ("import sys; sys.exit(4)", "error", 4),
        ("exit()", "success", 0),
        ("raise SystemExit('why')", "error", 1),
    ] {
        let execution = session.exec(code).await;
        assert_eq!(
            end(&execution),
            json!({"status": status, "exit_code": exit_code, "state_lost": false, "failure": null}),
            "{code}"
        );
    }
    assert_eq!(session.text("x").await, "5");
}

#[tokio::test]
async fn figures_and_frames_are_outputs() {
    let caller = caller();
    let session = caller.session().await;
    let execution = session.exec("import matplotlib.pyplot as plt\nfor i in range(2):\n    plt.figure(); plt.plot([i])\nplt.show()").await;
    let images: Vec<_> = execution["outputs"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|output| output["data"]["image/png"].as_str())
        .collect();
    assert_eq!(images.len(), 2, "{}", execution["error"]);
    assert!(images.iter().all(|image| image.starts_with("iVBORw0KGgo")));
    let next = session.exec("1 + 1").await;
    assert_eq!(next["outputs"].as_array().unwrap().len(), 1, "no stale figure");
    let frame = session.exec("import pandas as pd\npd.DataFrame({'a': range(1000)})").await;
    let data = &frame["outputs"][0]["data"];
    assert!(data["text/html"].as_str().unwrap().contains("1000 rows"), "{data}");
    assert!(data["text/plain"].as_str().unwrap().len() < 2000);
}

#[tokio::test]
async fn cjk_glyphs_are_drawn_without_warnings() {
    let caller = caller();
    let session = caller.session().await;
    let execution = session.exec("import matplotlib.pyplot as plt\nplt.title('数据 日本 한국 é')\nplt.plot([1]); plt.show()").await;
    assert_eq!((&execution["status"], &execution["stderr"]), (&json!("success"), &json!("")));
}

#[tokio::test]
async fn output_is_exact_whatever_bytes_it_has() {
    let caller = caller();
    let session = caller.session().await;
    let execution =
        session.exec("print('a\\x00b\\x1b[31mred\\x1b[0m\\x07'); print('\\ud800 ok', '😀')").await;
    assert_eq!(execution["stdout"], "a\0b\u{1b}[31mred\u{1b}[0m\u{7}\n\\ud800 ok 😀\n");
    assert_eq!(execution["lossy"], false);
    let execution = session.exec("import os; os.write(1, b'a\\xffb')").await;
    assert_eq!((&execution["stdout"], &execution["lossy"]), (&json!("a\u{fffd}b"), &json!(true)));
}

#[tokio::test]
async fn output_over_its_cap_keeps_both_ends_and_the_count() {
    let caller = caller();
    let session = caller.session().await;
    let execution = session.exec("print('head' + 'x' * 50_000_000 + 'tail')").await;
    assert_eq!(execution["stdout_bytes"], 50_000_009);
    assert_eq!(execution["truncated"], true);
    let stdout = execution["stdout"].as_str().unwrap();
    assert!(
        stdout.len() < (1 << 20) + 100
            && stdout.starts_with("headxx")
            && stdout.ends_with("xxtail\n")
    );
}

#[tokio::test]
async fn env_and_stdin_hold_for_one_cell_and_are_never_stored() {
    let caller = caller();
    let session = caller.session().await;
    let body = json!({"code": "import os\ninput('? ') + os.environ['TOKEN']", "env": {"TOKEN": "s3cr3t-env"}, "stdin": "s3cr3t-in\nmore"});
    let execution = session.exec_with(body).await;
    assert_eq!(execution["text"], "? \n's3cr3t-ins3cr3t-env'");
    assert_eq!(
        session.text("os.environ.get('TOKEN'), __import__('sys').stdin.read()").await,
        "(None, '')"
    );
    let hint = session.exec("input()").await;
    assert_eq!(hint["error_detail"]["name"], "EOFError");
    assert!(hint["error_detail"]["message"].as_str().unwrap().contains("stdin"));
    let quiet = session
        .exec_with(
            json!({"code": "1", "env": {"TOKEN": "never-stored-1"}, "stdin": "never-stored-2"}),
        )
        .await;
    let (_, run) = caller.get(&format!("/v1/runs/{}", quiet["run_id"].as_str().unwrap())).await;
    assert!(!run.to_string().contains("never-stored"), "{run}");
}

#[tokio::test]
async fn cells_of_several_callers_never_interleave() {
    let caller = caller();
    let session = caller.session().await;
    session.exec("log = []").await;
    let cell = |number: usize| {
        let session = &session;
        async move {
            let code = format!(
                "import time\nfor i in range(3):\n    print({number}, i); log.append({number}); time.sleep(0.02)"
            );
            session.exec(&code).await
        }
    };
    let executions = futures::future::join_all((0..8).map(cell)).await;
    for (number, execution) in executions.iter().enumerate() {
        assert_eq!(execution["stdout"], format!("{number} 0\n{number} 1\n{number} 2\n"));
    }
    assert_eq!(
        session.text("[len(set(log[i:i + 3])) for i in range(0, 24, 3)]").await,
        format!("[{}]", ["1"; 8].join(", "))
    );
}

#[tokio::test]
async fn output_right_after_a_figure_is_output_of_its_cell() {
    let caller = caller();
    let session = caller.session().await;
    for number in 0..20 {
        let execution = session
            .exec(
                "from IPython.display import display\ndisplay({'a': 1}, raw=False); print('after')",
            )
            .await;
        assert_eq!(
            (&execution["stdout"], &execution["late_output"]),
            (&json!("after\n"), &Value::Null),
            "{number}"
        );
    }
}

#[tokio::test]
async fn threads_may_display_at_once_and_an_interrupt_breaks_no_frame() {
    let caller = caller();
    let session = caller.session().await;
    session.exec("x = 1").await;
    let code = "import threading\nfrom IPython.display import HTML, display\ndef show():\n    for _ in range(20): display(HTML('x' * 200_000))\n\
         threads = [threading.Thread(target=show) for _ in range(3)]\n[t.start() for t in threads]; show(); [t.join() for t in threads]; None";
    let execution = session.exec(code).await;
    assert_eq!(
        (&execution["status"], &execution["state_lost"]),
        (&json!("success"), &json!(false)),
        "{}",
        execution["error"]
    );
    for _ in 0..5 {
        let code = "while True: display(HTML('x' * 900_000))";
        let stopped = session.exec_with(json!({"code": code, "timeout_seconds": 0.3})).await;
        assert_eq!(
            (&stopped["status"], &stopped["state_lost"]),
            (&json!("timeout"), &json!(false)),
            "{}",
            stopped["error"]
        );
    }
    assert_eq!(session.text("x").await, "1");
}

#[tokio::test]
async fn code_over_its_limit_and_times_out_of_range_are_problems() {
    let caller = caller();
    let session = caller.session().await;
    let path = session.path("/exec");
    let long = caller.post(&path, json!({"code": "#".repeat((1 << 20) + 1)})).await;
    assert_eq!(problem(&long), (413, "code_too_long".into()));
    for seconds in [json!(0), json!(601)] {
        let out = caller.post(&path, json!({"code": "1", "timeout_seconds": seconds})).await;
        assert_eq!(problem(&out), (422, "out_of_range".into()));
        assert_eq!(out.1["errors"][0]["pointer"], "/timeout_seconds");
    }
    let negative = caller.post(&path, json!({"code": "1", "timeout_seconds": -1})).await;
    assert_eq!(problem(&negative), (422, "invalid".into()));
}

#[tokio::test]
async fn a_caller_who_goes_away_interrupts_the_cell_and_keeps_the_state() {
    let caller = caller();
    let session = caller.session().await;
    session.exec("x = 1").await;
    let impatient = caller
        .request(reqwest::Method::POST, &session.path("/exec"))
        .json(&json!({"code": "x = 2\nimport time; time.sleep(25)"}))
        .timeout(std::time::Duration::from_millis(700));
    assert!(impatient.send().await.is_err());
    let started = std::time::Instant::now();
    assert_eq!(session.text("x").await, "2");
    assert!(started.elapsed().as_secs() < 5);
    let (_, runs) = caller.get(&format!("/v1/runs?session_id={}", session.id)).await;
    let statuses: Vec<_> = runs["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|run| run["status"].as_str().unwrap())
        .collect();
    assert_eq!(statuses, ["success", "cancelled", "success"]);
}

#[tokio::test]
async fn a_shell_command_runs_where_the_session_is() {
    let caller = caller();
    let session = caller.session().await;
    session.exec("import os; os.makedirs('sub'); os.chdir('sub'); x = 3").await;
    let shell = |body: Value| {
        let path = session.path("/shell");
        let caller = &caller;
        async move { caller.post(&path, body).await.1 }
    };
    let execution = shell(json!({"command": "pwd; cat; echo $A >&2; echo made > f.txt; exit 7", "env": {"A": "b"}, "stdin": "in", "keep_files": true})).await;
    assert_eq!(
        (&execution["stdout"], &execution["stderr"]),
        (&json!("/files/sub\nin"), &json!("b\n"))
    );
    assert_eq!(
        end(&execution),
        json!({"status": "error", "exit_code": 7, "state_lost": false, "failure": null})
    );
    assert_eq!(execution["output_files"][0]["path"], "sub/f.txt");
    assert_eq!(execution["execution_count"], Value::Null);
    let killed = shell(json!({"command": "kill -9 $$"})).await;
    assert_eq!(killed["exit_code"], 137);
    let slow = shell(json!({"command": "sleep 60", "timeout_seconds": 0.3})).await;
    assert_eq!(
        end(&slow),
        json!({"status": "timeout", "exit_code": 1, "state_lost": false, "failure": null})
    );
    assert_eq!(session.text("x").await, "3");
    let (_, run) = caller.get(&format!("/v1/runs/{}", execution["run_id"].as_str().unwrap())).await;
    assert_eq!(run["kind"], "shell");
}

#[tokio::test]
async fn an_interrupt_stops_the_cell_and_keeps_the_state() {
    let caller = caller();
    let session = caller.session().await;
    session.exec("x = 1").await;
    let running = session.exec("open('begun', 'w').close()\nimport time; time.sleep(60)");
    let interrupting = async {
        while session.download("begun").await.status() != 200 {
            tokio::task::yield_now().await;
        }
        crate::support::send(caller.request(reqwest::Method::POST, &session.path("/interrupt")))
            .await
            .status()
    };
    let (execution, status) = tokio::join!(running, interrupting);
    assert_eq!(status, 204);
    assert_eq!(
        end(&execution),
        json!({"status": "error", "exit_code": 130, "state_lost": false, "failure": "interrupted"})
    );
    let idle =
        crate::support::send(caller.request(reqwest::Method::POST, &session.path("/interrupt")))
            .await;
    assert_eq!(idle.status(), 204);
    assert_eq!(session.text("x").await, "1", "an interrupt of nothing stops no later cell");
}

#[tokio::test]
async fn what_threads_of_earlier_cells_print_is_no_output_of_the_next_cell() {
    let caller = caller();
    let session = caller.session().await;
    session.exec("import threading\ndef late():\n    print('late', flush=True); open('printed', 'w').close()\nthreading.Timer(0.2, late).start()").await;
    while session.download("printed").await.status() != 200 {
        tokio::task::yield_now().await;
    }
    let execution = session.exec("print('mine')").await;
    assert_eq!(
        (&execution["stdout"], &execution["late_output"]),
        (&json!("mine\n"), &json!("late\n"))
    );
    assert_eq!(session.exec("1").await["late_output"], Value::Null);
}

#[tokio::test]
async fn a_thread_that_prints_on_while_a_later_cell_runs_never_mixes_into_it() {
    let caller = caller();
    let session = caller.session().await;
    let code = "import sys, threading, time\ndef on():\n    while True: print('theirs'); print('theirs', file=sys.stderr); time.sleep(0.01)\nthreading.Thread(target=on, daemon=True).start()";
    session.exec(code).await;
    let code = "import sys\nmine = threading.Thread(target=lambda: print('my thread'))\nfor i in range(20): print('mine'); time.sleep(0.01)\nmine.start(); mine.join(); sys.stdout.flush(); sys.stdout.write('end'); None";
    let execution = session.exec(code).await;
    assert_eq!(
        execution["stdout"],
        format!("{}my thread\nend", "mine\n".repeat(20)),
        "{execution}"
    );
    assert_eq!(execution["stderr"], "");
    assert!(
        execution["late_output"].as_str().unwrap().matches("theirs").count() > 10,
        "{execution}"
    );
}
