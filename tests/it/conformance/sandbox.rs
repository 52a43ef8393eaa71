//! What sandboxes of every provider do, seen through the service.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::{can, has_begun, of};
use crate::support::{Caller, Session, double, must_come, problem, send, server, sse};

every_provider! {
    a_cell_out_of_time_is_told_and_its_variables_stay,
    a_cell_that_ignores_interrupts_is_ended_and_says_what_it_cost,
    a_running_cell_is_interrupted_and_its_variables_stay,
    an_error_is_told_in_parts_and_the_session_goes_on,
    an_interpreter_that_ends_is_made_anew_with_the_files_and_the_environment,
    cells_of_one_session_wait_for_each_other_in_order,
    environment_and_input_of_a_cell_are_its_alone,
    exit_codes_are_the_codes_own,
    limits_that_cannot_be_are_refused,
    long_output_keeps_both_ends_and_counts_all,
    figures_are_shown_as_pictures,
    output_is_told_while_it_comes,
    output_is_exact_and_its_streams_are_told_apart,
    programs_print_to_the_same_streams,
    rich_results_come_in_order_with_their_types,
    sessions_see_nothing_of_each_other,
    shells_give_their_exit_code_and_share_the_files,
    shells_out_of_time_end_with_all_that_came_of_them,
    shells_take_environment_and_input,
    syntax_errors_are_told_with_their_line,
    the_value_of_the_last_expression_is_the_main_result,
    variables_live_from_cell_to_cell,
    what_is_ended_is_over_at_once_busy_or_not,
}

async fn variables_live_from_cell_to_cell(caller: &Caller) {
    let session = caller.session().await;
    let first = session.exec("x = [1, 2]\ndef double(y): return [2 * v for v in y]").await;
    assert_eq!(of(&first, ["status", "text"]), [&json!("success"), &json!("")], "{first}");
    let second = session.exec("import asyncio\nawait asyncio.sleep(0)\ndouble(x)").await;
    assert_eq!(second["text"], "[2, 4]", "{second}");
    let count = |execution: &Value| execution["execution_count"].as_u64().unwrap();
    assert!(count(&second) > count(&first));
    assert_eq!(second["state_lost"], false);
}

async fn the_value_of_the_last_expression_is_the_main_result(caller: &Caller) {
    let session = caller.session().await;
    for (code, value) in
        [("1 + 1", Some("2")), ("y = 3", None), ("None", None), ("(1,\n 2)", Some("(1, 2)"))]
    {
        let execution = session.exec(code).await;
        let outputs = execution["outputs"].as_array().unwrap();
        let main: Vec<&str> = outputs
            .iter()
            .filter(|output| output["main"] == true)
            .map(|output| output["data"]["text/plain"].as_str().unwrap())
            .collect();
        assert_eq!(main, value.into_iter().collect::<Vec<_>>(), "{execution}");
        assert_eq!(of(&execution, ["status", "exit_code"]), [&json!("success"), &json!(0)]);
        assert!(execution["duration_ms"].as_f64().unwrap() > 0.0);
    }
}

async fn output_is_exact_and_its_streams_are_told_apart(caller: &Caller) {
    let session = caller.session().await;
    let code = "import sys\nprint('a\\n\\nb\\n\\n\\nc', end='')\nfor i in range(3): print(f'\\r{i}', end='')\nprint('\\x00é 😀', end='')\nprint('oops', file=sys.stderr)";
    let execution = session.exec(code).await;
    assert_eq!(execution["stdout"], "a\n\nb\n\n\nc\r0\r1\r2\0é 😀", "{execution}");
    assert_eq!(execution["stderr"], "oops\n");
    let bytes = execution["stdout"].as_str().unwrap().len();
    assert_eq!(of(&execution, ["stdout_bytes", "stderr_bytes"]), [&json!(bytes), &json!(5)]);
    assert_eq!(of(&execution, ["truncated", "lossy"]), [&json!(false), &json!(false)]);
}

