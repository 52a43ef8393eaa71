//! What a cell can do to its interpreter, and what becomes of both.

use reqwest::Method;
use serde_json::{Value, json};

use super::{came, deno_of, name, own_error, status_of};
use crate::support::pydantic::shared;
use crate::support::{Caller, Session, must_come, problem, send};

/// Once a cell was stopped it is over: a busy host takes its time, and no more.
const SOON_MS: f64 = 20_000.0;
/// What allocators and collectors may keep of a cell.
const MAY_GROW_KB: u64 = 96 << 10;

fn duration_ms(execution: &Value) -> f64 {
    execution["duration_ms"].as_f64().unwrap()
}

#[tokio::test]
async fn what_computes_or_waits_past_its_time_is_stopped_and_its_variables_stay() {
    let caller = shared().caller();
    let session = caller.session().await;
    session
        .exec("import asyncio, re, time\nx = 7\nclass Endless:\n  def __repr__(self):\n    while True: pass")
        .await;
    for code in [
        "while True: pass",
        "while True: await asyncio.sleep(0)",
        "time.sleep(60)",
        "await asyncio.sleep(60)",
        "asyncio.run(asyncio.sleep(60))",
        "await asyncio.gather(asyncio.sleep(60), asyncio.sleep(60))",
        "await asyncio.get_running_loop().create_future()",
        "re.match('(a+)+$', 'a' * 40 + 'b')",
        "9 ** 9 ** 8",
        "Endless()",
    ] {
        let execution = session.exec_with(json!({"code": code, "timeout_seconds": 0.7})).await;
        assert_eq!(came(&execution), json!(["timeout", 1, null, false]), "{code}: {execution}");
        let duration = duration_ms(&execution);
        assert!((700.0..SOON_MS).contains(&duration), "{code}: {duration} ms");
        assert_eq!(session.text("x").await, "7", "{code}");
    }
}

#[tokio::test]
async fn a_busy_cell_that_swallows_every_exception_costs_the_variables_and_nothing_else() {
    let caller = shared().caller();
    let session = caller.session().await;
    session.exec("x = 7\nopen('kept', 'w').write('here')").await;
    let code = "while True:\n  try:\n    while True: pass\n  except BaseException: pass";
    let execution = session.exec_with(json!({"code": code, "timeout_seconds": 0.7})).await;
    assert_eq!(came(&execution), json!(["timeout", 1, null, true]), "{execution}");
    let duration = duration_ms(&execution);
    assert!((2_000.0..SOON_MS).contains(&duration), "it has a grace: {duration} ms");
    let next = session.exec("'x' in globals(), open('kept').read()").await;
    assert_eq!(came(&next), json!(["success", 0, null, false]), "{next}");
    assert_eq!(next["text"], "(False, 'here')");
}

#[tokio::test]
async fn a_cell_that_exits_gives_its_code_and_the_session_lives() {
    let caller = shared().caller();
    let session = caller.session().await;
    session.exec("import os, sys\nx = 7\nasync def leave(code): raise SystemExit(code)").await;
    for (code, status, exit_code) in [
        ("sys.exit(3)", "error", 3),
        ("os._exit(4)", "error", 4),
        ("os._exit(0)", "success", 0),
        ("exit()", "success", 0),
        ("quit(5)", "error", 5),
        ("await leave(6)", "error", 6),
        ("import asyncio\nasyncio.run(leave(7))", "error", 7),
        ("os.kill(os.getpid(), 9)", "error", 137),
        ("os.kill(os.getpid(), 15)", "error", 143),
    ] {
        let execution = session.exec(code).await;
        assert_eq!(came(&execution), json!([status, exit_code, null, false]), "{code}");
        assert_eq!(session.text("x").await, "7", "{code}");
    }
}

#[tokio::test]
async fn an_abort_is_no_success() {
    let execution = shared().caller().session().await.exec("import os\nos.abort()").await;
    assert_eq!(came(&execution), json!(["error", 134, null, false]), "{execution}");
}

