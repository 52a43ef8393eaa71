//! Hostile code turns against the Python that runs it.

use serde_json::json;

use super::Expected::{Dies, Fails, Shows, TimesOut};
use super::{Scene, short};
use crate::support::server::caller;

cell!(an_exit_behind_pythons_back_is_told, "os._exit(3)", Dies { exit_code: 3 });
cell!(an_exit_that_looks_like_success_is_told, "os._exit(0)", Dies { exit_code: 0 });
cell!(a_segmentation_fault_is_told, "ctypes.string_at(0)", Dies { exit_code: 139 });
cell!(an_abort_is_told, "os.abort()", Dies { exit_code: 134 });
cell!(a_kill_by_its_own_hand_is_told, "os.kill(os.getpid(), 9)", Dies { exit_code: 137 });
cell!(a_jump_into_nothing_is_told, "ctypes.CFUNCTYPE(None)(0xdead0000)()", Dies { exit_code: 139 });
#[cfg(target_arch = "x86_64")]
cell!(
    a_stack_without_end_is_told,
    r#"
code = mmap.mmap(-1, 4096, prot=7)
code.write(b"\xe8\xfb\xff\xff\xff")  # call itself
ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
"#,
    Dies { exit_code: 139 }
);
cell!(a_signal_that_ends_it_is_told, "os.kill(os.getpid(), 15)", Dies { exit_code: 143 });
cell!(a_program_in_its_place_is_told, "os.execv('/bin/true', ['true'])", Dies { exit_code: 0 });
cell!(
    a_program_in_its_place_that_stays_is_killed,
    "os.execv('/bin/sleep', ['sleep', '60'])",
    Dies { exit_code: 137 }
);
cell!(
    an_alarm_that_ends_it_is_told,
    "
signal.signal(signal.SIGALRM, lambda *_: os._exit(9))
signal.setitimer(signal.ITIMER_REAL, 0.2)
time.sleep(2)
",
    Dies { exit_code: 9 }
);
cell!(
    an_alarm_that_nobody_handles_is_told,
    "signal.setitimer(signal.ITIMER_REAL, 0.2); time.sleep(2)",
    Dies { exit_code: 142 }
);
cell!(
    an_end_of_the_time_that_it_gave_itself_is_told,
    "resource.setrlimit(resource.RLIMIT_CPU, (1, 1))\nwhile True: pass",
    Dies { exit_code: 137 }
);

