//! What a cell cannot see or reach.

use serde_json::json;

use crate::support::server::{Server, caller, open_folder, shared};

#[tokio::test]
async fn two_sessions_do_not_see_each_others_variables_files_or_processes() {
    let caller = caller();
    let (one, two) = (caller.session().await, caller.session().await);
    one.exec("secret = 1\nopen('mine.txt', 'w').write('x')\nimport subprocess; p = subprocess.Popen(['sleep', '300'])").await;
    assert_eq!(two.text("'secret' in globals()").await, "False");
    assert_eq!(
        two.text("import os; os.listdir('/files'), os.listdir('/tmp'), os.listdir('/dev/shm')")
            .await,
        "([], [], [])"
    );
    let processes = "sorted(int(p) for p in os.listdir('/proc') if p.isdigit())";
    assert_eq!(two.text(processes).await, "[1, 2]");
    assert_eq!(one.text(&format!("import os; {processes}")).await, "[1, 2, 3]");
}

#[tokio::test]
async fn there_is_no_network_but_a_loopback_of_its_own() {
    let port = shared().base.rsplit(':').next().unwrap();
    let caller = caller();
    let session = caller.session().await;
    let code = format!(
        "import socket\ndef reach(*a):\n    try:\n        socket.create_connection(a, 2); return 'reached'\n    except OSError as e: return e.errno\n\
         reach('127.0.0.1', {port}), reach('1.1.1.1', 443), reach('169.254.169.254', 80)"
    );
    assert_eq!(session.text(&code).await, "(111, 101, 101)");
    assert_eq!(
        session.text("socket.gethostname(), sorted(l.split(':')[0].strip() for l in open('/proc/net/dev') if ':' in l)").await,
        "('sandbox', ['lo'])"
    );
    let own = "s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); reach(*s.getsockname())";
    assert_eq!(session.text(own).await, "'reached'");
}

#[tokio::test]
async fn no_host_file_is_there() {
    let folder = open_folder();
    let secret = folder.path().join("secret.txt");
    std::fs::write(&secret, "sesame-42").unwrap();
    let caller = caller();
    let session = caller.session().await;
    let code = format!(
        "def peek(p):\n    try: return open(p).read(99)\n    except OSError as e: return type(e).__name__\n\
         [peek(p) for p in ('{0}', '/proc/1/root{0}', '/etc/shadow', '{1}', '/old/etc/passwd')]",
        secret.display(),
        crate::support::server::program().display()
    );
    let seen = session.text(&code).await;
    assert!(!seen.contains("sesame") && seen.matches("Error'").count() == 5, "{seen}");
    assert_eq!(session.text("open('/etc/passwd').read().count(chr(10))").await, "3");
    let writes = "def write(p):\n    try: open(p, 'w'); return 'wrote'\n    except OSError as e: return e.errno\n\
         [write(p) for p in ('/usr/x', '/etc/x', '/x', '/opt/venv/x', '/proc/x', '/dev/x')], [write(p + '/x') for p in ('/files', '/tmp', '/home/user', '/dev/shm')]";
    let seen = session.text(writes).await;
    assert!(
        seen.ends_with("['wrote', 'wrote', 'wrote', 'wrote'])")
            && !seen[..seen.len() - 40].contains("wrote"),
        "{seen}"
    );
}

#[tokio::test]
async fn no_environment_of_the_host_is_there() {
    let caller = caller();
    let session = caller.session().await;
    let code = "import os\ndef peek(p):\n    try: return open(p, 'rb').read().decode()\n    except OSError as e: return type(e).__name__\n\
         dict(os.environ), [peek(f'/proc/{p}/environ') for p in (1, 2, 'self')]";
    let seen = session.text(code).await;
    for secret in ["sesame", "INTERPRETERD", crate::support::model::KEY] {
        assert!(!seen.contains(secret), "{seen}");
    }
}

#[tokio::test]
async fn the_kernel_has_no_rights_and_few_descriptors() {
    let caller = caller();
    let session = caller.session().await;
    let code = "s = dict(l.split(':\\t', 1) for l in open('/proc/self/status').read().splitlines() if ':\\t' in l)\n\
         [s[k] for k in ('CapEff', 'CapPrm', 'CapBnd', 'CapInh', 'CapAmb', 'NoNewPrivs', 'Seccomp', 'Threads')], s['Uid'].split()";
    let none = "0000000000000000";
    assert_eq!(
        session.text(code).await.replace('\n', "").replace("  ", " "),
        format!(
            "(['{none}', '{none}', '{none}', '{none}', '{none}', '1', '2', '1'], ['1000', '1000', '1000', '1000'])"
        )
    );
    let open = session.text("import os\nsorted(int(f) for f in os.listdir('/proc/self/fd'))").await;
    assert_eq!(open, "[0, 1, 2, 3, 4, 5, 950, 951]"); // 3, 4: copies of the pipes; 5: the listing itself
}