#[tokio::test]
async fn an_exit_in_a_callback_or_a_task_of_its_own_ends_no_interpreter() {
    let caller = shared().caller();
    let session = caller.session().await;
    session.exec("import asyncio, sys\nx = 7\nasync def leave(): sys.exit(3)").await;
    for code in [
        "asyncio.get_running_loop().call_soon(sys.exit, 3)\nawait asyncio.sleep(0.01)",
        "task = asyncio.ensure_future(leave())\nawait asyncio.sleep(0.01)",
        "asyncio.get_running_loop().call_soon(sys.exit, 3)",
    ] {
        let execution = session.exec(code).await;
        assert_eq!(execution["state_lost"], false, "{code}: {execution}");
        assert_eq!(session.text("x").await, "7", "{code}");
    }
}

#[tokio::test]
async fn processes_and_threads_are_ordinary_errors_at_once() {
    let caller = shared().caller();
    let session = caller.session().await;
    session
        .exec("import concurrent.futures, multiprocessing, os, subprocess, sys, threading\nx = 7")
        .await;
    for (code, error) in [
        ("os.system('ls')", "OSError"),
        ("os.popen('ls')", "OSError"),
        ("os.fork()", "OSError"),
        ("os.execv('/bin/ls', ['ls'])", "OSError"),
        ("os.kill(1, 9)", "OSError"),
        ("subprocess.run(['ls'])", "OSError"),
        ("subprocess.run('ls', shell=True)", "OSError"),
        ("threading.Thread(target=print).start()", "RuntimeError"),
        ("concurrent.futures.ThreadPoolExecutor().submit(print)", "RuntimeError"),
        ("multiprocessing.Process(target=print).start()", "ModuleNotFoundError"),
        ("multiprocessing.Pool(2)", "ModuleNotFoundError"),
    ] {
        let cell = json!({"code": code, "timeout_seconds": 20});
        let execution = session.exec_with(cell).await;
        let told = (came(&execution), name(&execution));
        assert_eq!(told, (own_error(), error), "{code}: {execution}");
    }
    assert_eq!(session.text("x").await, "7");
}

#[tokio::test]
async fn a_flood_of_prints_is_counted_bounded_and_costs_no_memory() {
    let server = shared();
    let caller = server.caller();
    let session = caller.session().await;
    session.exec("x = 7\nfor _ in range(20): print('z' * 99_999)").await;
    let deno = deno_of(server, &session).await;
    let before = status_of(deno, "VmHWM");
    for code in
        ["for _ in range(200): print('y' * 99_999)", "for _ in range(200_000): print('y' * 99)"]
    {
        let execution = session.exec(code).await;
        let kept = execution["stdout"].as_str().unwrap().len();
        let told = json!([execution["stdout_bytes"], execution["truncated"], kept < 2 << 20]);
        assert_eq!(told, json!([20_000_000, true, true]), "{code}: {kept} bytes are kept");
    }
    let grown = status_of(deno, "VmHWM").saturating_sub(before);
    assert!(grown < MAY_GROW_KB, "{grown} kB");
    assert_eq!(session.text("x").await, "7");
}

#[tokio::test]
async fn a_huge_value_is_shown_by_both_of_its_ends() {
    let caller = shared().caller();
    let session = caller.session().await;
    let execution = session.exec("x = 'begin' + 'x' * 20_000_000 + 'end'\nx").await;
    assert_eq!(came(&execution), json!(["success", 0, null, false]));
    let shown = execution["outputs"][0]["data"]["text/plain"].as_str().unwrap();
    let told = (shown.starts_with("'beginx"), shown.ends_with("xend'"), shown.len() < 2 << 20);
    assert_eq!(told, (true, true, true), "{} bytes", shown.len());
    assert_eq!(session.text("len(x)").await, "20000008", "only what is shown of it is short");
}

/// A session whose bounds are soon reached.
async fn narrow(caller: &Caller) -> Session<'_> {
    let limits = json!({"memory_bytes": 512 << 20, "disk_bytes": 8 << 20});
    let session = caller.session_with(json!({"limits": limits})).await;
    session.exec("import os\nx = 7").await;
    session
}

