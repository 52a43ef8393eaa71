//! Hostile code looks for the host's files, writes where it may not, and lays traps in its own.

use serde_json::Value;

use super::Expected::{Fails, Shows, Skip};
use super::{Scene, short};
use crate::support::server::caller;

cell!(
    the_hosts_passwords_are_not_there,
    r#"[attempt(open, p) for p in ("/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/etc/ssh")]"#,
    Shows("['ENOENT', 'ENOENT', 'ENOENT', 'ENOENT']"),
    restricted: Shows("['EACCES', 'EACCES', 'ENOENT', 'EACCES']")
);

cell!(
    no_way_round_leads_to_a_file_of_the_host,
    r#"
ways = ["", "/proc/1/root", "/proc/1/cwd", "/proc/2/root/../..", "/proc/self/cwd/../../..", "/old",
        "/files/../.."]
others = "/root/.bashrc /host /run/secrets /var/run/docker.sock /etc/hostid /boot /mnt /srv"
print(*sorted({attempt(open, way + path) for way in ways for path in (HOST_FILE, HOST_PROGRAM)}))
print(*sorted({attempt(open, path) for path in others.split()}))
"#,
    Shows("EACCES ENOENT ENOENT"),
    restricted: Shows("EACCES ENOENT EACCES ENOENT")
);

cell!(
    nothing_outside_its_own_folders_is_writable,
    r#"
folders = """usr usr/bin etc . opt opt/venv opt/interpreterd opt/interpreterd/interpreterd_guest bin
lib dev run var sys room home"""
{attempt(open, f"/{folder}/x", "w") for folder in folders.split()}, attempt(open, "/proc/x", "w")
"#,
    Shows("({'EROFS'}, 'ENOENT')"),
    restricted: Shows("({'EACCES', 'ENOENT'}, 'ENOENT')")
);

cell!(
    its_own_folders_are_writable,
    r#"
folders = "files tmp var/tmp home/user dev/shm"
[open(f"/{folder}/x", "w").write("12") for folder in folders.split()]
"#,
    Shows("[2, 2, 2, 2, 2]"),
    restricted: Fails("FileNotFoundError")
);

cell!(
    the_programs_of_the_host_cannot_be_changed_in_any_way,
    r#"
p = "/opt/venv/bin/python"
one = os.open(p, 0)
{refused(os.chmod, p, 0o777), refused(os.utime, p), refused(os.unlink, p),
 refused(os.rename, p, p + "x"), refused(os.chown, p, 1000, 1000), refused(os.truncate, p, 0),
 refused(os.setxattr, p, "user.x", b"x"), refused(os.open, "/usr", os.O_TMPFILE | os.O_RDWR),
 refused(os.symlink, "x", "/usr/x"), refused(os.rmdir, "/opt"), refused(os.fchmod, one, 0o777),
 refused(mmap.mmap, one, 4096, mmap.MAP_SHARED),
 refused(fcntl.fcntl, one, fcntl.F_SETLEASE, fcntl.F_WRLCK)}
"#,
    Shows("{True}"),
    restricted: Fails("FileNotFoundError")
);

cell!(
    the_guests_own_python_cannot_be_changed_on_disk,
    r#"
import interpreterd_guest.kernel, json, numpy
files = (interpreterd_guest.kernel.__file__, json.__file__, numpy.__file__, sys.executable)
[refused(open, path, "a") for path in files]
"#,
    Shows("[True, True, True, True]")
);

cell!(
    read_only_pages_are_not_written_through_proc,
    r#"
[attempt(open, f"/proc/{pid}/mem", "r+b") for pid in (1, 2, "self", "thread-self")]
"#,
    Shows("['EROFS', 'EROFS', 'EROFS', 'EROFS']"),
    restricted: Shows("['EACCES', 'EACCES', 'EACCES', 'EACCES']")
);