async fn programs_print_to_the_same_streams(caller: &Caller) {
    let session = caller.session().await;
    if !can(caller, "shell").await {
        let refused = session.exec("import subprocess\nsubprocess.run('true', shell=True)").await;
        assert_eq!(refused["status"], "error", "{refused}");
        return;
    }
    let children = "import subprocess\nsubprocess.run('echo out; echo err >&2', shell=True)";
    let execution = session.exec(children).await;
    assert_eq!(of(&execution, ["stdout", "stderr"]), [&json!("out\n"), &json!("err\n")]);
}

async fn long_output_keeps_both_ends_and_counts_all(caller: &Caller) {
    let session = caller.session_with(json!({"limits": {"output_bytes": 1024}})).await;
    let execution = session.exec("print('begin' + 'x' * 2_000_000 + 'end')").await;
    let stdout = execution["stdout"].as_str().unwrap();
    assert!(stdout.starts_with("beginx") && stdout.ends_with("xend\n") && stdout.len() < 2000);
    assert_eq!(of(&execution, ["stdout_bytes", "truncated"]), [&json!(2_000_009), &json!(true)]);
    assert_eq!(session.text("1").await, "1");
}

async fn an_error_is_told_in_parts_and_the_session_goes_on(caller: &Caller) {
    let session = caller.session().await;
    let execution = session.exec("x = 7\nprint('before')\n1 / 0").await;
    assert_eq!(of(&execution, ["status", "exit_code"]), [&json!("error"), &json!(1)]);
    let detail = &execution["error_detail"];
    let told = of(detail, ["name", "message", "line"]);
    assert_eq!(told, [&json!("ZeroDivisionError"), &json!("division by zero"), &json!(3)]);
    let error = execution["error"].as_str().unwrap();
    assert!(error.contains("ZeroDivisionError: division by zero"), "{error}");
    assert!(!error.contains("interpreterd") && !error.contains("exec("), "{error}");
    assert!(execution["text"].as_str().unwrap().starts_with("before\n"));
    assert_eq!((&execution["failure"], session.text("x").await), (&Value::Null, "7".into()));
}

async fn syntax_errors_are_told_with_their_line(caller: &Caller) {
    let session = caller.session().await;
    let execution = session.exec("y = 1\ndef f(:\n  pass").await;
    let told = of(&execution["error_detail"], ["name", "line"]);
    assert_eq!(told[0], "SyntaxError", "{execution}");
    assert_eq!(execution["status"], "error");
    let after = session.exec("y").await;
    assert_eq!(after["error_detail"]["name"], "NameError", "nothing of it has run");
}

async fn exit_codes_are_the_codes_own(caller: &Caller) {
    let session = caller.session().await;
    for (code, status, exit_code) in [
        ("import sys\nsys.exit(3)", "error", 3),
        ("import sys\nsys.exit('why')", "error", 1),
        ("import sys\nsys.exit(0)", "success", 0),
        ("import sys\nsys.exit()", "success", 0),
        ("import sys\nsys.exit(-1)", "error", 255),
        ("raise KeyboardInterrupt", "error", 130),
    ] {
        let execution = session.exec(code).await;
        let told = of(&execution, ["status", "exit_code"]);
        assert_eq!(told, [&json!(status), &json!(exit_code)], "{code}: {execution}");
    }
    assert_eq!(session.text("1").await, "1");
}

async fn a_cell_out_of_time_is_told_and_its_variables_stay(caller: &Caller) {
    let session = caller.session().await;
    session.exec("x = 7").await;
    let cell = json!({"code": "print('begun', flush=True)\nimport time\ntime.sleep(60)", "timeout_seconds": 1});
    let execution = session.exec_with(cell).await;
    assert_eq!(of(&execution, ["status", "stdout"]), [&json!("timeout"), &json!("begun\n")]);
    let duration = execution["duration_ms"].as_f64().unwrap();
    assert!((1000.0..20_000.0).contains(&duration), "{duration}");
    assert_eq!(execution["exit_code"], 1);
    let after = session.exec("x").await;
    let lost = execution["state_lost"] == true || after["state_lost"] == true;
    assert_eq!((after["text"] == "7", lost), (true, false), "{after}");
    let busy = json!({"code": "while True: pass", "timeout_seconds": 1});
    let execution = session.exec_with(busy).await;
    let kept = can(caller, "state_after_timeout").await;
    let told = of(&execution, ["status", "state_lost"]);
    assert_eq!(told, [&json!("timeout"), &json!(!kept)], "{execution}");
    assert_eq!(session.text("'x' in globals()").await, if kept { "True" } else { "False" });
}

