//! What users of other systems have reported, as things to try on ours: one test a case, by its id.

use serde_json::{Value, json};

use crate::support::server::{Server, caller};
use crate::support::{Session, send};

async fn run(session: &Session<'_>, code: &str) -> Value {
    let execution = session.exec(code).await;
    assert_eq!(execution["status"], "success", "{execution}");
    execution
}

/// One cell in a fresh session, which must succeed.
async fn fresh(code: &str) -> Value {
    let caller = caller();
    run(&caller.session().await, code).await
}

#[tokio::test]
async fn b01_unicode_and_lone_surrogates_are_valid_json() {
    assert_eq!(fresh("print('\\ud800 ok', '😀')").await["stdout"], "\\ud800 ok 😀\n");
}

#[tokio::test]
async fn b02_control_bytes_are_kept() {
    assert_eq!(
        fresh("print('a\\x00b\\x1b[31mred\\x1b[0m\\x07')").await["stdout"],
        "a\0b\u{1b}[31mred\u{1b}[0m\u{7}\n"
    );
}

#[tokio::test]
async fn b04_b05_huge_and_endless_output_leaves_the_service_flat() {
    let server = Server::start(&[]);
    let caller = server.caller();
    let session = caller.session().await;
    run(&session, "1").await;
    let before = server.peak_bytes();
    let huge = run(&session, "print('x'*50_000_000)").await;
    assert_eq!((&huge["truncated"], &huge["stdout_bytes"]), (&json!(true), &json!(50_000_001)));
    let endless = session
        .exec_with(json!({"code": "while True: print('y' * 1000)", "timeout_seconds": 2}))
        .await;
    assert_eq!(
        (&endless["status"], &endless["truncated"], &endless["state_lost"]),
        (&json!("timeout"), &json!(true), &json!(false))
    );
    assert!(endless["duration_ms"].as_f64().unwrap() < 2900.0, "{}", endless["duration_ms"]);
    run(&session, "1").await;
    let grown = server.peak_bytes() - before;
    assert!(grown < 32 << 20, "grown by {grown} bytes");
}

#[tokio::test]
async fn b07_empty_lines_are_kept() {
    assert_eq!(fresh("print('a\\n\\nb\\n\\n\\nc',end='')").await["stdout"], "a\n\nb\n\n\nc");
}

#[tokio::test]
async fn b08_carriage_returns_are_kept() {
    assert_eq!(fresh("for i in range(3): print(f'\\r{i}',end='')").await["stdout"], "\r0\r1\r2");
}

#[tokio::test]
async fn b10_b11_input_fails_at_once_with_a_hint_and_stdin_is_empty() {
    let caller = caller();
    let session = caller.session().await;
    let execution = session.exec("x=input('name? ')").await;
    assert_eq!(execution["error_detail"]["name"], "EOFError");
    assert!(execution["error"].as_str().unwrap().contains("`stdin`"));
    assert_eq!(run(&session, "import sys;print(repr(sys.stdin.read()))").await["stdout"], "''\n");
}

fn images(execution: &Value) -> usize {
    execution["outputs"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|output| output["data"]["image/png"].is_string())
        .count()
}

#[tokio::test]
async fn b12_b13_b14_figures_come_in_order_once_and_without_show() {
    let caller = caller();
    let session = caller.session().await;
    let code = "import matplotlib.pyplot as plt\nfor i in range(2):\n plt.figure();plt.plot([i])\nplt.show()";
    assert_eq!(images(&run(&session, code).await), 2);
    assert_eq!(images(&run(&session, "1+1").await), 0);
    assert_eq!(images(&run(&session, "plt.plot([1,2])").await), 1);
}

#[tokio::test]
async fn b15_glyphs_of_other_scripts_are_drawn() {
    let execution =
        fresh("import matplotlib.pyplot as plt;plt.title('数据 é ☃');plt.plot([1]);plt.show()")
            .await;
    assert_eq!(
        (images(&execution), execution["stderr"].as_str().unwrap().lines().count()),
        (1, 0),
        "{}",
        execution["stderr"]
    );
}