cell!(
    nothing_of_proc_is_writable,
    r#"
paths = """sys/kernel/core_pattern sys/kernel/modprobe sys/kernel/ns_last_pid sys/kernel/hostname
sys/net/ipv4/ip_forward sys/user/max_user_namespaces sys/vm/drop_caches sys/fs/binfmt_misc/register
self/oom_score_adj self/uid_map self/gid_map self/setgroups self/coredump_filter self/clear_refs
self/attr/current self/comm self/timerslack_ns self/sched 1/oom_score_adj sysrq-trigger"""
{attempt(open, f"/proc/{path}", "w") for path in paths.split()} - {"ENOENT"}
"#,
    Shows("{'EROFS'}"),
    restricted: Shows("{'EACCES'}")
);

cell!(
    what_proc_tells_of_the_hosts_kernel_is_covered,
    r#"
names = """cmdline kallsyms kcore keys key-users config.gz modules timer_list interrupts slabinfo
vmallocinfo kmsg sysrq-trigger sched_debug kpagecount kpageflags pagetypeinfo"""
def length(name): return len(open(f"/proc/{name}").read(9))
{name for name in names.split() if attempt(length, name) not in (0, "ENOENT", "EACCES")}
"#,
    Shows("set()")
);

cell!(
    addresses_in_proc_are_blank,
    r#"
spans = [line.split()[0] for name in ("iomem", "ioports") for line in open(f"/proc/{name}")]
def stack(pid): return open(f"/proc/{pid}/stack").read()
{digit for span in spans for digit in span} - {"-"}, attempt(stack, "self"), attempt(stack, 1)
"#,
    Shows("({'0'}, 'EACCES', 'EACCES')"),
    restricted: Fails("PermissionError")
);

cell!(
    proc_still_tells_programs_what_they_ask_for,
    r#"
names = "version cpuinfo meminfo loadavg uptime stat self/cgroup self/maps self/status mounts"
[name for name in names.split() if not open(f"/proc/{name}").read(9)]
"#,
    Shows("[]"),
    restricted: Fails("PermissionError")
);

cell!(
    the_table_of_mounts_names_no_folder_of_the_service,
    r#"
table = open("/proc/self/mountinfo").read()
[os.path.dirname(HOST_FILE) in table, HOST_PROGRAM in table, "/work" in table]
"#,
    Shows("[False, False, False]"),
    restricted: Fails("PermissionError")
);

cell!(
    of_sysfs_there_are_the_processors_alone,
    r#"os.listdir("/sys"), os.listdir("/run"), attempt(os.listdir, "/sys/fs/cgroup")"#,
    Shows("(['devices'], [], 'ENOENT')"),
    restricted: Fails("PermissionError")
);

cell!(
    devices_that_reach_the_host_are_not_there,
    r#"
names = """userfaultfd kvm fuse mem kmem port vda sda kmsg net/tun ptmx pts/0 console loop-control
vhost-net vhost-vsock uinput hwrng rtc0 nvme0 btrfs-control"""
print({attempt(os.open, f"/dev/{name}", os.O_RDWR) for name in names.split()})
print(*sorted(os.listdir("/dev")))
"#,
    Shows("{'ENOENT'} fd full null random shm stderr stdin stdout tty urandom zero"),
    restricted: Fails("PermissionError")
);

cell!(
    the_devices_that_are_there_cannot_be_changed_or_fed,
    r#"
names, RNDADDENTROPY = "null zero full random urandom", 0x40085203
({attempt(os.chmod, f"/dev/{name}", 0) for name in names.split()}, attempt(open, "/dev/tty"),
 attempt(fcntl.ioctl, open("/dev/urandom", "wb"), RNDADDENTROPY, struct.pack("iii", 8, 4, 1)))
"#,
    Shows("({'EROFS'}, 'ENXIO', 'EPERM')"),
    restricted: Shows("({None}, 'ENXIO', 'EPERM')")
);