async fn a_cell_that_ignores_interrupts_is_ended_and_says_what_it_cost(caller: &Caller) {
    let session = caller.session_with(json!({"env": {"KEPT": "yes"}})).await;
    session.exec("x = 7").await;
    let code = "import time\nwhile True:\n  try:\n    while True: time.sleep(0.01)\n  except BaseException: pass";
    let execution = session.exec_with(json!({"code": code, "timeout_seconds": 1})).await;
    assert_eq!(of(&execution, ["status", "state_lost"]), [&json!("timeout"), &json!(true)]);
    let after = session.exec("import os\n'x' in globals(), os.environ['KEPT'], os.getcwd()").await;
    let (_, told) = caller.get(&session.path("")).await;
    let expected = format!("(False, 'yes', '{}')", told["files_dir"].as_str().unwrap());
    assert_eq!(after["text"], expected, "{after}");
}

async fn a_running_cell_is_interrupted_and_its_variables_stay(caller: &Caller) {
    let session = caller.session().await;
    session.exec("x = 7").await;
    let code = "open('begun', 'w').close()\nimport time\ntime.sleep(60)";
    let mut running = std::pin::pin!(session.exec(code));
    let interrupting = async {
        has_begun(&session, "begun").await;
        loop {
            let request = caller.request(Method::POST, &session.path("/interrupt"));
            assert!(send(request).await.status().is_success());
            tokio::task::yield_now().await;
        }
    };
    let execution = tokio::select! {
        execution = &mut running => execution,
        () = interrupting => unreachable!("it goes on until the cell has ended"),
    };
    assert_eq!(of(&execution, ["status", "state_lost"]), [&json!("error"), &json!(false)]);
    assert_eq!(execution["failure"]["kind"], "interrupted", "{execution}");
    assert_eq!(session.text("x").await, "7");
}

async fn an_interpreter_that_ends_is_made_anew_with_the_files_and_the_environment(caller: &Caller) {
    let session = caller.session_with(json!({"env": {"KEPT": "yes"}})).await;
    session.exec("x = 7\nopen('kept.txt', 'w').write('here')").await;
    session.put("put.txt", "in").await;
    // in WebAssembly an exit is an exception, and an address beyond the memory is what ends it
    let is_process = can(caller, "shell").await;
    let end = if is_process {
        "import os\nos._exit(3)"
    } else {
        "import ctypes\nctypes.string_at(0xfffffff0, 64)"
    };
    let execution = session.exec(&format!("print('last words', flush=True)\n{end}")).await;
    // a server that cannot be stopped has all that a sandbox has
    let kept = can(caller, "state_after_timeout").await;
    let told = of(&execution, ["status", "state_lost", "files_lost"]);
    assert_eq!(told, [&json!("error"), &json!(true), &json!(!kept)], "{execution}");
    assert_eq!(
        of(&execution["failure"], ["kind", "retry_safe"]),
        [&json!("killed"), &json!(false)]
    );
    let code = "import os\n'x' in globals(), os.environ['KEPT'], open('put.txt').read(), os.path.exists('kept.txt')";
    let expected = if kept { "(False, 'yes', 'in', True)" } else { "(False, 'yes', 'in', False)" };
    assert_eq!(session.text(code).await, expected);
    if is_process {
        assert_eq!(execution["stdout"], "last words\n");
    } else if kept {
        assert!(execution["stdout"].as_str().unwrap().starts_with("last words\n"));
    }
    let next = session.exec("1").await;
    assert_eq!(of(&next, ["text", "state_lost"]), [&json!("1"), &json!(false)]);
}