cell!(a_raised_base_exception_is_an_error, r#"raise BaseException("b")"#, Fails("BaseException"));
cell!(a_raised_interrupt_is_an_error, "raise KeyboardInterrupt", Fails("KeyboardInterrupt"));
cell!(a_raised_exit_is_an_error, "raise SystemExit(5)", Fails("SystemExit"));
cell!(a_raised_generator_exit_is_an_error, "raise GeneratorExit", Fails("GeneratorExit"));
cell!(
    an_exception_that_cannot_be_told_is_an_error,
    "class E(Exception):\n    def __str__(self): raise ValueError('bad')\nraise E()",
    Fails("E")
);
cell!(
    an_exception_with_a_hundred_megabytes_to_say_is_an_error,
    r#"raise ValueError("x" * (100 << 20))"#,
    Fails("ValueError")
);
cell!(
    a_group_of_exceptions_nested_deep_is_an_error,
    r#"
group = ValueError("inner")
for _ in range(2000): group = ExceptionGroup("g", [group])
raise group
"#,
    Fails("ExceptionGroup")
);
cell!(
    a_chain_of_thousands_of_causes_is_an_error,
    "
last = None
for number in range(5000):
    error = ValueError(number)
    error.__cause__, last = last, error
raise last
",
    Fails("ValueError")
);
cell!(
    exceptions_in_a_ring_are_an_error,
    "
one, two = ValueError(1), ValueError(2)
one.__cause__, two.__cause__ = two, one
raise one
",
    Fails("ValueError")
);
cell!(a_syntax_error_nested_deep_is_an_error, r#"exec("(" * 10_000)"#, Fails("SyntaxError"));
cell!(
    a_parser_that_runs_out_of_stack_is_an_error,
    r#"eval("-" * 1_000_000 + "1")"#,
    Fails("MemoryError")
);
cell!(a_recursion_is_an_error, "def f(n): return f(n + 1)\nf(0)", Fails("RecursionError"));
cell!(
    a_recursion_to_a_raised_limit_is_an_error,
    "sys.setrecursionlimit(100_000)\ndef f(n): return f(n + 1)\nf(0)",
    Fails("RecursionError")
);
cell!(
    a_recursion_through_c_code_ends_the_interpreter,
    "
sys.setrecursionlimit(10 ** 8)
class Endless:
    def __getattr__(self, name): return getattr(self, name)
Endless().x
",
    Dies { exit_code: 139 }
);
cell!(
    a_value_nested_too_deep_is_an_error,
    "a = []\nfor _ in range(100_000): a = [a]\na",
    Fails("RecursionError")
);
cell!(
    a_value_that_exits_when_it_is_shown_is_an_error,
    "class R:\n    def __repr__(self): raise SystemExit(1)\nR()",
    Fails("SystemExit")
);
cell!(
    a_value_that_ends_the_process_when_it_is_shown_is_told,
    "class R:\n    def __repr__(self): os._exit(4)\nR()",
    Dies { exit_code: 4 }
);
cell!(
    a_value_that_shows_itself_for_ever_times_out,
    "class R:\n    def __repr__(self):\n        while True: pass\nR()",
    TimesOut { state_lost: false }
);
cell!(
    a_value_that_answers_to_every_name_is_shown,
    r#"
class Yes:
    def __getattr__(self, name): return lambda *a, **k: Yes()
    def __repr__(self): return "yes"
Yes()
"#,
    Shows("yes")
);
cell!(
    a_value_whose_picture_is_no_picture_is_shown,
    r#"
class P:
    def _repr_png_(self): return "no base64"
    def _repr_mimebundle_(self, *a, **k):
        return {"text/plain": "shown", "text/html": [1], "a" * 100_000: "b"}
    def __repr__(self): return "shown"
P()
"#,
    Shows("shown")
);
cell!(
    text_that_is_no_text_is_made_text,
    r#"os.write(1, b"\xff\xfe\x00abc\n")
print("\ud800 lone")
"\udfff""#,
    Shows("\u{fffd}\u{fffd}\0abc \\ud800 lone '\\udfff'")
);
cell!(
    numbers_that_json_lacks_are_sent_as_text,
    r#"
from IPython.display import display
display({"application/json": {"a": float("nan"), "b": float("inf")}}, raw=True)
"#,
    Shows("")
);

cell!(
    whole_numbers_that_no_reader_of_json_takes_are_sent_as_text,
    r#"
from IPython.display import display
display({"application/json": {"a": 1 << 64, "b": -1 << 2000, "c": 10 ** 4000}}, raw=True)
"#,
    Shows("")
);
cell!(
    streams_that_are_closed_are_there_again,
    "for descriptor in (0, 1, 2): os.close(descriptor)",
    Shows("")
);
cell!(
    streams_that_are_replaced_are_there_again,
    r#"
class Broken:
    def write(self, text): raise ValueError("no")
    def flush(self): raise ValueError("no")
sys.stdout = sys.stderr = Broken()
"#,
    Shows("")
);
cell!(
    streams_that_do_not_wait_are_no_trap,
    r#"
fcntl.fcntl(1, fcntl.F_SETFL, fcntl.fcntl(1, fcntl.F_GETFL) | os.O_NONBLOCK)
word = attempt(lambda: [os.write(1, b"x" * 4096) for _ in range(100_000)])
fcntl.fcntl(1, fcntl.F_SETFL, fcntl.fcntl(1, fcntl.F_GETFL) & ~os.O_NONBLOCK)
raise KeyError(word)
"#,
    Fails("KeyError")
);
cell!(
    broken_builtins_end_the_interpreter,
    "
import builtins
builtins.print = builtins.len = builtins.open = None
builtins.isinstance = lambda *_: 1 / 0
",
    Dies { exit_code: 97 }
);
cell!(a_process_that_lies_about_its_number_ends, "os.getpid = lambda: 1", Dies { exit_code: 0 });
cell!(
    broken_modules_of_the_kernel_end_the_interpreter,
    "import json\njson.dumps = None",
    Dies { exit_code: 97 }
);
cell!(
    a_trace_function_that_raises_harms_nobody,
    "def trace(*_): raise ValueError('trace')\nsys.settrace(trace)",
    Fails("ValueError")
);
cell!(
    an_end_that_takes_a_thousand_seconds_holds_nobody_up,
    "import atexit\natexit.register(time.sleep, 1000)\n1",
    Shows("1")
);

cell!(an_endless_loop_is_interrupted, "while True: pass", TimesOut { state_lost: false });
cell!(
    a_loop_that_swallows_one_interrupt_is_interrupted_by_the_next,
    "try:\n    while True: pass\nexcept KeyboardInterrupt:\n    while True: pass",
    TimesOut { state_lost: false }
);
cell!(
    a_loop_that_hears_no_interrupt_is_killed,
    "signal.signal(signal.SIGINT, lambda *_: None)\nwhile True: pass",
    TimesOut { state_lost: true }
);
cell!(
    code_in_c_that_hears_no_interrupt_is_killed,
    r#"
import re
signal.signal(signal.SIGINT, signal.SIG_IGN)
re.match("(a+)+$", "a" * 40 + "b")
"#,
    TimesOut { state_lost: true }
);
cell!(
    an_interrupt_that_is_blocked_means_a_kill,
    "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass",
    TimesOut { state_lost: true }
);
cell!(
    a_stopped_interpreter_is_killed,
    "os.kill(os.getpid(), signal.SIGSTOP)",
    TimesOut { state_lost: true }
);
cell!(
    a_child_that_ignores_interrupts_is_left_behind,
    r#"subprocess.run(["bash", "-c", "trap '' INT; sleep 100"])"#,
    TimesOut { state_lost: false }
);
cell!(
    a_lock_that_is_never_free_is_interrupted,
    "lock = threading.Lock()\nlock.acquire()\nlock.acquire()",
    TimesOut { state_lost: false }
);
cell!(a_sleep_in_c_is_interrupted, "libc.sleep(100)", TimesOut { state_lost: false });

cell!(
    a_fork_in_a_cell_answers_once,
    r#"
pid = os.fork()
if pid: print("parent", os.waitpid(pid, 0)[1])
else: print("child")
"end"
"#,
    Shows("child parent 0 'end'")
);
cell!(
    a_fork_that_outlives_its_cell_answers_nothing,
    r#"
pid = os.fork()
if not pid:
    time.sleep(0.3)
"end" if pid else 1 / 0
"#,
    Shows("'end'")
);
cell!(
    a_fork_in_a_thread_answers_once,
    r#"
def fork():
    if not os.fork(): os._exit(0)
    os.wait()
thread = threading.Thread(target=fork)
thread.start()
thread.join()
"once"
"#,
    Shows("'once'")
);
cell!(
    a_pool_of_processes_works,
    r#"
import multiprocessing
with multiprocessing.get_context("fork").Pool(2) as pool: print(pool.map(abs, [-1, -2]))
"#,
    Shows("[1, 2]"),
    restricted: Fails("PermissionError")
);
cell!(
    an_executor_of_processes_works,
    "
from concurrent.futures import ProcessPoolExecutor
with ProcessPoolExecutor(2) as pool: print(list(pool.map(abs, [-3])))
",
    Shows("[3]"),
    restricted: Fails("PermissionError")
);

#[tokio::test]
async fn a_recursion_beyond_every_limit_ends() {
    let caller = caller();
    let scene = Scene::open(&caller).await;
    let code = "sys.setrecursionlimit(10 ** 8)\ndef f(n): return f(n + 1)\nf(0)";
    let execution = scene.attack_within(code, 1).await;
    let ended = execution["status"] == "timeout"
        || execution["failure"]["kind"] == "oom"
        || execution["error_detail"]["name"] == "MemoryError";
    assert!(ended, "{}", short(&execution));
    scene.close().await;
}

#[tokio::test]
async fn an_exception_whose_class_lies_is_an_error() {
    let caller = caller();
    let scene = Scene::open(&caller).await;
    let code = r#"
class Meta(type):
    def __getattribute__(self, name): raise RuntimeError("no")
class Liar(Exception, metaclass=Meta): pass
raise Liar()
"#;
    let execution = scene.attack(code).await;
    let seen = (&execution["status"], &execution["exit_code"], &execution["state_lost"]);
    assert_eq!(seen, (&json!("error"), &json!(1), &json!(false)), "{}", short(&execution));
    scene.close().await;
}

#[tokio::test]
async fn an_error_in_a_group_of_tasks_is_told_with_its_name() {
    let caller = caller();
    let scene = Scene::open(&caller).await;
    let code = "
import asyncio
async def fail(): 1 / 0
async with asyncio.TaskGroup() as group: group.create_task(fail())
";
    let execution = scene.attack(code).await;
    assert_eq!(execution["error_detail"]["name"], "ExceptionGroup", "{}", short(&execution));
    let error = execution["error"].as_str().unwrap();
    assert!(error.contains("ZeroDivisionError"), "{error}");
    scene.close().await;
}
