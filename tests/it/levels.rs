//! How strongly sessions are kept apart: what is found, told, and refused.

use std::os::unix::fs::MetadataExt;
use std::process::Output;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::processes::descendants;
use crate::support::server::{Server, command, command_without, open_folder, restricted, shared};

fn check(mut command: std::process::Command, more: &[&str]) -> (bool, String) {
    let folder = open_folder();
    command.args(["check", "--data-dir"]).arg(folder.path().join("data")).args(more);
    let Output { status, stdout, stderr } = command.output().unwrap();
    let said = [stdout, stderr].concat();
    (status.success(), String::from_utf8_lossy(&said).into_owned())
}

async fn told(server: &Server) -> Value {
    server.caller().get("/v1/providers").await.1["data"][0].clone()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[tokio::test]
async fn providers_and_each_session_tell_the_same_isolation() {
    for server in [shared(), restricted()] {
        let provider = told(server).await;
        let (status, session) = server.caller().post("/v1/sessions", json!({})).await;
        assert_eq!(status, 201);
        assert_eq!(session["isolation"], provider["isolation"]);
        assert_eq!(session["capabilities"], provider["capabilities"]);
    }
}

#[tokio::test]
async fn what_holds_each_limit_is_told_and_what_is_missing_with_its_remedy() {
    let isolation = told(shared()).await["isolation"].clone();
    assert_eq!(
        (&isolation["level"], &isolation["network"], &isolation["disk_limit"]),
        (&json!("namespaced"), &json!("loopback"), &json!("tmpfs"))
    );
    let missing = isolation["missing"].as_array().unwrap();
    let has = |what: &str| missing.iter().any(|text| text.as_str().unwrap().contains(what));
    assert_eq!(has("no cgroup for memory"), isolation["memory_limit"] == "rlimit", "{isolation}");
    assert_eq!(has("no cgroup for processors"), isolation["cpu_limit"] == "nice", "{isolation}");
    if is_root() {
        let holder = isolation["memory_limit"].as_str().unwrap();
        assert!(holder.starts_with("cgroup"), "root can have cgroups here: {isolation}");
    }
    let (good, said) = check(command(), &["--local-cgroups=false"]);
    assert!(good, "{said}");
    assert!(
        said.contains("less     provider local: no cgroup for memory")
            && said.contains("limits held by: memory rlimit, processes rlimit, processors nice"),
        "{said}"
    );
}

#[tokio::test]
async fn a_host_without_namespaces_is_refused_and_told_what_to_change() {
    let (good, said) = check(command_without(libc::SYS_unshare), &[]);
    assert!(!good, "{said}");
    for words in ["missing  provider local", "user namespaces are not allowed", "--local-levels"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let folder = open_folder();
    let mut serve = command_without(libc::SYS_unshare);
    serve.args(["serve", "--listen", "127.0.0.1:0", "--data-dir"]).arg(folder.path().join("data"));
    let refused = serve.output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && said.contains("the default provider does not work"),
        "{said}"
    );
}

#[tokio::test]
async fn restricted_is_taken_where_no_room_can_be_made_and_it_is_allowed() {
    // no namespaces at all, and none that can be entered
    for call in [libc::SYS_unshare, libc::SYS_setns] {
        let server = Server::start_without(call, &[("LOCAL_LEVELS", "namespaced,restricted")]);
        let provider = told(&server).await;
        assert_eq!(provider["isolation"]["level"], "restricted");
        assert_eq!(provider["capabilities"]["absolute_files_dir"], false);
        let caller = server.caller();
        let session = caller.session().await;
        assert_eq!(session.text("import numpy; int(numpy.arange(5).sum())").await, "10");
        let files_dir = caller.get(&session.path("")).await.1["files_dir"].clone();
        let seen = session.text("import os; os.getcwd()").await;
        assert_eq!(seen.trim_matches('\''), files_dir.as_str().unwrap());
    }
}

#[test]
fn restricted_where_it_is_allowed_is_not_taken_while_namespaced_works() {
    let (good, said) = check(command(), &["--local-levels=namespaced,restricted"]);
    assert!(good && said.contains(", namespaced, "), "{said}");
}

#[test]
fn none_needs_a_second_word() {
    let (good, said) = check(command(), &["--local-levels=none"]);
    assert!(!good && said.contains("--local-allow-insecure"), "{said}");
    let (good, said) = check(command(), &["--local-levels=none", "--local-allow-insecure"]);
    assert!(good, "{said}");
    assert!(said.contains(", none, ") && said.contains("no isolation at all"), "{said}");
    let (good, said) = check(command(), &["--local-levels=strong"]);
    assert!(!good && said.contains("possible values: namespaced, restricted, none"), "{said}");
}

#[tokio::test]
async fn sessions_at_the_level_none_run_and_end_whole() {
    let server = Server::start(&[("LOCAL_LEVELS", "none"), ("LOCAL_ALLOW_INSECURE", "true")]);
    let caller = server.caller();
    let session = caller.session().await;
    let code = "import subprocess\np = subprocess.Popen(['sleep', '300'])\nopen('a.txt', 'w').write('x'); p.pid";
    let pid = session.text(code).await;
    assert!(std::path::Path::new("/proc").join(&pid).exists());
    assert_eq!(session.delete().await, 204);
    crate::support::processes::all_gone(&[pid.parse().unwrap()]);
}

#[tokio::test]
async fn restricted_sessions_leave_no_folder_and_no_process() {
    let server = restricted();
    let caller = server.caller();
    let session = caller.session().await;
    let told = caller.get(&session.path("")).await.1;
    let folder = std::path::Path::new(told["files_dir"].as_str().unwrap()).parent().unwrap();
    assert_eq!(folder.parent(), Some(server.data_dir.join("rooms").as_path()));
    let code = "import os, subprocess\nos.makedirs('a/b'); open('a/b/c', 'w').close(); os.chmod('a', 0)\nos.symlink('/usr', 'link')\n[subprocess.Popen(['sleep', '300']).pid for _ in range(3)]";
    let pids = session.text(code).await;
    let pids: Vec<u32> =
        pids.trim_matches(['[', ']']).split(", ").map(|pid| pid.parse().unwrap()).collect();
    assert!(folder.exists());
    assert_eq!(session.delete().await, 204);
    assert!(!folder.exists());
    crate::support::processes::all_gone(&pids);
    assert!(std::path::Path::new("/usr/bin").exists());
}

#[tokio::test]
async fn a_restricted_session_keeps_its_files_when_its_kernel_dies() {
    let caller = restricted().caller();
    let session = caller.session().await;
    session.exec("open('a.txt', 'w').write('kept')").await;
    let died = session.exec("import os; os._exit(3)").await;
    assert_eq!(
        (&died["exit_code"], &died["state_lost"], &died["files_lost"]),
        (&json!(3), &json!(true), &json!(false))
    );
    let next = session.exec("open('a.txt').read()").await;
    assert_eq!((&next["text"], &next["files"]), (&json!("'kept'"), &json!([])));
}

#[tokio::test]
async fn restricted_sessions_keep_their_files_when_the_warden_is_killed() {
    let server = Server::start(&[("LOCAL_LEVELS", "restricted")]);
    let caller = server.caller();
    let session = caller.session().await;
    session.exec("x = 1\nopen('a.txt', 'w').write('kept')").await;
    let warden = rustix::process::Pid::from_raw(descendants(server.pid())[0].cast_signed());
    rustix::process::kill_process(warden.unwrap(), rustix::process::Signal::KILL).unwrap();
    let started = Instant::now();
    loop {
        // until the death is seen, the kernel is there
        let next = session.exec("'x' in globals(), open('a.txt').read()").await;
        if next["text"] == "(False, 'kept')" {
            assert_eq!(next["files_lost"], false);
            return;
        }
        assert!(started.elapsed() < Duration::from_secs(10), "{next}");
    }
}

#[tokio::test]
async fn restricted_sessions_change_nothing_of_the_services_files() {
    // one of its own: sessions of others change the folder of all
    let server = Server::start(&[("LOCAL_LEVELS", "restricted"), ("LOCAL_POOL", "0")]);
    let caller = server.caller();
    let session = caller.session().await;
    let seen = |path: &std::path::Path| {
        let metadata = std::fs::metadata(path).unwrap();
        (metadata.mode(), metadata.uid(), metadata.ctime_nsec())
    };
    let paths =
        [server.data_dir.clone(), server.data_dir.join("lock"), server.data_dir.join("rooms")];
    let before: Vec<_> = paths.iter().map(|path| seen(path)).collect();
    for path in &paths {
        let code = format!(
            "import os\npath = {path:?}\nfor change in (lambda: os.chmod(path, 0), lambda: os.utime(path, (1, 1)), lambda: os.setxattr(path, 'user.x', b'x'), lambda: os.listdir(path), lambda: open(path), lambda: os.rename(path, path + '2'), lambda: os.truncate(path, 0)):\n    try: change()\n    except OSError: pass"
        );
        session.exec(&code).await;
    }
    let after: Vec<_> = paths.iter().map(|path| seen(path)).collect();
    assert_eq!(before, after);
    let own = "import os\nopen('s', 'w').close(); os.chmod('s', 0o4755)\nfd = -1\ntry: fd = os.open('t', os.O_CREAT | os.O_WRONLY, 0o4755)\nexcept OSError as error: print(error.errno)\noct(os.stat('s').st_mode)";
    assert_eq!(session.text(own).await, "1\n'0o100644'");
}

#[tokio::test]
async fn restricted_sessions_cannot_leave_their_process_group() {
    let caller = restricted().caller();
    let session = caller.session().await;
    let code = "import errno, os\ndef attempt(f, *a):\n    try: return f(*a)\n    except OSError as error: return errno.errorcode[error.errno]\nattempt(os.setsid), attempt(os.setpgid, 0, 0), os.getpgrp() == os.getpid()";
    assert_eq!(session.text(code).await, "('EPERM', 'EPERM', True)");
}

#[tokio::test]
async fn files_of_restricted_sessions_count_however_they_are_hidden() {
    let caller = restricted().caller();
    let fill = "import os, time\ndef fill(file):\n    for _ in range(40):\n        file.write(bytes(1 << 20)); time.sleep(0.1)";
    for hide in [
        "f = open('a', 'wb', 0); os.remove('a'); fill(f)",
        "f = open(os.open('.', os.O_TMPFILE | os.O_WRONLY, 0o600), 'wb', 0); fill(f)",
        "import ctypes\nctypes.CDLL(None).prctl(4, 0)\nf = open('a', 'wb', 0); os.remove('a'); fill(f)",
        "for _ in range(200): os.mkdir('d'); os.chdir('d')\nfill(open('a', 'wb', 0))",
        "fill(open(os.environ['HOME'] + '/a', 'wb', 0))",
    ] {
        let session = caller.session_with(json!({"limits": {"disk_bytes": 8 << 20}})).await;
        let full = session.exec(&format!("{fill}\n{hide}")).await;
        assert_eq!(
            (&full["status"], &full["failure"]["kind"]),
            (&json!("error"), &json!("limit")),
            "{hide}: {full}"
        );
        assert_eq!(session.text("1 + 1").await, "2");
    }
}

#[tokio::test]
async fn a_terminals_interrupt_reaches_the_service_alone() {
    let server = Server::start(&[]);
    let group = |pid: u32| {
        let pid = rustix::process::Pid::from_raw(pid.cast_signed());
        rustix::process::getpgid(pid).unwrap()
    };
    for pid in descendants(server.pid()) {
        assert_ne!(group(pid), group(server.pid()));
    }
}

#[tokio::test]
async fn the_end_of_the_service_ends_restricted_sessions() {
    let server = Server::start(&[("LOCAL_LEVELS", "restricted")]);
    let caller = server.caller();
    let session = caller.session().await;
    let pid = session.text("import subprocess; subprocess.Popen(['sleep', '300']).pid").await;
    server.signal(libc::SIGKILL);
    server.wait();
    crate::support::processes::all_gone(&[pid.parse().unwrap()]);
}

/// A guest like the installed one, whose Python starts a thread before anything else.
fn guest_with_a_thread() -> tempfile::TempDir {
    let installed = std::env::var_os("INTERPRETERD_GUEST_DIR")
        .map_or_else(|| "/var/lib/interpreterd/guest".into(), std::path::PathBuf::from);
    let guest = std::fs::read_dir(&installed)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.join("guest.json").is_file())
        .unwrap();
    let folder = tempfile::tempdir_in(installed.parent().unwrap()).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), mode).unwrap();
    #[expect(clippy::disallowed_methods, reason = "copies by links what is too large to copy")]
    let copied =
        std::process::Command::new("cp").arg("-al").arg(&guest).arg(folder.path()).status();
    assert!(copied.unwrap().success());
    let lib = folder.path().join(guest.file_name().unwrap()).join("lib");
    let python = std::fs::read_dir(lib).unwrap().next().unwrap().unwrap().path();
    let start = "import threading, time; threading.Thread(target=time.sleep, args=(300,), daemon=True).start()\n";
    std::fs::write(python.join("site-packages/thread.pth"), start).unwrap();
    folder
}

#[test]
fn a_warm_python_with_a_thread_is_refused() {
    if !is_root() {
        return; // others may not link to the guest's files
    }
    let guest = guest_with_a_thread();
    let (good, said) = check(command(), &["--guest-dir", guest.path().to_str().unwrap()]);
    assert!(!good && said.contains("keep the zygote single-threaded"), "{said}");
}