#[tokio::test]
async fn b16_a_long_frame_is_bounded_and_says_its_size() {
    let execution = fresh("import pandas as pd;pd.DataFrame({'a':range(1000)})").await;
    let html = execution["outputs"][0]["data"]["text/html"].as_str().unwrap();
    assert!(html.contains("1000 rows") && html.len() < 20_000);
}

#[tokio::test]
async fn b17_top_level_await() {
    assert_eq!(fresh("import asyncio\nawait asyncio.sleep(0)\n'done'").await["text"], "'done'");
}

#[tokio::test]
async fn b20_a_fork_pool_works() {
    let code = "import multiprocessing as mp\nwith mp.get_context('fork').Pool(2) as p: print(p.map(abs,[-1,-2]))";
    assert_eq!(fresh(code).await["stdout"], "[1, 2]\n");
}

#[tokio::test]
async fn b22_a_subprocess_writes_into_the_right_streams() {
    let execution =
        fresh("import subprocess;subprocess.run('echo out;echo err>&2',shell=True);None").await;
    assert_eq!((&execution["stdout"], &execution["stderr"]), (&json!("out\n"), &json!("err\n")));
}

#[tokio::test]
async fn b23_a_process_left_behind_does_not_hold_the_answer_up() {
    let execution = fresh("import subprocess;p=subprocess.Popen(['sleep','300'])").await;
    assert!(execution["duration_ms"].as_f64().unwrap() < 2000.0);
}

#[tokio::test]
async fn b25_a_raised_keyboard_interrupt_is_an_error_like_any_other() {
    let caller = caller();
    let session = caller.session().await;
    let execution = session.exec("raise KeyboardInterrupt").await;
    assert_eq!(
        (&execution["status"], &execution["error_detail"]["name"], &execution["failure"]),
        (&json!("error"), &json!("KeyboardInterrupt"), &Value::Null)
    );
    assert_eq!(run(&session, "1").await["state_lost"], false);
}

#[tokio::test]
async fn b26_a_crash_is_told_and_the_next_cell_runs_in_a_new_interpreter() {
    let caller = caller();
    let session = caller.session().await;
    for (code, exit_code) in
        [("import os;os._exit(1)", 1), ("import ctypes;ctypes.string_at(0)", 139)]
    {
        let execution = session.exec(code).await;
        assert_eq!(
            (&execution["failure"]["kind"], &execution["exit_code"], &execution["state_lost"]),
            (&json!("killed"), &json!(exit_code), &json!(true))
        );
    }
    assert_eq!(run(&session, "1+1").await["text"], "2");
}

#[tokio::test]
async fn b27_a_syntax_error_has_its_line_and_no_frames_of_ours() {
    let caller = caller();
    let execution = caller.session().await.exec("def f(:\n  pass").await;
    assert_eq!(
        (&execution["error_detail"]["name"], &execution["error_detail"]["line"]),
        (&json!("SyntaxError"), &json!(1))
    );
    assert!(!execution["error"].as_str().unwrap().contains("/opt/"), "{}", execution["error"]);
}

#[tokio::test]
async fn b28_a_repr_that_raises_is_an_error_and_the_session_lives() {
    let caller = caller();
    let session = caller.session().await;
    let execution = session.exec("class A:\n def __repr__(s): raise ValueError('x')\nA()").await;
    assert_eq!(execution["error_detail"]["name"], "ValueError", "{execution}");
    run(&session, "1").await;
}

#[tokio::test]
async fn b30_one_huge_array_is_an_error_and_using_up_the_memory_is_told() {
    let caller = caller();
    let (hog, other) = (caller.session().await, caller.session().await);
    let huge = hog.exec("b=bytearray(10**11)").await;
    assert_eq!(
        (&huge["error_detail"]["name"], &huge["state_lost"]),
        (&json!("MemoryError"), &json!(false))
    );
    let used_up = hog.exec("b=[];\nwhile 1: b.append(bytearray(10**8))").await;
    let told = used_up["failure"]["kind"] == "oom";
    // without a cgroup the one process meets its own limit, and its session lives on
    let raised = used_up["error_detail"]["name"] == "MemoryError";
    assert!(used_up["status"] == "error" && (told || raised), "{used_up}");
    assert_eq!(other.text("1 + 1").await, "2");
}

