//! What programs do to the interpreter that they share with our kernel: by honest means, mostly.

use reqwest::StatusCode;
use serde_json::{Value, json};

use super::{COMMAND, furnished, in_machine, losses, machine_of};
use crate::support::agentcore;
use crate::support::{Caller, Session, problem};

fn caller() -> Caller {
    agentcore::shared().1.caller()
}

async fn timed(session: &Session<'_>, code: &str, seconds: f64) -> Value {
    session.exec_with(json!({"code": code, "timeout_seconds": seconds})).await
}

#[tokio::test]
async fn a_cell_that_awaits_has_its_loop_from_the_first_line_on() {
    let caller = caller();
    let session = caller.session().await;
    let code = "import asyncio\nasync def f(i): return i\ntasks = [asyncio.create_task(f(i)) for i in range(3)]\nawait asyncio.gather(*tasks)";
    assert_eq!(session.text(code).await, "[0, 1, 2]");
    assert_eq!(session.text("asyncio.run(f(4))").await, "4");
    assert_eq!(session.text("await f(5)").await, "5");
}

#[tokio::test]
async fn a_cell_that_was_ended_does_not_go_on_in_the_next_one() {
    let caller = caller();
    let session = caller.session().await;
    let code = "import asyncio\nwhile True:\n  await asyncio.sleep(0.05)\n  print('late')";
    assert_eq!(timed(&session, code, 0.5).await["status"], "timeout");
    let next = session.exec("await asyncio.sleep(0.3)\nprint('mine')").await;
    assert_eq!((&next["stdout"], next.get("late_output")), (&json!("mine\n"), None), "{next}");
}

#[tokio::test]
async fn patched_modules_and_builtins_do_not_reach_our_kernel() {
    let caller = caller();
    let session = caller.session().await;
    let id = machine_of(&session).await;
    for (patch, undo) in [
        (
            "import builtins\nkept = builtins.print\nbuiltins.print = lambda *a, **k: None",
            "builtins.print = kept",
        ),
        ("import builtins\nkept = builtins.open\nbuiltins.open = None", "builtins.open = kept"),
        (
            "import json\nkept = json.dumps\njson.dumps = lambda *a, **k: kept(*a, indent=2)",
            "json.dumps = kept",
        ),
        (
            "import os\nkept = os.path.exists\nos.path.exists = lambda path: True",
            "os.path.exists = kept",
        ),
        ("import os\nkept = os.open\nos.open = None", "os.open = kept"),
        (
            "import time\nkept = time.monotonic\ntime.monotonic = iter([1, 2, 3]).__next__",
            "time.monotonic = kept",
        ),
        ("import threading\nkept = threading.Lock\nthreading.Lock = None", "threading.Lock = kept"),
    ] {
        assert_eq!(session.exec(patch).await["status"], "success", "{patch}");
        assert_eq!(session.text("6 * 7").await, "42", "{patch}");
        let late = timed(&session, "while True: pass", 0.5).await;
        assert_eq!(
            (&late["status"], losses(&late)),
            (&json!("timeout"), (false, false)),
            "{patch}"
        );
        assert_eq!(session.exec(undo).await["status"], "success", "{undo}");
    }
    assert_eq!(machine_of(&session).await, id);
}

#[tokio::test]
async fn what_threads_of_earlier_cells_print_is_told_apart() {
    let caller = caller();
    let session = caller.session().await;
    let code = "import threading, time\ndef tick():\n  print('tick')\n  timer = threading.Timer(0.05, tick)\n  timer.daemon = True\n  timer.start()\ntick()\ntime.sleep(0.12)";
    let first = session.exec(code).await;
    assert!(first["stdout"].as_str().unwrap().starts_with("tick\ntick\n"), "{first}");
    let next = session.exec("time.sleep(0.2)\nprint('mine')").await;
    assert_eq!(next["stdout"], "mine\n", "{next}");
    assert!(next["late_output"].as_str().unwrap().starts_with("tick\n"), "{next}");
}

#[tokio::test]
async fn streams_that_a_cell_broke_are_whole_in_the_next_one() {
    let caller = caller();
    let session = caller.session().await;
    for code in [
        "import os\nprint('unsent', end='')\nos.close(1)",
        "import sys\nsys.stdout.close()",
        "import sys\nsys.stdout = None",
        "import os\nos.dup2(os.open('/dev/null', os.O_WRONLY), 1)",
        "import sys\nsys.stdout.reconfigure(encoding='ascii')",
    ] {
        session.exec(code).await;
        let next = session.exec("print('whole é')").await;
        assert_eq!(
            (&next["stdout"], losses(&next)),
            (&json!("whole é\n"), (false, false)),
            "{code}"
        );
    }
    let code = "import logging\nlogging.basicConfig()\nlogging.warning('one')";
    assert_eq!(session.exec(code).await["stderr"], "WARNING:root:one\n");
    assert_eq!(session.exec("logging.warning('two')").await["stderr"], "WARNING:root:two\n");
}

