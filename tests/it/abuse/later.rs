//! Hostile code lies in wait for the cells after its own.

use std::time::{Duration, Instant};

use serde_json::json;

use super::{Scene, short};
use crate::support::server::caller;

/// What a cell does to its streams is undone before the next one.
async fn prints_again_after(code: &str) {
    let caller = caller();
    let scene = Scene::open(&caller).await;
    scene.attack(code).await;
    let next = r#"
print("out")
print("err", file=sys.stderr)
try: input()
except EOFError: pass
"#;
    let execution = scene.attack(next).await;
    let seen = (&execution["status"], &execution["stdout"], &execution["stderr"]);
    let expected = (&json!("success"), &json!("out\n"), &json!("err\n"));
    assert_eq!(seen, expected, "{}", short(&execution));
    scene.close().await;
}

#[tokio::test]
async fn closed_descriptors_of_output_are_there_again() {
    prints_again_after("os.close(1); os.close(2)").await;
}

#[tokio::test]
async fn a_closed_descriptor_of_input_is_there_again() {
    prints_again_after("os.close(0)").await;
}

#[tokio::test]
async fn a_descriptor_of_input_that_is_another_is_itself_again() {
    prints_again_after("os.dup2(1, 0)").await;
}

#[tokio::test]
async fn closed_streams_are_open_again() {
    prints_again_after("sys.stdout.close(); sys.stderr.close()").await;
}

#[tokio::test]
async fn replaced_streams_are_themselves_again() {
    let code = r#"
class Broken:
    def write(self, text): raise ValueError("no")
    def flush(self): raise ValueError("no")
sys.stdout = sys.stderr = Broken()
"#;
    prints_again_after(code).await;
}

#[tokio::test]
async fn a_replaced_stream_of_input_is_itself_again() {
    prints_again_after("sys.stdin = None").await;
}

#[tokio::test]
async fn detached_streams_are_themselves_again() {
    prints_again_after("sys.stdout.detach(); sys.stderr.detach()").await;
}

#[tokio::test]
async fn an_end_between_two_cells_is_told_by_the_next_one() {
    let caller = caller();
    let scene = Scene::open(&caller).await;
    scene.attack("threading.Timer(0.1, os._exit, [3]).start()").await;
    let started = Instant::now();
    loop {
        let execution = scene.attack("1 + 1").await;
        if execution["state_lost"] == true {
            break;
        }
        assert!(started.elapsed() < Duration::from_secs(10), "{}", short(&execution));
    }
    assert_eq!(scene.attacker.text("'attempt' in globals()").await, "False");
    scene.close().await;
}

#[tokio::test]
async fn a_fork_that_runs_on_after_its_cell_is_in_no_answer() {
    let caller = caller();
    let scene = Scene::open(&caller).await;
    let code = "if not os.fork():\n    time.sleep(0.2)\n    1 / 0\n'parent'";
    assert_eq!(scene.attack(code).await["text"], "'parent'");
    let waited = scene.attack("os.waitstatus_to_exitcode(os.wait()[1])").await;
    assert_eq!((&waited["status"], &waited["text"]), (&json!("success"), &json!("0")));
    scene.close().await;
}

/// After an attack later cells may fail of it, until one of them says that the interpreter is new.
async fn recovers_after(code: &str) {
    let caller = caller();
    let scene = Scene::open(&caller).await;
    scene.attack_within(code, 1).await;
    for _ in 0..4 {
        let execution = scene.attack_within("import time\ntime.sleep(0.1)", 1).await;
        if execution["state_lost"] == true {
            break;
        }
    }
    scene.close().await;
}

#[tokio::test]
async fn a_thread_that_never_lets_others_run_harms_that_session_alone() {
    let code = "
sys.setswitchinterval(1e6)
def spin():
    while True: pass
threading.Thread(target=spin, daemon=True).start()
";
    recovers_after(code).await;
}

#[tokio::test]
async fn a_hook_that_forbids_everything_harms_that_session_alone() {
    let code = r#"
def forbid(*_): raise ValueError("no")
sys.addaudithook(forbid)
"#;
    recovers_after(code).await;
}

#[tokio::test]
async fn a_shell_that_runs_no_cell_harms_that_session_alone() {
    recovers_after("get_ipython().run_cell = None").await;
}

#[tokio::test]
async fn an_emptied_table_of_modules_harms_that_session_alone() {
    recovers_after("sys.modules.clear()").await;
}

#[tokio::test]
async fn builtins_that_are_broken_harm_that_session_alone() {
    recovers_after("import builtins\nbuiltins.print = builtins.len = builtins.open = None").await;
}

#[tokio::test]
async fn frames_stolen_on_their_way_in_harm_that_session_alone() {
    let code = "threading.Thread(target=os.read, args=[os.dup(950), 100], daemon=True).start()";
    recovers_after(code).await;
}

#[tokio::test]
async fn a_thief_of_all_that_comes_in_harms_that_session_alone() {
    let code = "
def steal(channel):
    while True: os.read(channel, 1)
threading.Thread(target=steal, args=[os.dup(950)], daemon=True).start()
";
    recovers_after(code).await;
}

#[tokio::test]
async fn frames_sent_while_no_cell_runs_harm_that_session_alone() {
    let code = r#"
def speak():
    time.sleep(0.05)
    for body in ('{"t":"done","id":"x","status":"ok"}', "garbage"): attempt(frame, body)
threading.Thread(target=speak).start()
"#;
    recovers_after(code).await;
}

/// Limits that a session lowers to nothing are its own affair.
async fn lowers(limit: &str) {
    let code = format!("import resource\nresource.setrlimit(resource.RLIMIT_{limit}, (0, 0))");
    recovers_after(&code).await;
}

#[tokio::test]
async fn no_descriptors_for_itself_harm_that_session_alone() {
    lowers("NOFILE").await;
}

#[tokio::test]
async fn no_memory_for_itself_harms_that_session_alone() {
    lowers("AS").await;
}

#[tokio::test]
async fn no_cell_is_handed_to_a_kernel_that_spoke_while_none_ran() {
    for body in [r#"{"t":"done","id":"x","status":"ok"}"#, "garbage"] {
        let caller = caller();
        let scene = Scene::open(&caller).await;
        let code = format!(
            "def speak():\n    time.sleep(0.05)\n    frame({body:?})\n    open('spoken', 'w').close()\n\
             threading.Thread(target=speak).start()"
        );
        scene.attack(&code).await;
        while scene.attacker.download("spoken").await.status() != 200 {
            tokio::task::yield_now().await;
        }
        let next = scene.attack("1 + 1").await;
        let seen = (&next["status"], &next["text"], &next["state_lost"]);
        assert_eq!(seen, (&json!("success"), &json!("2"), &json!(true)), "{}", short(&next));
        scene.close().await;
    }
}