#[tokio::test]
async fn calls_that_leave_a_sandbox_are_refused() {
    let caller = caller();
    let session = caller.session().await;
    let code = "import ctypes, errno, os\nlibc = ctypes.CDLL(None, use_errno=True)\n\
         def call(n, *a):\n    r = libc.syscall(ctypes.c_long(n), *[ctypes.c_long(x) for x in a])\n    return 'done' if r >= 0 else errno.errorcode[ctypes.get_errno()]\n\
         [call(165, 0, 0, 0, 0, 0), call(272, 0x10000000), call(56, 0x10000000 | 17, 0, 0, 0, 0), call(435, 0, 0), call(308, os.pidfd_open(1), 0x20000), \
         call(101, 16, 1, 0, 0), call(310, 1, 0, 0, 0, 0, 0), call(321, 0, 0, 0), call(250, 0, -3, 1), call(425, 8, 0), call(155, 0, 0), call(161, 0)]";
    let seen = session.text(code).await.replace('\n', "").replace("  ", " ");
    let expected = [
        "EPERM", "EPERM", "EPERM", "ENOSYS", "EPERM", "EPERM", "EPERM", "EPERM", "EPERM", "ENOSYS",
        "EPERM", "EPERM",
    ];
    assert_eq!(seen, format!("['{}']", expected.join("', '")));
}

#[tokio::test]
async fn random_numbers_differ_between_sessions() {
    let caller = caller();
    let code = "import random, uuid, secrets, numpy\n[random.random(), numpy.random.rand(), str(uuid.uuid4()), secrets.token_hex()]";
    let (one, two) = (caller.session().await, caller.session().await);
    let (first, second) = (one.exec(code).await, two.exec(code).await);
    let parts = |execution: &serde_json::Value| {
        execution["text"]
            .as_str()
            .unwrap()
            .split(',')
            .map(|part| part.trim().to_owned())
            .collect::<Vec<_>>()
    };
    assert!(parts(&first).iter().zip(parts(&second)).all(|(a, b)| *a != b), "{first} {second}");
}

#[tokio::test]
async fn everything_that_a_session_started_dies_with_it() {
    let server = Server::start(&[]);
    let caller = server.caller();
    let session = caller.session().await;
    let code = "import subprocess\nfor i in range(3):\n    subprocess.Popen(['setsid', 'sleep', '31337'])\nsubprocess.run('nohup sleep 31337 >/dev/null 2>&1 &', shell=True)";
    assert_eq!(session.exec(code).await["status"], "success");
    let started = std::time::Instant::now();
    while sleepers() < 4 {
        assert!(started.elapsed() < std::time::Duration::from_secs(10), "{}", sleepers());
    }
    assert_eq!(session.delete().await, 204);
    assert_eq!(sleepers(), 0);
}

/// Processes of the host that run `sleep 31337`.
fn sleepers() -> usize {
    let processes = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| std::fs::read(entry.ok()?.path().join("cmdline")).ok());
    processes.filter(|line| line == b"sleep\x0031337\0").count()
}

#[tokio::test]
async fn a_fork_bomb_and_a_memory_hog_harm_nobody_else() {
    let caller = caller();
    let (bomb, other) = (caller.session().await, caller.session().await);
    other.exec("x = 1").await;
    let forked = bomb.exec_with(json!({"code": "import os, time\nn = 0\ntry:\n    while True:\n        if os.fork() == 0: time.sleep(60)\n        n += 1\nexcept OSError as e: print(e.errno, n < 130)"})).await;
    assert_eq!(forked["stdout"], "11 True\n", "{forked}");
    let hog = other.exec("b = bytearray(10**11)").await;
    assert_eq!(hog["error_detail"]["name"], "MemoryError");
    assert_eq!(other.text("x").await, "1");
}

#[tokio::test]
async fn the_environment_of_one_session_is_nowhere_in_the_memory_of_a_later_one() {
    let server = Server::start(&[]);
    let caller = server.caller();
    let secret = "heap-secret-0123456789abcdef0123456789abcdef";
    let owner = caller.session_with(json!({"env": {"TOKEN": secret}})).await;
    assert_eq!(owner.text("import os; os.environ['TOKEN']").await, format!("'{secret}'"));
    let later = caller.session().await;
    let code = "import re\nfound = set()\nwith open('/proc/self/mem', 'rb', 0) as memory:\n    for line in open('/proc/self/maps'):\n        \
         span, mode = line.split()[:2]\n        if mode.startswith('rw') and '[v' not in line:\n            first, end = (int(x, 16) for x in span.split('-'))\n            \
         memory.seek(first)\n            found |= set(re.findall(rb'heap-secret-[0-9a-f]{32}', memory.read(end - first)))\nlen(found)";
    assert_eq!(later.text(code).await, "0");
    let own = owner.text(code).await;
    assert_eq!(own, "1", "the search finds it where it may be");
}

#[tokio::test]
async fn memory_that_no_limit_counts_is_not_to_be_had() {
    let caller = caller();
    let session = caller.session().await;
    let code = "import ctypes, errno, os\nlibc = ctypes.CDLL(None, use_errno=True)\n\
         def call(f, *a):\n    return 'done' if f(*a) >= 0 else errno.errorcode[ctypes.get_errno()]\n\
         [call(libc.memfd_create, b'x', 0), call(libc.shmget, 0, 4096, 0o1600)]";
    assert_eq!(session.text(code).await, "['ENOSYS', 'ENOSYS']");
}