#[tokio::test]
async fn b31_numpy_and_its_threads_work_under_the_default_limits() {
    assert_eq!(
        fresh("import numpy as np;float((np.ones((500,500))@np.ones((500,500))).sum())").await["text"],
        "125000000.0"
    );
}

#[tokio::test]
async fn b33_binary_files_stay_byte_identical() {
    let caller = caller();
    let session = caller.session().await;
    let bytes: Vec<u8> = (0..=255).collect();
    run(&session, "open('b.bin','wb').write(bytes(range(256)))").await;
    assert_eq!(session.download("b.bin").await.bytes().await.unwrap(), bytes);
    session.put("c.bin", bytes.clone()).await;
    assert_eq!(session.download("c.bin").await.bytes().await.unwrap(), bytes);
}

#[tokio::test]
async fn b37_a_zip_bomb_fills_its_own_quota_only() {
    let caller = caller();
    let session = caller.session().await;
    let make = "import zipfile\nwith zipfile.ZipFile('z.zip','w',zipfile.ZIP_DEFLATED) as z:\n    with z.open('zeros','w',force_zip64=True) as f:\n        for _ in range(400): f.write(bytes(1 << 20))";
    run(&session, make).await;
    let execution = session.exec("zipfile.ZipFile('z.zip').extractall()").await;
    let detail = &execution["error_detail"];
    assert_eq!(detail["name"], "OSError", "{execution}");
    run(&session, "import os; os.remove('zeros')").await;
    assert_eq!(run(&session, "open('after', 'w').write('x')").await["text"], "1");
}

#[tokio::test]
async fn b38_the_second_version_of_a_file_wins_and_its_tag_changes() {
    let caller = caller();
    let session = caller.session().await;
    let mut tags = Vec::new();
    for version in ["v1", "v2"] {
        session.put("image.png", version).await;
        tags.push(session.download("image.png").await.headers()["etag"].clone());
        assert_eq!(run(&session, "open('image.png').read()").await["text"], format!("'{version}'"));
    }
    assert_ne!(tags[0], tags[1]);
}

#[tokio::test]
async fn b39_a_workbook_is_told_once_with_its_kind_and_size() {
    let caller = caller();
    let session = caller.session().await;
    let execution = run(
        &session,
        "import pandas as pd;pd.DataFrame({'a':[1]}).to_excel('out.xlsx',index=False)",
    )
    .await;
    let file = &execution["files"][0];
    assert_eq!((&file["path"], &file["change"]), (&json!("out.xlsx"), &json!("created")));
    assert_eq!(file["mime"], "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet");
    assert!(file["size_bytes"].as_u64().unwrap() > 1000);
    assert_eq!(run(&session, "1").await["files"], json!([]));
}

#[tokio::test]
async fn b40_paths_stay_relative_to_the_files_folder_wherever_the_program_is() {
    let caller = caller();
    let session = caller.session().await;
    let first =
        run(&session, "open('r.txt','w').write('1')\nimport os;os.makedirs('sub');os.chdir('sub')")
            .await;
    let second = run(&session, "open('s.txt','w').write('2')").await;
    assert_eq!(
        (&first["files"][0]["path"], &second["files"][0]["path"]),
        (&json!("r.txt"), &json!("sub/s.txt"))
    );
}

#[tokio::test]
async fn b42_cells_at_once_queue_in_one_session() {
    let caller = caller();
    let session = caller.session().await;
    let cell = |number: usize| {
        let session = &session;
        async move { session.exec(&format!("import time;time.sleep(.2);print({number})")).await }
    };
    let started = std::time::Instant::now();
    let executions = futures::future::join_all((0..4).map(cell)).await;
    assert!(started.elapsed().as_millis() >= 800);
    for (number, execution) in executions.iter().enumerate() {
        assert_eq!(execution["stdout"], format!("{number}\n"));
    }
}