cell!(
    devices_cannot_be_made_and_pipes_can,
    r#"
DISK, NULL = os.makedev(254, 0), os.makedev(1, 3)
(attempt(os.mknod, "vda", 0o60666, DISK), attempt(os.mknod, "null", 0o20666, NULL),
 attempt(os.mkfifo, "fifo"))
"#,
    Shows("('EPERM', 'EPERM', None)")
);

cell!(
    a_setuid_program_of_its_own_gives_it_nothing,
    r#"
open("id", "wb").write(open("/usr/bin/id", "rb").read())
os.chmod("id", 0o6755)
told = subprocess.run(["id", "-u"], capture_output=True).stdout
attempt(os.chown, "id", 0, 0), oct(os.stat("id").st_mode), told
"#,
    Shows(r"('EINVAL', '0o106755', b'1000\n')"),
    restricted: Skip("its user is the service's there")
);

cell!(
    no_file_is_given_capabilities_or_trusted_attributes,
    r#"
open("a", "w").close()
capabilities = struct.pack("<IIIII", 0x02000001, 0xffffffff, 0, 0, 0)
SETFLAGS, IMMUTABLE = 0x40086602, struct.pack("l", 0x10)
names = "security.capability trusted.x security.x"
({attempt(os.setxattr, "a", name, capabilities) for name in names.split()},
 attempt(fcntl.ioctl, open("a"), SETFLAGS, IMMUTABLE))
"#,
    Shows("({'EPERM'}, 'EPERM')"),
    restricted: Shows("({None}, 'EPERM')")
);

cell!(
    files_cannot_be_linked_in_from_outside_or_moved_across_folders,
    r#"
for path in ("a", "/tmp/b"): open(path, "w").close()
({attempt(os.rename, "a", "/tmp/a"), attempt(os.rename, "/tmp/b", "/home/user/b"),
  attempt(os.link, "/etc/passwd", "passwd"), attempt(os.link, sys.executable, "/tmp/p")},
 {attempt(os.rmdir, "/files"), attempt(os.rename, "/files", "/files2")})
"#,
    Shows("({'EXDEV'}, {'EROFS'})"),
    restricted: Fails("PermissionError")
);

cell!(
    links_through_descriptors_lead_nowhere_new,
    r#"
channel = {attempt(open, f"/{way}/950") for way in ("dev/fd", "proc/self/fd", "proc/2/fd")}
ways = "/proc/1/fd/0 /proc/1/exe /proc/1/map_files /proc/2/ns/../../1/ns/mnt /proc/1/task/1/root"
channel, {attempt(os.open, way, 0) for way in ways.split()}, attempt(open, "/dev/fd/1/..")
"#,
    Shows("({'ENXIO'}, {'EACCES'}, 'ENOTDIR')"),
    restricted: Shows("({'EACCES', 'ENXIO'}, {'EACCES'}, 'ENOTDIR')")
);

cell!(
    nobody_is_watched_as_he_reads_shared_files,
    "
import json
folder = os.open(os.path.dirname(json.__file__), os.O_RDONLY)
ACCESS, AGAIN_AND_AGAIN = 1, -1 << 31
attempt(fcntl.fcntl, folder, fcntl.F_NOTIFY, ACCESS | AGAIN_AND_AGAIN)
",
    Shows("'EPERM'")
);