#[tokio::test]
async fn a_cell_that_closes_its_pipes_keeps_no_thread_of_the_service_busy() {
    let server = Server::start(&[]);
    let caller = server.caller();
    let session = caller.session().await;
    let code = "import os, time\nfor fd in range(1, 1000):\n    if fd != 950:\n        try: os.close(fd)\n        except OSError: pass\ntime.sleep(2)";
    let before = server.cpu_ticks();
    session.exec(code).await;
    let used = server.cpu_ticks() - before;
    assert!(used < 100, "{used} hundredths of a second for a cell that sleeps");
}

#[tokio::test]
async fn epoll_is_there_where_each_session_is_counted_alone_and_asyncio_does_without() {
    let caller = caller();
    let session = caller.session().await;
    let (_, providers) = caller.get("/v1/providers").await;
    let code = "import os, select\nreader, writer = os.pipe(); os.write(writer, b'x')\n\
        try:\n    epoll = select.epoll(); epoll.register(reader, select.EPOLLIN); print(epoll.poll(1) == [(reader, 1)])\n\
        except OSError as error: print(error.strerror)";
    let own_users = providers["data"][0]["isolation"]["own_users"] == true;
    let told = if own_users { "True\n" } else { "Function not implemented\n" };
    assert_eq!(session.text(code).await, told);
    let code = "import asyncio, subprocess, sys\nasync def echo():\n    \
         server = await asyncio.start_server(lambda r, w: w.write(b'served') or w.close(), '127.0.0.1', 0)\n    \
         reader, _ = await asyncio.open_connection(*server.sockets[0].getsockname())\n    \
         process = await asyncio.create_subprocess_exec('echo', 'spawned', stdout=-1)\n    \
         return await reader.read(), (await process.communicate())[0]\n\
         print(await echo())\n\
         child = 'import asyncio; print(asyncio.run(asyncio.sleep(0, \"slept\")))'\n\
         print(subprocess.run([sys.executable, '-c', child], capture_output=True, text=True).stdout)";
    assert_eq!(session.text(code).await, "(b'served', b'spawned\\n')\nslept\n\n");
}

/// The host's users that the processes below a service are.
fn users_below(server: &Server) -> std::collections::BTreeSet<u32> {
    let user = |pid: &u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
        line.split_whitespace().next()?.parse().ok()
    };
    crate::support::processes::descendants(server.pid()).iter().filter_map(user).collect()
}

#[tokio::test]
async fn each_session_is_a_user_of_its_own_on_the_host_where_root_started_the_service() {
    let server = Server::start(&[("LOCAL_POOL", "0")]);
    let caller = server.caller();
    let own_users =
        caller.get("/v1/providers").await.1["data"][0]["isolation"]["own_users"].clone();
    assert_eq!(own_users, rustix::process::geteuid().is_root());
    let before = users_below(&server);
    let sessions = [caller.session().await, caller.session().await];
    let more: Vec<_> = users_below(&server).difference(&before).copied().collect();
    if own_users == true {
        // each service on a host has a range of its own
        let places: Vec<_> = more.iter().map(|user| (user - 1_900_000_000) % 65_536).collect();
        assert_eq!(places, [0, 1], "besides those of warden and zygote: {more:?}");
    } else {
        assert_eq!(more, [0_u32; 0]);
    }
    for session in &sessions {
        assert_eq!(
            session.text("import os; os.getuid(), os.stat('/files').st_uid").await,
            "(1000, 1000)"
        );
    }
}

#[tokio::test]
async fn what_only_a_session_may_read_is_still_the_callers() {
    let caller = caller();
    let session = caller.session().await;
    session.exec("import os; os.umask(0o077)\nopen('own.txt', 'w').write('mine')").await;
    assert_eq!(session.download("own.txt").await.text().await.unwrap(), "mine");
    session.put("sub/up.txt", "given").await;
    let code = "open('sub/up.txt', 'a').write('!'); os.rename('sub/up.txt', 'sub/changed.txt'); oct(os.stat('sub').st_mode), os.stat('sub').st_uid";
    assert_eq!(session.text(code).await, "('0o40755', 1000)");
    assert_eq!(session.download("sub/changed.txt").await.text().await.unwrap(), "given!");
    assert_eq!(session.text("open('/dev/stdout', 'w').write('printed ')").await, "printed \n8");
}

#[tokio::test]
async fn two_services_on_one_host_share_no_users_of_sessions() {
    if !rustix::process::geteuid().is_root() {
        return; // sessions are the service's user then, and that is told
    }
    let servers = [Server::start(&[]), Server::start(&[])];
    let callers = servers.each_ref().map(Server::caller);
    let _sessions = [callers[0].session().await, callers[1].session().await];
    let [first, second] = servers.each_ref().map(users_below);
    let shared: Vec<_> = first.intersection(&second).filter(|user| **user > 1_000_000).collect();
    assert_eq!(shared, Vec::<&u32>::new());
}