#[tokio::test]
async fn b43_a_timeout_interrupts_first_and_keeps_the_state() {
    let caller = caller();
    let session = caller.session().await;
    run(&session, "x=7").await;
    let execution = session
        .exec_with(json!({"code": "import time;time.sleep(60)", "timeout_seconds": 1}))
        .await;
    assert_eq!(execution["status"], "timeout");
    assert!(execution["duration_ms"].as_f64().unwrap() < 1900.0);
    assert_eq!(run(&session, "x").await["text"], "7");
}

#[tokio::test]
async fn b45_a_caller_who_hangs_up_frees_the_session_at_once() {
    let caller = caller();
    let session = caller.session().await;
    run(&session, "x=1").await;
    let impatient = caller
        .request(reqwest::Method::POST, &session.path("/exec"))
        .json(&json!({"code": "import time;time.sleep(30)"}));
    assert!(impatient.timeout(std::time::Duration::from_millis(500)).send().await.is_err());
    let started = std::time::Instant::now();
    assert_eq!(run(&session, "print(x + 41)").await["stdout"], "42\n");
    assert!(started.elapsed().as_secs_f64() < 3.0, "{:?}", started.elapsed());
}

#[tokio::test]
async fn b48_no_secret_of_the_service_and_no_other_session_is_seen() {
    let caller = caller();
    let (one, two) = (caller.session().await, caller.session().await);
    run(&two, "import subprocess;p=subprocess.Popen(['sleep','300'])").await;
    let code = "import os\nprint(dict(os.environ))\ntry: print(open('/proc/1/environ','rb').read())\nexcept OSError as e: print(type(e).__name__)\nprint(sorted(int(p) for p in os.listdir('/proc') if p.isdigit()))";
    let stdout = run(&one, code).await["stdout"].as_str().unwrap().to_owned();
    for secret in ["sesame", "INTERPRETERD", crate::support::model::KEY] {
        assert!(!stdout.contains(secret), "{stdout}");
    }
    assert!(stdout.ends_with("[1, 2]\n"), "{stdout}");
}

#[tokio::test]
async fn b50_warnings_are_stderr_and_tracebacks_have_no_colours() {
    let caller = caller();
    let session = caller.session().await;
    let execution = run(
        &session,
        "import warnings,logging;warnings.warn('w');logging.warning('l');print('ok')",
    )
    .await;
    assert_eq!(execution["stdout"], "ok\n");
    let stderr = execution["stderr"].as_str().unwrap();
    assert!(stderr.contains("UserWarning: w") && stderr.contains("WARNING:root:l"), "{stderr}");
    assert!(!session.exec("1/0").await["error"].as_str().unwrap().contains('\u{1b}'));
}

#[tokio::test]
async fn b52_a_shell_line_works() {
    assert_eq!(fresh("!echo hi").await["stdout"], "hi\n");
}

#[tokio::test]
async fn b32_a_file_over_the_limit_is_a_problem_that_is_read() {
    let server = Server::start(&[("FILE_BYTES", "1000000")]);
    let caller = server.caller();
    let session = caller.session().await;
    let request = caller
        .request(reqwest::Method::PUT, &session.path("/files/big.bin"))
        .body(vec![0; 20_000_000]);
    let response = send(request).await;
    assert_eq!(
        (response.status().as_u16(), &response.headers()["content-type"]),
        (413, &"application/problem+json".parse().unwrap())
    );
}

#[tokio::test]
async fn b47_a_missing_package_and_pip_say_what_to_do_at_once() {
    let caller = caller();
    let session = caller.session().await;
    let missing = session.exec("import nosuchpkg").await;
    assert_eq!(missing["error_detail"]["name"], "ModuleNotFoundError");
    let message = missing["error_detail"]["message"].as_str().unwrap();
    assert!(message.contains("nosuchpkg") && message.contains("pandas"), "{message}");
    let call = "import subprocess, sys; subprocess.run([sys.executable, '-m', 'pip', 'install', 'six']).returncode";
    for code in ["!pip install six", "%pip install six", call] {
        let refused = session.exec(code).await;
        assert!(refused["duration_ms"].as_f64().unwrap() < 5000.0, "{refused}");
        let stderr = refused["stderr"].as_str().unwrap();
        assert!(stderr.contains("`packages` field") && stderr.lines().count() == 1, "{stderr}");
    }
}
