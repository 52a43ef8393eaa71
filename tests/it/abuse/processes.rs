//! Hostile code looks for other processes, for the service's memory and for rights that it lost.

use super::Expected::{Fails, Shows, Skip};
use super::Scene;
use crate::support::server::caller;

cell!(
    no_environment_of_the_host_is_read,
    r#"
def holds(pid):
    return b"sesame" in open(f"/proc/{pid}/environ", "rb").read()
[attempt(holds, pid) for pid in (1, 2, "self")], "SECRET_HOST_ENV" in os.environ
"#,
    Shows("(['EACCES', False, False], False)"),
    restricted: Shows("(['EACCES', 'EACCES', 'EACCES'], False)")
);

cell!(
    its_own_environment_is_short_and_tells_nothing,
    r#"
passed_on = {"OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"}
expected = """HOME LANG MALLOC_ARENA_MAX MPLBACKEND OPENBLAS_NUM_THREADS PATH
PIP_DISABLE_PIP_VERSION_CHECK PIP_NO_INDEX PYTHONDONTWRITEBYTECODE PYTHONPATH PYTHONUNBUFFERED
SHELL TERM TMPDIR USER"""
set(os.environ) - passed_on ^ set(expected.split())
"#,
    Shows("set()")
);

cell!(
    only_its_own_processes_are_seen,
    r#"
listed = subprocess.run(["ps", "-eo", "comm="], capture_output=True, text=True).stdout.split()
numbers = [name for name in os.listdir("/proc") if name.isdigit()]
numbers, len(listed), {attempt(os.kill, pid, 0) for pid in HOST_PIDS}
"#,
    Shows("(['1', '2'], 3, {'ESRCH'})"),
    restricted: Fails("PermissionError")
);

cell!(
    nobody_else_is_signalled_in_any_way,
    r#"
KILL, own_first = signal.SIGKILL, os.pidfd_open(1)
strangers = (3, 100, *HOST_PIDS)
print({attempt(os.kill, 1, KILL), call("tkill", 1, KILL), call("tgkill", 1, 1, KILL),
       call("rt_sigqueueinfo", 1, KILL, bytes(128)),
       call("pidfd_send_signal", own_first, KILL, 0, 0)})
print({attempt(signal_one, pid, KILL) for signal_one in (os.kill, os.killpg) for pid in strangers})
print({attempt(os.pidfd_open, pid) for pid in strangers}, attempt(os.killpg, 1, KILL))
"#,
    Shows("{'EPERM'} {'ESRCH'} {'ESRCH'} ESRCH"),
    restricted: Skip("numbers of processes are the host's there")
);

cell!(
    neither_the_service_nor_its_starter_is_signalled,
    "[attempt(os.kill, pid, signal.SIGKILL) for pid in HOST_PIDS]",
    Shows("['ESRCH', 'ESRCH']"),
    restricted: Shows("['EPERM', 'EPERM']")
);

cell!(
    a_signal_to_all_reaches_its_own_processes_alone,
    r#"
child = subprocess.Popen(["sleep", "60"])
attempt(os.kill, -1, signal.SIGKILL), child.wait(), attempt(os.kill, 1, 0)
"#,
    Shows("(None, -9, 'EPERM')")
);