#[tokio::test]
async fn programs_see_no_thread_of_ours() {
    let caller = caller();
    let session = caller.session().await;
    let code = "import threading\nothers = [t for t in threading.enumerate() if t is not threading.main_thread()]\nfor thread in others: thread.join()\nothers";
    assert_eq!(session.text(code).await, "[]");
}

#[tokio::test]
async fn what_is_shown_is_json_whatever_it_is() {
    let caller = caller();
    let session = caller.session().await;
    let code = "display({'application/json': {'n': 2**5000, 'nan': float('nan'), 'text': '\\ud800'}}, raw=True)";
    let shown = session.exec(code).await;
    let value = &shown["outputs"][0]["data"]["application/json"];
    assert_eq!((&shown["status"], &value["nan"]), (&json!("success"), &json!("nan")), "{shown}");
    assert!(value["n"].as_str().unwrap().starts_with("0x1000"));
    let code = "handle = display('one', display_id=True)\nhandle.update('two')";
    let updated = session.exec(code).await;
    let outputs = updated["outputs"].as_array().unwrap();
    assert_eq!((outputs.len(), &outputs[0]["data"]["text/plain"]), (1, &json!("'two'")));
}

#[tokio::test]
async fn a_kernel_that_a_program_threw_away_is_made_anew_where_it_was() {
    let caller = caller();
    let session = caller.session().await;
    session.exec("x = 7\nopen('kept.txt', 'w').close()").await;
    session.exec("import sys\nfor name in [name for name in sys.modules if name.startswith('_interpreterd')]: del sys.modules[name]").await;
    let next = session.exec("import os\n'x' in globals(), os.listdir()").await;
    assert_eq!((&next["text"], losses(&next)), (&json!("(False, ['kept.txt'])"), (true, false)));
    session.exec("open('new.txt', 'w').close()").await;
    assert_eq!(session.download("new.txt").await.status(), StatusCode::OK);
}

#[tokio::test]
async fn our_folder_is_made_again_whatever_was_put_in_its_place() {
    let caller = caller();
    let session = caller.session().await;
    let id = machine_of(&session).await;
    session.exec("import os, shutil\nx = 7\nours = os.path.abspath('../.interpreterd')").await;
    for code in [
        "shutil.rmtree(ours)",
        "shutil.rmtree(ours)\nopen(ours, 'w').close()",
        "shutil.rmtree(ours)\nos.symlink('/nowhere', ours)",
        "os.chmod(ours, 0)",
        "open(os.path.join(ours, 'stop-any'), 'w').close()",
        "shutil.rmtree(os.getcwd())\nos.mkdir(os.path.join(os.path.dirname(ours), 'files'))\nos.chdir(os.path.join(os.path.dirname(ours), 'files'))",
        "here = os.getcwd()\nfor _ in range(1100):\n  os.mkdir('d')\n  os.chdir('d')\nos.chdir(here)",
    ] {
        let told = session.exec(code).await;
        // one that tells itself to stop may hear it
        let ended = told["status"] == "success" || code.contains("stop-any");
        assert!(ended && losses(&told) == (false, false), "{code}: {told}");
        assert_eq!(session.text("x").await, "7", "{code}");
        session.put("a.txt", "a").await;
        assert_eq!(session.download("a.txt").await.text().await.unwrap(), "a", "{code}");
    }
    assert_eq!(machine_of(&session).await, id);
}

#[tokio::test]
async fn a_command_whose_answer_cannot_be_fetched_has_run_once_all_the_same() {
    let (aws, server) = agentcore::shared();
    let caller = server.caller();
    for fault in [
        json!({"status": 404}),
        json!({"status": 403}),
        json!({"status": 402}),
        json!({"status": 429, "times": 4}),
    ] {
        let (session, id) = furnished(&caller).await;
        let fault = in_machine(&id, "tools/invoke readFiles$", fault);
        aws.fault(fault.clone()).await;
        let command = "printf x >> ran; head -c 300000 /dev/zero | tr '\\0' y";
        let body = json!({"command": command});
        let (status, execution) = caller.post(&session.path("/shell"), body).await;
        assert_eq!(status, StatusCode::OK, "{fault}: {execution}");
        assert_eq!(execution["failure"]["retry_safe"], false, "{fault}: {execution}");
        assert_eq!(execution["status"], "unknown");
        if machine_of(&session).await == id && fault["status"] != 404 {
            assert_eq!(session.download("ran").await.text().await.unwrap(), "x", "{fault}");
        }
    }
}

