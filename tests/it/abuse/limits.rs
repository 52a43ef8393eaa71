//! Hostile code uses up memory, processes, disk, descriptors and output.

use serde_json::{Value, json};

use super::Expected::{Fails, OutOfCountedMemory, OutOfMemory, Shows, Skip};
use super::{Scene, server_apart, short};
use crate::support::server::caller;

cell!(
    a_fork_bomb_ends_at_the_limit,
    "
children, word = [], None
try:
    while True:
        pid = os.fork()
        if not pid:
            signal.pause()
        children.append(pid)
except OSError as error:
    word = errno.errorcode[error.errno]
for pid in children:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
word, 100 < len(children) < 130
",
    Shows("('EAGAIN', True)"),
    restricted: Skip("between two looks there may be more; limits.rs holds the look")
);

cell!(
    a_fork_bomb_of_a_shell_harms_nobody_and_can_be_ended,
    r#"
bomb = subprocess.Popen(["bash", "-c", ":(){ :|:& };:"], stderr=subprocess.DEVNULL)
attempt(bomb.wait, 2)
os.kill(-1, signal.SIGKILL)  # all but itself and the room's first process
bomb.wait()
wait_until(lambda: [name for name in os.listdir("/proc") if name.isdigit()] == ["1", "2"])
"#,
    Shows("True"),
    restricted: Skip("the look at its processes ends it in this cell or between two")
);

cell!(
    a_bomb_of_threads_ends_at_the_limit,
    "
threading.stack_size(64 << 10)
gate, count = threading.Event(), 0
try:
    while count < 5000:
        threading.Thread(target=gate.wait, daemon=True).start()
        count += 1
except RuntimeError:
    pass
gate.set()
100 < count < 130
",
    Shows("True"),
    restricted: Skip("between two looks there may be more; limits.rs holds the look")
);

cell!(
    two_dozen_threads_are_no_bomb,
    r#"
gate = threading.Event()
threads = [threading.Thread(target=gate.wait) for _ in range(24)]
for thread in threads: thread.start()
gate.set()
for thread in threads: thread.join()
"ran"
"#,
    Shows("'ran'")
);

cell!(
    zombies_count_against_the_limit_and_go_with_their_parent,
    r#"
script = """
import os
count = 0
try:
    while count < 1000:
        if not os.fork(): os._exit(0)
        count += 1
except OSError as error: print(error.errno, 100 < count < 130)
"""
told = subprocess.run([sys.executable, "-S", "-c", script], capture_output=True, text=True).stdout
told, subprocess.call(["true"])
"#,
    Shows(r"('11 True\n', 0)"),
    restricted: Skip("between two looks there may be more; limits.rs holds the look")
);

cell!(
    memory_of_one_process_ends,
    "
kept = []
while True:
    kept.append(bytearray(50 << 20))
",
    OutOfMemory
);

cell!(one_huge_array_is_refused, "import numpy as np; np.ones((60000, 60000)).sum()", OutOfMemory);

cell!(
    shared_memory_is_memory_too,
    "
kept = []
for _ in range(8):
    try:
        kept.append(mmap.mmap(-1, 100 << 20, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS))
    except OSError:
        raise MemoryError
    for page in range(0, 100 << 20, 4096): kept[-1][page] = 1
",
    OutOfMemory
);

cell!(
    many_processes_have_no_more_memory_than_one,
    r#"
ends = os.pipe()
children = []
for _ in range(6):
    pid = os.fork()
    if not pid:
        try:
            mine = bytearray(b"x") * (200 << 20)
            os.write(ends[1], b"x")
            signal.pause()
        finally:
            os._exit(1)
    children.append(pid)
os.close(ends[1])
poll, have = select.poll(), b""
poll.register(ends[0], select.POLLIN)
while len(have) < 6 and poll.poll(3000):
    piece = os.read(ends[0], 9)
    if not piece:
        break
    have += piece
for pid in children:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
if len(have) < 6:
    raise MemoryError
"#,
    OutOfMemory
);