cell!(
    the_owner_of_a_descriptor_sends_nobody_else_a_signal,
    r#"
one, two = socket.socketpair()
F_SETSIG = 10
def own(pid):
    fcntl.fcntl(one, fcntl.F_SETOWN, pid)
    fcntl.fcntl(one, F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(one, fcntl.F_SETFL, fcntl.fcntl(one, fcntl.F_GETFL) | os.O_ASYNC)
    two.send(b"x")
attempt(own, 1), attempt(own, -1), {attempt(own, pid) for pid in HOST_PIDS}
"#,
    Shows("(None, None, {'ESRCH'})"),
    restricted: Shows("(None, None, {None})")
);

cell!(
    the_rooms_first_process_is_closed,
    r#"
names = """fd maps mem root cwd exe environ auxv stack syscall io ns/mnt fdinfo map_files pagemap
personality timers"""
def look(path):
    return os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(9)
{name for name in names.split() if not refused(look, f"/proc/1/{name}")}
"#,
    Shows("set()")
);

cell!(
    limits_and_priorities_of_others_stay,
    r#"
PROCESS, NOFILE = 0, 7
[call("prlimit64", 1, NOFILE, struct.pack("QQ", 1, 1), 0), call("setpriority", PROCESS, 1, 19),
 call("sched_setaffinity", 1, 8, struct.pack("Q", 1))]
"#,
    Shows("['EPERM', 'EPERM', 'EPERM']")
);

cell!(
    its_own_priority_is_not_raised,
    r#"
PROCESS, REAL_TIME = 1, 1 << 13
[refused(os.nice, -5), refused(os.setpriority, os.PRIO_PROCESS, 0, -20),
 refused(os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(1)),
 refused(os.sched_setscheduler, 0, os.SCHED_RR, os.sched_param(99)),
 call("ioprio_set", PROCESS, 0, REAL_TIME)]
"#,
    Shows("[True, True, True, True, 'EPERM']")
);

cell!(
    it_has_no_capabilities_and_cannot_have_any,
    r#"
lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
sets = [int(lines[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")]
header, everything = struct.pack("Ii", 0x20080522, 0), b"\xff" * 24
others = [lines[name].split() for name in ("NoNewPrivs", "Seccomp", "Groups", "Uid")]
sets, others, call("capset", header, everything)
"#,
    Shows("([0, 0, 0, 0, 0], [['1'], ['2'], [], ['1000', '1000', '1000', '1000']], 'EPERM')"),
    restricted: Fails("PermissionError")
);

cell!(
    it_becomes_nobody_else,
    r#"
({attempt(os.setuid, 0), attempt(os.setgid, 0), attempt(os.setresuid, 0, 0, 0),
  attempt(os.setreuid, 0, 0), attempt(os.setregid, 0, 0)}, attempt(os.setgroups, [0]),
 call("setfsuid", 0), os.getresuid())
"#,
    Shows("({'EINVAL'}, 'EPERM', 1000, (1000, 1000, 1000))"),
    restricted: Skip("its user is the service's there")
);

cell!(
    setuid_programs_of_the_host_have_no_effect,
    r#"
table = open("/proc/self/mountinfo").read().splitlines()
su = subprocess.run(["su", "-c", "id"], stdin=subprocess.DEVNULL, capture_output=True)
[line for line in table if "nosuid" not in line.split()[5]], su.returncode != 0, su.stdout
"#,
    Shows("([], True, b'')"),
    restricted: Fails("PermissionError")
);

cell!(
    the_memory_that_it_was_forked_from_holds_no_secret_of_the_host,
    r#"
import re
secrets = rb"sesame[-]42|SECRET_HOST[_]ENV|INTERPRETERD[_]"  # not found where they are asked for
found = []
with open("/proc/self/mem", "rb", 0) as memory:
    for line in open("/proc/self/maps"):
        span, mode = line.split()[:2]
        first, end = (int(part, 16) for part in span.split("-"))
        if mode.startswith("rw") and "[v" not in line:
            memory.seek(first)
            found += re.findall(secrets, memory.read(end - first))
found
"#,
    Shows("[]"),
    restricted: Fails("PermissionError")
);

cell!(
    no_object_that_it_was_forked_with_holds_a_secret_of_the_host,
    r#"
import gc
texts = [one for one in gc.get_objects() if isinstance(one, (str, bytes, dict, list))]
secret = "ame-4".join(("ses", "2"))
any(secret in repr(one)[:100_000] for one in texts if one is not globals() and one is not locals())
"#,
    Shows("False")
);

cell!(
    a_child_of_its_parents_parent_is_reaped_like_others,
    r#"
CLONE_PARENT = 0x8000
born = []
for _ in range(200):
    pid = call("clone", CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    born.append(pid)
alone = lambda: [name for name in os.listdir("/proc") if name.isdigit()] == ["1", "2"]
len(born), wait_until(alone)
"#,
    Shows("(200, True)"),
    restricted: Fails("PermissionError")
);

cell!(
    orphans_are_taken_by_the_rooms_own_first_process,
    r#"
# one that may not leave its group says nothing of it: its words would come in the next cell
script = """import os
for _ in range(20):
    if not os.fork():
        try:
            os.setsid()
        finally:
            os._exit(0)
"""
subprocess.run([sys.executable, "-S", "-c", script])
wait_until(lambda: [name for name in os.listdir("/proc") if name.isdigit()] == ["1", "2"])
"#,
    Shows("True"),
    restricted: Fails("PermissionError")
);

cell!(
    a_process_that_leaves_its_group_and_its_parents_stays_in_the_room,
    r#"
subprocess.Popen(["setsid", "sleep", "1000"])
subprocess.run(["bash", "-c", "(setsid sleep 1001 &)"])
wait_until(lambda: subprocess.getoutput("pgrep -c -x sleep") == "2")
"#,
    Shows("True"),
    restricted: Skip("there it cannot leave its group, which levels.rs holds")
);

cell!(
    it_cannot_leave_the_group_that_interrupts_reach,
    "[attempt(os.setpgid, 0, 0), attempt(os.setsid), os.getpgrp(), os.getsid(0)]",
    Shows("['EPERM', 'EPERM', 2, 2]"),
    restricted: Skip("numbers of processes are the host's there")
);

cell!(
    the_service_at_the_other_end_of_its_channel_is_out_of_reach,
    r#"
PEERCRED, PEERPIDFD, NET, GET_NET_NAMESPACE = 17, 77, 0x40000000, 0xff04
channel = socket.socket(fileno=os.dup(950))
service = attempt(channel.getsockopt, socket.SOL_SOCKET, PEERPIDFD)
seen = set() if isinstance(service, str) else {
    call("pidfd_send_signal", service, 0, 0, 0), call("pidfd_getfd", service, 1, 0),
    call("setns", service, NET), attempt(fcntl.ioctl, service, GET_NET_NAMESPACE, 0)}
pid = struct.unpack("iII", channel.getsockopt(socket.SOL_SOCKET, PEERCRED, 12))[0]
pid, seen <= {"EPERM", "EINVAL", "EACCES", "ENOTTY"}
"#,
    Shows("(0, True)"),
    restricted: Skip("the service's number is known there, and of no use")
);

#[tokio::test]
async fn what_a_dead_interpreter_started_is_gone_with_it() {
    let caller = caller();
    let scene = Scene::open(&caller).await;
    let code = r#"
for _ in range(3): subprocess.Popen(["setsid", "sleep", "31338"])
subprocess.run("nohup sleep 31338 >/dev/null 2>&1 &", shell=True)
wait_until(lambda: subprocess.getoutput("pgrep -c -x sleep") == "4")
"#;
    assert_eq!(scene.attack(code).await["text"], "True");
    assert_eq!(sleepers(), 4);
    assert_eq!(scene.attack("os._exit(1)").await["exit_code"], 1);
    assert_eq!(sleepers(), 0);
    scene.close().await;
}

/// Processes of the host that run `sleep 31338`.
fn sleepers() -> usize {
    let processes = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| std::fs::read(entry.ok()?.path().join("cmdline")).ok());
    processes.filter(|line| line == b"sleep\x0031338\0").count()
}