#[tokio::test]
async fn a_command_out_of_time_ends_though_it_dropped_its_mark() {
    let caller = caller();
    let session = caller.session().await;
    let body = json!({"command": "exec env -i /bin/sleep 4324", "timeout_seconds": 1});
    let (_, execution) = caller.post(&session.path("/shell"), body).await;
    assert_eq!(execution["status"], "timeout", "{execution}");
    assert!(execution["duration_ms"].as_f64().unwrap() < 4000.0, "{execution}");
    let left = "import glob\nsum(b'4324' in open(name, 'rb').read().split(b'\\0') for name in glob.glob('/proc/[0-9]*/cmdline'))";
    assert_eq!(session.text(left).await, "0");
}

#[tokio::test]
async fn a_command_that_could_not_be_brought_has_not_run() {
    let (aws, server) = agentcore::shared();
    let caller = server.caller();
    let (session, id) = furnished(&caller).await;
    let fault = json!({"status": 403, "times": 1});
    aws.fault(in_machine(&id, "tools/invoke writeFiles$", fault)).await;
    let command = format!("echo ran > ran; : {}", "x".repeat(100_000));
    let refused = caller.post(&session.path("/shell"), json!({"command": command})).await;
    assert_eq!(problem(&refused), (503, "provider_not_ready".into()));
    assert_eq!(refused.1["retry_safe"], true);
    assert_eq!(session.download("ran").await.status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_file_whose_arrival_nobody_told_is_no_cells_doing() {
    let (aws, server) = agentcore::shared();
    let caller = server.caller();
    let (session, id) = furnished(&caller).await;
    aws.fault(in_machine(&id, COMMAND, json!({"action": "drop", "after": true}))).await;
    let (status, told) = session.put("up.txt", "x").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{told}");
    let next = session.exec("open('mine.txt', 'w').close()").await;
    let paths: Vec<&Value> =
        next["files"].as_array().unwrap().iter().map(|file| &file["path"]).collect();
    assert_eq!(paths, ["mine.txt"], "{next}");
}

#[tokio::test]
async fn what_a_cell_does_to_its_descriptors_is_its_own_affair() {
    let caller = caller();
    let session = caller.session().await;
    let id = machine_of(&session).await;
    for code in [
        "open('ran', 'a').write('r')\nimport os\nos.closerange(0, 3)",
        "import sys\ndel sys.stdout",
        "held = []\nwhile True: held.append(open('/dev/null'))",
        "import sys\nsys.stdout = open(sys.stdout.fileno(), mode='w', encoding='utf8', buffering=1)",
        "import os\nos.mkdir('../.interpreterd/stop-any')",
        "import os\nchild = os.fork()\nif child == 0: sys.exit(3)\nassert os.waitpid(child, 0)[1] >> 8 == 3",
    ] {
        let told = session.exec(code).await;
        assert_eq!(losses(&told), (false, false), "{code}: {told}");
        let next = session
            .exec("held = None\nimport subprocess\nsubprocess.run('echo out', shell=True)\nNone")
            .await;
        assert_eq!(
            (&next["status"], &next["stdout"]),
            (&json!("success"), &json!("out\n")),
            "{code}: {next}"
        );
    }
    assert_eq!(session.text("open('ran').read()").await, "'r'");
    assert_eq!(machine_of(&session).await, id);
}

#[tokio::test]
async fn a_thread_that_prints_for_ever_costs_no_later_cell() {
    let caller = caller();
    let session = caller.session().await;
    let code = "import threading, time\ndef flood():\n  text = 'z' * 100_000\n  for _ in range(2000): print(text)\nthread = threading.Thread(target=flood)\nthread.start()\ntime.sleep(0.05)";
    assert_eq!(session.exec(code).await["status"], "success");
    for _ in 0..3 {
        let next = session.exec("time.sleep(0.05)\nprint('mine')").await;
        assert_eq!(
            (&next["stdout"], losses(&next)),
            (&json!("mine\n"), (false, false)),
            "{}",
            next["error"]
        );
    }
}

#[tokio::test]
async fn what_a_cell_does_at_its_end_is_under_its_alarm_too() {
    let caller = caller();
    let session = caller.session().await;
    session.exec("import asyncio, time\nx = 7").await;
    let code = "try: await asyncio.sleep(60)\nfinally: time.sleep(20)";
    let late = timed(&session, code, 0.5).await;
    assert_eq!((&late["status"], losses(&late)), (&json!("timeout"), (false, false)), "{late}");
    let code = "async def work():\n  while True:\n    await asyncio.sleep(0.05)\n    print('late')\nawait asyncio.wait([asyncio.create_task(work())])";
    assert_eq!(timed(&session, code, 0.5).await["status"], "timeout");
    let next = session.exec("await asyncio.sleep(0.3)\nx").await;
    assert_eq!((&next["stdout"], &next["text"]), (&json!(""), &json!("7")), "{next}");
}