async fn environment_and_input_of_a_cell_are_its_alone(caller: &Caller) {
    let value = "quote ' \" back \\ line\nend";
    let session = caller.session_with(json!({"env": {"OWN": value}})).await;
    assert_eq!(session.text("import os, json\njson.dumps(os.environ['OWN']) == json.dumps('quote \\' \" back \\\\ line\\nend')").await, "True");
    let cell = json!({
        "code": "import os, sys\n(os.environ['OWN'], os.environ['LENT'], input(), sys.stdin.read())",
        "env": {"LENT": "a'b", "OWN": "other"}, "stdin": "first\nrest\n",
    });
    let execution = session.exec_with(cell).await;
    assert_eq!(execution["text"], "('other', \"a'b\", 'first', 'rest\\n')", "{execution}");
    let code = "import os\nos.environ['OWN'][:5], os.environ.get('LENT'), 'input' in globals()";
    assert_eq!(session.text(code).await, "('quote', None, False)");
    let execution = session.exec("input()").await;
    assert_eq!(execution["status"], "error", "there is nothing to read, and nobody to wait for");
}

async fn rich_results_come_in_order_with_their_types(caller: &Caller) {
    let session = caller.session().await;
    let code = "
class Shown:
    def _repr_html_(self): return '<b>bold</b>'
    def _repr_markdown_(self): return '*m*'
    def _repr_svg_(self): return '<svg/>'
    def _repr_latex_(self): return '$x$'
    def _repr_json_(self): return {'a': [1, None]}
    def __repr__(self): return 'shown'
display(Shown())
Shown()";
    let execution = session.exec(code).await;
    assert_eq!(execution["status"], "success", "{execution}");
    let outputs = execution["outputs"].as_array().unwrap();
    let mains: Vec<bool> = outputs.iter().map(|output| output["main"] == true).collect();
    assert_eq!(mains, [false, true]);
    for shown in [&outputs[0], &outputs[1]] {
        let expected = json!({
            "text/plain": "shown", "text/html": "<b>bold</b>", "text/markdown": "*m*",
            "image/svg+xml": "<svg/>", "text/latex": "$x$", "application/json": {"a": [1, null]}
        });
        for (mime, value) in expected.as_object().unwrap() {
            assert_eq!(&shown["data"][mime], value, "{mime}: {shown}");
        }
    }
    assert_eq!(session.exec("1").await["outputs"].as_array().unwrap().len(), 1, "nothing is stale");
}

/// The least of matplotlib, where the registries have none for the interpreter.
const STUB: &str = "
class Figure:
    axes = lines = images = texts = [1]
    def savefig(self, file, **_): file.write(bytes.fromhex('89504e470d0a1a0a'))
class Settings(dict): pass
rcParams = Settings(backend='agg')
";

async fn figures_are_shown_as_pictures(caller: &Caller) {
    let session = caller.session().await;
    let is_stub = session.exec("import matplotlib").await["status"] == "error";
    if is_stub {
        session.put("matplotlib/__init__.py", STUB).await;
        session.put("matplotlib/figure.py", "from matplotlib import Figure").await;
        let pyplot = "from matplotlib.figure import Figure\nopen_figures = []\ndef plot(*_): open_figures.append(Figure())\ndef get_fignums(): return list(range(len(open_figures)))\ndef figure(number): return open_figures[number]\ndef close(*_): open_figures.clear()\ndef switch_backend(name): pass";
        session.put("matplotlib/pyplot.py", pyplot).await;
        session.exec("import importlib\nimportlib.invalidate_caches()").await;
    }
    let show = if is_stub { "" } else { "plt.show()" };
    let code = format!(
        "import matplotlib.pyplot as plt\ndisplay('first')\nplt.plot([1, 2])\n{show}\n'value'"
    );
    let execution = session.exec(&code).await;
    assert_eq!(execution["status"], "success", "{execution}");
    let outputs = execution["outputs"].as_array().unwrap();
    let pictures: Vec<_> =
        outputs.iter().filter_map(|output| output["data"]["image/png"].as_str()).collect();
    assert_eq!(pictures.len(), 1, "{execution}");
    assert!(pictures[0].starts_with("iVBOR"));
    if !is_stub {
        let kinds =
            outputs.iter().map(|output| (output["data"]["image/png"].is_string(), &output["main"]));
        let order = [(false, &json!(false)), (true, &json!(false)), (false, &json!(true))];
        assert_eq!(kinds.collect::<Vec<_>>(), order, "{execution}");
    }
    assert_eq!(session.exec("1").await["outputs"].as_array().unwrap().len(), 1, "nothing is stale");
}