#[tokio::test]
async fn links_and_pipes_among_its_files_lead_the_service_nowhere() {
    let caller = caller();
    let scene = Scene::open(&caller).await;
    let code = r#"
links = """shadow=/etc/shadow up=../../../../etc/passwd root=/proc/self/root/etc/passwd folder=/
zero=/dev/zero proc=/proc tmp=/tmp loop=loop out=/proc/self/fd/1"""
for link in links.split():
    name, target = link.split("=")
    os.symlink(target, "/files/" + name)
os.mkfifo("/files/pipe")
os.mknod("/files/socket", 0o140666)
os.mkdir("/files/sub")
os.symlink("../ok.txt", "/files/sub/inside")
open("/files/ok.txt", "w").write("fine"), open("/tmp/other", "w").write("other")
"#;
    assert_eq!(scene.attack(code).await["text"], "(4, 5)");
    let (_, listed) = caller.get(&scene.attacker.path("/files")).await;
    assert_eq!(paths(&listed), ["ok.txt"]);
    let leading_out = "shadow up root folder/etc/passwd zero proc/self/environ tmp/other loop out";
    for path in leading_out.split(' ').chain(["pipe", "socket", "sub"]) {
        assert_eq!(scene.attacker.download(path).await.status(), 409, "{path}");
    }
    for path in ["folder/tmp/x", "tmp/x", "loop/x", "pipe/x", "up/x"] {
        assert_eq!(scene.attacker.put(path, "x").await.0, 409, "{path}");
        let deleted = caller.delete(&scene.attacker.path(&format!("/files/{path}"))).await;
        assert_eq!(deleted, 409, "{path}");
    }
    assert_eq!(scene.attacker.put("shadow", "mine").await.0, 200); // in place of the link itself
    let inside = scene.attacker.download("sub/inside").await;
    assert_eq!(inside.text().await.unwrap(), "fine");
    assert_eq!(scene.attacker.text("os.listdir('/tmp')").await, "['other']");
    scene.close().await;
}

fn paths(listed: &Value) -> Vec<&str> {
    let files = listed["data"].as_array().unwrap();
    files.iter().map(|file| file["path"].as_str().unwrap()).collect()
}

/// Lays a trap among the files and sees that no answer is a failure of the service.
async fn trap(code: &str, path: &str) {
    let caller = caller();
    let scene = Scene::open(&caller).await;
    let execution = scene.attack(code).await;
    assert_eq!(execution["status"], "success", "{}", short(&execution));
    let listed = caller.get(&scene.attacker.path("/files")).await.0;
    let read = scene.attacker.download(path).await.status();
    let written = scene.attacker.put(path, "x").await.0;
    let deleted = caller.delete(&scene.attacker.path(&format!("/files/{path}"))).await;
    for status in [listed, read, written, deleted] {
        assert!(status.as_u16() < 500, "{:?}", [listed, read, written, deleted]);
    }
    scene.attack("signal.signal(signal.SIGIO, signal.SIG_IGN)").await;
    scene.close().await;
}

#[tokio::test]
async fn a_file_that_its_session_holds_back_is_no_failure_of_the_service() {
    let lease = r#"
signal.signal(signal.SIGIO, signal.SIG_IGN)
held = os.open("/files/held", os.O_CREAT | os.O_RDWR)
attempt(fcntl.fcntl, held, fcntl.F_SETLEASE, fcntl.F_WRLCK)
"#;
    trap(lease, "held").await;
}

#[tokio::test]
async fn a_file_closed_to_its_owner_is_no_failure_of_the_service() {
    trap("open('/files/a', 'w').write('x')\nos.chmod('/files/a', 0)", "a").await;
}

#[tokio::test]
async fn a_folder_closed_to_its_owner_is_no_failure_of_the_service() {
    trap("os.mkdir('/files/sub')\nos.chmod('/files/sub', 0)", "sub/a").await;
}

#[tokio::test]
async fn the_files_folder_closed_to_its_owner_is_no_failure_of_the_service() {
    trap("open('/files/a', 'w').write('x')\nos.chmod('/files', 0)", "a").await;
}