cell!(
    what_waits_in_sockets_of_many_processes_is_memory_too,
    r#"
def fill(report):
    "Puts 300 MiB at most into sockets that nobody reads, and tells how much."
    pairs, total = [], 0
    def send():
        nonlocal total
        while total < 300 << 20: total += pairs[-1][0].send(bytes(1 << 17))
    def open_and_send():
        while total < 300 << 20:
            pairs.append(socket.socketpair())
            pairs[-1][0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            pairs[-1][0].setblocking(False)
            attempt(send)
    attempt(open_and_send)
    os.write(report, struct.pack("Q", total))
    os.close(report)
    signal.pause()

reader, writer = os.pipe()
children = []
for _ in range(4):
    pid = os.fork()
    if not pid:
        try: fill(writer)
        finally: os._exit(1)
    children.append(pid)
os.close(writer)
reports = b"".join(iter(lambda: os.read(reader, 8), b""))
for pid in children:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
if sum(struct.unpack(f"{len(reports) // 8}Q", reports)) < 700 << 20:
    raise MemoryError
"#,
    OutOfCountedMemory
);

cell!(
    what_waits_in_connections_is_memory_too,
    r#"
server, kept, total = socket.create_server(("127.0.0.1", 0)), [], 0
def send():
    global total
    while total < 700 << 20: total += kept[-1][0].send(bytes(1 << 18))
def connect_and_send():
    while total < 700 << 20:
        kept.append((socket.create_connection(server.getsockname()), server.accept()[0]))
        kept[-1][0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        kept[-1][1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        kept[-1][0].setblocking(False)
        attempt(send)
attempt(connect_and_send)
kept.clear()
if total < 700 << 20:
    raise MemoryError
"#,
    OutOfCountedMemory,
    restricted: Fails("PermissionError")
);

cell!(
    a_full_disk_is_an_error_at_its_size,
    r#"
size = 0
def fill():
    global size
    with open("big", "wb") as file:
        while True: size += file.write(bytes(1 << 20))
attempt(fill) in ("ENOSPC", "EFBIG"), size >> 20, os.remove("big")
"#,
    Shows("(True, 256, None)")
);

cell!(
    a_full_folder_of_shared_memory_is_an_error_at_its_size,
    r#"
size = 0
def fill():
    global size
    with open("/dev/shm/big", "wb") as file:
        while True: size += file.write(bytes(1 << 20))
attempt(fill) in ("ENOSPC", "EFBIG"), size >> 20, os.remove("/dev/shm/big")
"#,
    Shows("(True, 256, None)"),
    restricted: Fails("FileNotFoundError")
);

cell!(
    all_folders_share_one_disk,
    r#"
def fill(path):
    with open(path, "wb", 0) as file:
        while True: file.write(bytes(1 << 20))
folders = ("/files", "/tmp", "/var/tmp", "/home/user", "/dev/shm")
seen = [attempt(fill, folder + "/big") in ("ENOSPC", "EFBIG") for folder in folders]
sizes = [os.path.getsize(folder + "/big") for folder in folders]
for folder in folders: os.remove(folder + "/big")
seen, sum(sizes) <= 256 << 20
"#,
    Shows("([True, True, True, True, True], True)"),
    restricted: Fails("FileNotFoundError")
);

cell!(
    a_file_of_a_terabyte_is_refused,
    r#"
open("sparse", "w").close()
sizes = (1 << 40, 1 << 28)
[attempt(os.truncate, "sparse", size) for size in sizes], os.stat("sparse").st_blocks
"#,
    Shows("(['EFBIG', None], 0)")
);

cell!(
    files_without_end_end,
    r#"
def make():
    for number in range(200_000): open(f"/tmp/{number}", "w").close()
word, count = attempt(make), len(os.listdir("/tmp"))
for name in os.listdir("/tmp"): os.remove("/tmp/" + name)
word, 60_000 < count < 65_536
"#,
    Shows("('ENOSPC', True)"),
    restricted: Fails("PermissionError")
);

cell!(
    attributes_of_a_file_end_too,
    r#"
open("a", "w").close()
def add():
    for number in range(1_000_000): os.setxattr("a", f"user.{number}", bytes(1000))
word = attempt(add)
os.remove("a")
word
"#,
    Shows("'ENOSPC'"),
    restricted: Shows("")
);

cell!(
    descriptors_end,
    r#"
kept = []
def take():
    while True: kept.append(os.open("/dev/null", 0))
word = attempt(take)
for descriptor in kept: os.close(descriptor)
word, 1000 < len(kept) < 1024
"#,
    Shows("('EMFILE', True)")
);

cell!(
    pipes_events_and_timers_end_with_the_descriptors,
    r#"
def count(make):
    first, made = os.dup(0), 0
    def take():
        nonlocal made
        while True:
            make()
            made += 1
    word = attempt(take)
    os.closerange(first, 950)
    os.closerange(952, 1024)
    return word, made < 1024
def timer():
    if libc.timerfd_create(1, 0) < 0: raise OSError(ctypes.get_errno(), "")
def own(): return os.pidfd_open(os.getpid())
{count(make) for make in (os.pipe, lambda: os.eventfd(0), own, timer)}
"#,
    Shows("{('EMFILE', True)}")
);

cell!(
    no_core_is_dumped,
    "
import resource
CORE = resource.RLIMIT_CORE
resource.getrlimit(CORE), {attempt(resource.setrlimit, CORE, (n, n)) for n in (0, 1000)}
",
    Shows("((1, 1), {'ValueError'})")
);

cell!(
    no_limit_is_raised,
    r#"
import resource
names = "NPROC NOFILE STACK MEMLOCK MSGQUEUE CORE NICE RTPRIO"
limits = [getattr(resource, "RLIMIT_" + name) for name in names.split()]
{attempt(resource.setrlimit, limit, (-1, -1)) for limit in limits}
"#,
    Shows("{'ValueError'}")
);

cell!(
    little_memory_is_locked,
    r#"
page = mmap.mmap(-1, 8 << 20)
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
(call("mlock", address, 8 << 20), call("mlock2", address, 8 << 20, 0), call("mlockall", 3),
 call("mlock", address, 4096))
"#,
    Shows("('ENOMEM', 'ENOMEM', 'EPERM', 0)")
);

/// A cell whose output is too much: it succeeds, and says that some is missing.
async fn cut(code: &str, whole: Option<u64>) {
    let caller = caller();
    let scene = Scene::open(&caller).await;
    let execution = scene.attack(code).await;
    let told = short(&execution);
    let seen = (&execution["status"], &execution["truncated"]);
    assert_eq!(seen, (&json!("success"), &json!(true)), "{told}");
    assert!(execution.to_string().len() < 4 << 20, "{told}");
    if let Some(bytes) = whole {
        assert_eq!(execution["stdout_bytes"], bytes, "{told}");
    }
    scene.close().await;
}

#[tokio::test]
async fn fifty_megabytes_of_output_are_cut() {
    cut("print('x' * (50 << 20))\n1", Some((50 << 20) + 1)).await;
}

#[tokio::test]
async fn a_result_of_a_hundred_megabytes_is_cut() {
    cut("'a' * (100 << 20)", None).await;
}

#[tokio::test]
async fn a_list_of_millions_is_shown_in_part() {
    let caller = caller();
    let scene = Scene::open(&caller).await;
    let shown = scene.attacker.text("list(range(10 ** 7))").await;
    assert!(
        shown.starts_with("[0,") && shown.ends_with("...]") && shown.len() < 64 << 10,
        "{shown}"
    );
    scene.close().await;
}

#[tokio::test]
async fn a_page_of_forty_megabytes_is_cut() {
    cut("from IPython.display import HTML, display\ndisplay(HTML('a' * (40 << 20)))", None).await;
}

#[tokio::test]
async fn thousands_of_displays_are_taken_in_order() {
    let caller = caller();
    let scene = Scene::open(&caller).await;
    let code = "from IPython.display import display\nfor number in range(3000): display(number)";
    let execution = scene.attack(code).await;
    let shown: Vec<&Value> = execution["outputs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|output| &output["data"]["text/plain"])
        .collect();
    assert_eq!(shown.len(), 3000, "{}", short(&execution));
    assert_eq!((shown[0], shown[2999]), (&json!("0"), &json!("2999")));
    scene.close().await;
}

#[tokio::test]
async fn a_program_that_prints_for_ever_does_not_hold_later_cells_up() {
    let caller = caller();
    let scene = Scene::open(&caller).await;
    scene.attack("endless = subprocess.Popen(['yes'])").await;
    for _ in 0..3 {
        let execution = scene.attack("1 + 1").await;
        let seen = (&execution["status"], &execution["outputs"][0]["data"]["text/plain"]);
        assert_eq!(seen, (&json!("success"), &json!("2")), "{}", short(&execution));
    }
    scene.attack("endless.kill(); endless.wait()").await;
    scene.attack("'what was left of its output comes here'").await;
    scene.close().await;
}

#[tokio::test]
async fn timers_and_signals_kept_waiting_by_one_session_leave_others_theirs() {
    let server = server_apart().await;
    let caller = server.caller();
    let scene = Scene::open(&caller).await;
    let timers = "
timer = ctypes.c_void_p()
def timers(most):
    made = 0
    while made < most and not libc.timer_create(1, None, ctypes.byref(timer)): made += 1
    return made
";
    scene.attack(timers).await;
    scene.attack("timers(1_000_000)").await;
    scene.witness.exec(timers).await;
    assert_eq!(scene.witness.text("timers(10)").await, "10");
    scene.close().await;
}