async fn output_is_told_while_it_comes(caller: &Caller) {
    if !can(caller, "streaming").await {
        return output_is_told_when_it_is_over(caller).await;
    }
    let session = caller.session().await;
    let code = "import os, time\nprint('first', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('second')";
    let request = caller.request(Method::POST, &session.path("/exec"));
    let request = request.header("accept", "text/event-stream").json(&json!({"code": code}));
    let mut events = sse::Events::of(send(request).await);
    let is_stdout = |event: &sse::SseEvent| event.name == "stdout";
    let mut told = must_come(events.until(is_stdout)).await;
    session.put("go", "").await;
    told.extend(must_come(events.until(|_| false)).await);
    let events = told;
    let printed: String = events
        .iter()
        .filter(|event| event.name == "stdout")
        .map(|event| event.data["text"].as_str().unwrap())
        .collect();
    assert_eq!(printed, "first\nsecond\n");
    let last = events.last().unwrap();
    assert_eq!(of(&last.data, ["status", "stdout"]), [&json!("success"), &json!(printed)]);
}

async fn output_is_told_when_it_is_over(caller: &Caller) {
    let session = caller.session().await;
    let request = caller.request(Method::POST, &session.path("/exec"));
    let request = request.header("accept", "text/event-stream").json(&json!({"code": "print(1)"}));
    let events = must_come(sse::Events::of(send(request).await).until(|_| false)).await;
    let last = events.last().unwrap();
    assert_eq!(of(&last.data, ["status", "stdout"]), [&json!("success"), &json!("1\n")]);
}

async fn cells_of_one_session_wait_for_each_other_in_order(caller: &Caller) {
    let session = caller.session().await;
    session.exec("seen = []").await;
    let cell = |number: usize| {
        let code = format!(
            "seen.append('b{number}')\nimport time\ntime.sleep(0.05)\nseen.append('e{number}')"
        );
        let session = &session;
        async move { session.exec(&code).await["status"].clone() }
    };
    let all = futures::future::join_all((0..4).map(cell)).await;
    assert!(all.iter().all(|status| status == "success"), "{all:?}");
    let code =
        "[pair for pair in zip(seen[::2], seen[1::2]) if pair[0][1:] != pair[1][1:]], len(seen)";
    assert_eq!(session.text(code).await, "([], 8)");
}

/// Whether there is none: then that is said, and nothing is run.
async fn is_without_shell(session: &Session<'_>) -> bool {
    if can(session.caller, "shell").await {
        return false;
    }
    let command = json!({"command": "echo 1"});
    let refused = session.caller.post(&session.path("/shell"), command).await;
    assert_eq!(problem(&refused), (409, "provider_cannot".into()));
    true
}

async fn shell(session: &Session<'_>, body: Value) -> Value {
    let (status, execution) = session.caller.post(&session.path("/shell"), body).await;
    assert_eq!(status, StatusCode::OK, "{execution}");
    execution
}

async fn shells_give_their_exit_code_and_share_the_files(caller: &Caller) {
    let session = caller.session().await;
    if is_without_shell(&session).await {
        return;
    }
    session.exec("open('a.txt', 'w').write('one')").await;
    let command = "cat a.txt; echo two >> a.txt; pwd; echo oops >&2; exit 3";
    let execution = shell(&session, json!({"command": command})).await;
    let (_, told) = caller.get(&session.path("")).await;
    let stdout = format!("one{}\n", told["files_dir"].as_str().unwrap());
    assert_eq!(of(&execution, ["stdout", "stderr"]), [&json!(stdout), &json!("oops\n")]);
    let told = of(&execution, ["status", "exit_code", "execution_count"]);
    assert_eq!(told, [&json!("error"), &json!(3), &Value::Null]);
    assert_eq!(execution["files"][0]["path"], "a.txt");
    assert_eq!(session.text("open('a.txt').read()").await.trim_matches('\''), "onetwo\\n");
    let execution = shell(&session, json!({"command": "kill -9 $$"})).await;
    assert_eq!(of(&execution, ["status", "exit_code"]), [&json!("error"), &json!(137)]);
}