#[tokio::test]
async fn a_full_memory_is_an_error_of_the_code_and_is_free_again_afterwards() {
    let caller = shared().caller();
    let session = narrow(&caller).await;
    for code in [
        "kept = []\nwhile True: kept.append(bytearray(10_000_000))",
        "kept = []\nwhile True: kept.append([object()])",
        "kept = 'x'\nwhile True: kept += kept",
        "kept = {}\nwhile True: kept[len(kept)] = str(len(kept))",
    ] {
        let execution = session.exec(code).await;
        let told = (came(&execution), name(&execution));
        assert_eq!(told, (own_error(), "MemoryError"), "{code}: {execution}");
        assert_eq!(session.text("x, len(kept) > 1").await, "(7, True)", "{code}");
        session.exec("kept = None").await;
        assert_eq!(session.text("x, len(bytearray(20_000_000))").await, "(7, 20000000)", "{code}");
    }
}

#[tokio::test]
async fn endless_recursion_of_python_is_an_error_of_the_code() {
    let caller = shared().caller();
    let session = caller.session().await;
    session.exec("x = 7\nasync def wait(): await wait()\ndef down(n): return down(n + 1)").await;
    for (code, error) in [
        ("down(0)", "RecursionError"),
        ("await wait()", "RecursionError"),
        (
            "class A:\n  def __getattr__(self, name): return getattr(self, name)\nA().x",
            "RecursionError",
        ),
        ("class A:\n  def __repr__(self): return f'{self!r}'\nrepr(A())", "RecursionError"),
        ("class A:\n  def __repr__(self): return repr(self)\nA()", "RecursionError"),
        (
            "import functools\n@functools.lru_cache\ndef f(n): return f(n + 1)\nf(0)",
            "RecursionError",
        ),
        ("eval('(' * 100_000 + ')' * 100_000)", "SyntaxError"),
    ] {
        let execution = session.exec(code).await;
        let told = (came(&execution), name(&execution));
        assert_eq!(told, (own_error(), error), "{code}: {execution}");
        assert_eq!(session.text("x").await, "7", "{code}");
    }
}

/// There WebAssembly's stack ends before Python's own bound, and Pyodide does not survive that.
#[tokio::test]
async fn endless_recursion_in_libraries_of_c_ends_the_interpreter_and_that_is_told() {
    let caller = shared().caller();
    let session = caller.session().await;
    session.exec("open('kept', 'w').write('here')").await;
    let code = "import json\ndeep = []\nfor _ in range(100_000): deep = [deep]\njson.dumps(deep)";
    let execution = session.exec(code).await;
    let (told, message) = (came(&execution), &execution["error_detail"]["message"]);
    assert_eq!(told, json!(["error", 1, "killed", true]), "{execution}");
    assert!(message.as_str().unwrap().contains("call stack"), "{message}");
    assert_eq!(session.text("open('kept').read()").await, "'here'");
}

#[tokio::test]
async fn endless_writing_ends_with_an_error_and_the_session_goes_on() {
    let caller = shared().caller();
    let session = narrow(&caller).await;
    for code in [
        "with open('big', 'wb') as file:\n  while True: file.write(bytes(1 << 20))",
        "n = 0\nwhile True:\n  n += 1\n  with open(f'big{n}', 'wb') as file: file.write(bytes(1 << 19))",
        "with open('/tmp/big', 'wb') as file:\n  while True: file.write(bytes(1 << 20))",
        "with open('sparse', 'wb') as file: file.truncate(1 << 40)",
        "read, write = os.pipe()\nwhile True: os.write(write, bytes(1 << 16))",
    ] {
        let execution = session.exec(code).await;
        let told = came(&execution);
        assert_eq!(told, own_error(), "{code}: {execution}");
        assert!(matches!(name(&execution), "OSError" | "BlockingIOError"), "{code}: {execution}");
        assert_eq!(session.text("x").await, "7", "{code}");
    }
    let used = session.text("sum(os.path.getsize(name) for name in os.listdir())").await;
    assert!(used.parse::<u64>().unwrap() <= 8 << 20, "{used}");
    let full = session.put("more", vec![0; 1 << 20]).await;
    assert_eq!(problem(&full), (413, "sandbox_full".into()));
    session.exec("for name in os.listdir(): os.remove(name)").await;
    assert_eq!(session.text("open('small', 'w').write('fits again')").await, "10");
}