#[tokio::test]
async fn names_of_all_kinds_are_listed_as_they_are() {
    let caller = caller();
    let scene = Scene::open(&caller).await;
    let code = r#"
names = [b"new\nline", b"\xff\xfe", b"a" * 255, b" ", b"-rf", b"..x", b"\x01\x1b[31m"]
for name in [*names, b"%2e%2e", b"<script>", b"\\"]: open(b"/files/" + name, "w").close()
os.chdir("/files")
for _ in range(100):
    os.mkdir("d" * 200)
    os.chdir("d" * 200)
open("deep", "w").close()
os.chdir("/files")
"#;
    assert_eq!(scene.attack(code).await["status"], "success");
    let (status, listed) = caller.get(&scene.attacker.path("/files")).await;
    assert_eq!(status, 200, "{listed}");
    let paths = paths(&listed);
    let long = "a".repeat(255);
    let plain = [" ", "%2e%2e", "-rf", "..x", "<script>", "\\", &long];
    for name in plain.into_iter().chain(["\u{1}\u{1b}[31m", "new\nline"]) {
        assert!(paths.contains(&name), "{name:?}: {listed}");
    }
    for path in paths {
        let status = scene.attacker.download(path).await.status();
        assert!(status.as_u16() < 500, "{status} {path:?}");
    }
    scene.close().await;
}

#[tokio::test]
async fn a_folder_swapped_for_a_link_while_files_are_put_lets_none_out() {
    let caller = caller();
    let scene = Scene::open(&caller).await;
    scene.attack("os.mkdir('/files/sub')\nos.mkdir('/tmp/outside')").await;
    let code = r#"
end = time.monotonic() + 1
while time.monotonic() < end:
    attempt(os.rename, "/files/sub", "/files/kept")
    attempt(os.symlink, "/tmp/outside", "/files/sub")
    attempt(os.unlink, "/files/sub")
    attempt(os.rename, "/files/kept", "/files/sub")
os.listdir("/tmp/outside")
"#;
    let put = async {
        for _ in 0..200 {
            let (status, body) = scene.attacker.put("sub/x", "x").await;
            assert!(status.as_u16() < 500, "{body}");
        }
    };
    let (execution, ()) = tokio::join!(scene.attack(code), put);
    assert_eq!(execution["text"], "[]", "{}", short(&execution));
    scene.close().await;
}

#[tokio::test]
async fn two_sessions_use_the_same_names_side_by_side() {
    let caller = caller();
    let scene = Scene::open(&caller).await;
    let code = r#"
from multiprocessing import shared_memory
shared = shared_memory.SharedMemory("clash", create=True, size=4)
for folder in ("/dev/shm", "/tmp", "/var/tmp", "/home/user"):
    with open(folder + "/name", "x") as file: file.write(str(id(shared)))
bytes(shared.buf)
"#;
    for session in [&scene.attacker, &scene.witness] {
        assert_eq!(session.text(code).await, r"b'\x00\x00\x00\x00'");
        session.exec("shared.buf[:] = b'mine'").await;
    }
    scene.close().await;
}

#[tokio::test]
async fn nothing_left_in_the_home_folder_lives_on_in_the_next_interpreter() {
    let caller = caller();
    let scene = Scene::open(&caller).await;
    let code = r#"
import site
os.environ["LD_PRELOAD"] = os.environ["PYTHONSTARTUP"] = "/files/evil"
for path in (site.getusersitepackages(), os.path.expanduser("~/.ipython/profile_default/startup")):
    os.makedirs(path)
    for name in ("usercustomize.py", "sitecustomize.py", "evil.pth", "00.py"):
        open(path + "/" + name, "w").write("import os; os._exit(66)")
for name in ("json", "os", "sitecustomize", "usercustomize", "interpreterd_guest", "traceback"):
    open(f"/files/{name}.py", "w").write("import os; os._exit(66)")
os._exit(1)
"#;
    assert_eq!(scene.attack(code).await["exit_code"], 1);
    let left =
        "import os\nos.listdir('/home/user'), {'LD_PRELOAD', 'PYTHONSTARTUP'} & set(os.environ)";
    assert_eq!(scene.attacker.text(left).await, "([], set())");
    scene.close().await;
}