async fn shells_take_environment_and_input(caller: &Caller) {
    let session = caller.session_with(json!({"env": {"OWN": "o'wn"}})).await;
    if is_without_shell(&session).await {
        return;
    }
    let command = json!({"command": "echo \"$OWN/$LENT\"; cat", "env": {"LENT": "l\"ent"}, "stdin": "in\nput"});
    let execution = shell(&session, command).await;
    assert_eq!(execution["stdout"], "o'wn/l\"ent\nin\nput", "{execution}");
    let execution = shell(&session, json!({"command": "echo \"[$LENT]\"; cat"})).await;
    assert_eq!(execution["stdout"], "[]\n", "{execution}");
    let long = format!("echo {} | wc -c", "x".repeat(200_000));
    assert_eq!(shell(&session, json!({"command": long})).await["stdout"], "200001\n");
}

async fn shells_out_of_time_end_with_all_that_came_of_them(caller: &Caller) {
    let session = caller.session().await;
    if is_without_shell(&session).await {
        return;
    }
    session.exec("x = 7").await;
    let command = "echo begun; setsid sleep 4321 & sleep 4321";
    let execution = shell(&session, json!({"command": command, "timeout_seconds": 1})).await;
    assert_eq!(of(&execution, ["status", "stdout"]), [&json!("timeout"), &json!("begun\n")]);
    let left = "grep -lz '^4321$' /proc/[0-9]*/cmdline 2>/dev/null | wc -l";
    assert_eq!(shell(&session, json!({"command": left})).await["stdout"], "0\n");
    assert_eq!(session.text("x").await, "7", "the kernel is another process");
}

async fn sessions_see_nothing_of_each_other(caller: &Caller) {
    let (one, other) = (caller.session().await, caller.session().await);
    one.exec("x = 7\nopen('secret.txt', 'w').write('x')").await;
    let code = "import os\n'x' in globals(), os.listdir()";
    assert_eq!(other.text(code).await, "(False, [])");
    assert_eq!(other.download("secret.txt").await.status(), StatusCode::NOT_FOUND);
}

async fn what_is_ended_is_over_at_once_busy_or_not(caller: &Caller) {
    let session = caller.session().await;
    let (path, code) =
        (session.path("/exec"), "open('begun', 'w').close()\nimport time\ntime.sleep(60)");
    let running = caller.post(&path, json!({"code": code}));
    let ending = async {
        has_begun(&session, "begun").await;
        assert_eq!(session.delete().await, StatusCode::NO_CONTENT);
    };
    let ((status, execution), ()) = must_come(async { tokio::join!(running, ending) }).await;
    if status == StatusCode::GONE && !can(caller, "streaming").await {
        // nobody could see whether it had begun, and it had not
        assert_eq!(problem(&(status, execution)).1, "session_deleted");
    } else {
        let told = (status, &execution["state_lost"]);
        assert_eq!(told, (StatusCode::OK, &json!(true)), "{execution}");
        assert_ne!(execution["status"], "success");
    }
    let after = caller.post(&session.path("/exec"), json!({"code": "1"})).await;
    assert_eq!(problem(&after), (410, "session_deleted".into()));
    assert_eq!(session.delete().await, StatusCode::NO_CONTENT);
}

async fn limits_that_cannot_be_are_refused(caller: &Caller) {
    for limits in [
        json!({"output_bytes": 1}),
        json!({"output_bytes": 1_u64 << 40}),
        json!({"memory_bytes": 1}),
    ] {
        let (status, answer) = caller.post("/v1/sessions", json!({"limits": limits})).await;
        assert!(matches!(status.as_u16(), 409 | 422), "{answer}");
    }
}