#[tokio::test]
async fn what_a_cell_spoils_for_all_that_follow_is_put_right() {
    let caller = shared().caller();
    let session = caller.session().await;
    for code in [
        "import builtins\nfor name in ('print', 'len', 'compile', 'eval'): setattr(builtins, name, None)",
        "globals().clear()",
        "import sys\nsys.stdout = sys.stderr = sys.stdin = None",
        "import os\nfor number in range(20):\n  try: os.close(number)\n  except OSError: pass",
        "import os\nos.chdir('/tmp')\nos.environ.clear()",
        "import sys\nsys.setrecursionlimit(100)",
        "import asyncio\nasyncio.get_event_loop().close()",
        "import sys\ndel sys.modules['__main__']",
    ] {
        let execution = session.exec(code).await;
        assert_eq!(came(&execution), json!(["success", 0, null, false]), "{code}: {execution}");
        let next = session.exec("import asyncio\nawait asyncio.sleep(0)\nprint(len('abc'))").await;
        let told = (came(&next), &next["stdout"]);
        let fine = (json!(["success", 0, null, false]), &json!("3\n"));
        assert_eq!(told, fine, "{code}: {next}");
    }
}

#[tokio::test]
async fn an_interpreter_without_its_modules_imports_again_or_says_that_it_was_lost() {
    let caller = shared().caller();
    let session = caller.session().await;
    let execution = session.exec("x = 7\nimport sys\nsys.modules.clear()").await;
    let next = session.exec("import json, os, sys\njson.dumps(sorted(sys.modules)[:0])").await;
    assert_eq!(next["text"], "'[]'", "{next}");
    let lost = execution["state_lost"] == true || next["state_lost"] == true;
    assert_eq!(session.text("'x' in globals()").await, if lost { "False" } else { "True" });
}

#[tokio::test]
async fn a_crash_is_told_and_the_session_goes_on_with_its_files() {
    let caller = shared().caller();
    let session = caller.session().await;
    session.exec("import ctypes\nx = 7\nopen('kept', 'w').write('here')").await;
    let execution =
        session.exec("import ctypes\nprint('last words')\nctypes.memset(0, 1, 30 << 20)").await;
    assert_eq!(execution["state_lost"], true, "{execution}");
    assert_eq!(execution["failure"]["kind"], "killed", "{execution}");
    let next = session.exec("'x' in globals(), open('kept').read()").await;
    assert_eq!((&next["text"], &next["state_lost"]), (&json!("(False, 'here')"), &json!(false)));
}

#[tokio::test]
async fn a_busy_cell_is_interrupted_and_its_variables_stay() {
    let caller = shared().caller();
    let session = caller.session().await;
    session.exec("x = 7").await;
    let mut running = std::pin::pin!(session.exec("open('begun', 'w').close()\nwhile True: pass"));
    let interrupting = async {
        while session.download("begun").await.status() != 200 {
            tokio::task::yield_now().await;
        }
        loop {
            let request = caller.request(Method::POST, &session.path("/interrupt"));
            assert!(send(request).await.status().is_success());
            tokio::task::yield_now().await;
        }
    };
    let execution = must_come(async {
        tokio::select! {
            execution = &mut running => execution,
            () = interrupting => unreachable!("it goes on until the cell has ended"),
        }
    })
    .await;
    assert_eq!(came(&execution), json!(["error", 1, "interrupted", false]), "{execution}");
    assert_eq!(session.text("x").await, "7");
}

#[tokio::test]
async fn a_process_that_takes_more_than_its_memory_is_ended_and_that_is_told() {
    let caller = shared().caller();
    let limits = json!({"memory_bytes": 512 << 20, "disk_bytes": 256 << 20});
    let session = caller.session_with(json!({"limits": limits})).await;
    session.exec("x = 7\nopen('kept', 'w').write('here')").await;
    // files that are held in memory lie beside what Python's own bound counts
    let code = "kept = bytearray(130 << 20)\nwith open('/tmp/big', 'wb') as file:\n  while True: file.write(bytes(1 << 20))";
    let execution = session.exec(code).await;
    assert_eq!(came(&execution), json!(["error", 1, "oom", true]), "{execution}");
    let next = session.exec("'x' in globals(), open('kept').read()").await;
    assert_eq!((&next["text"], &next["state_lost"]), (&json!("(False, 'here')"), &json!(false)));
}
