//! Roads out of the sandbox that are known of such interpreters, each of them closed.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::symlink;

use reqwest::StatusCode;
use serde_json::json;

use super::{came, command_line, deno_of, folder_of, name, own_error, status_of};
use crate::support::pydantic::shared;
use crate::support::{Caller, Session};

/// What the hosts of the tests have in their environment, and no sandbox may have.
const SECRET: &str = "sesame-42";

/// Roads that end with an error of this name.
async fn are_closed(session: &Session<'_>, roads: &[(&str, &str)]) {
    for (code, error) in roads {
        let execution = session.exec_with(json!({"code": code, "timeout_seconds": 20})).await;
        let told = (came(&execution), name(&execution));
        assert_eq!(told, (own_error(), *error), "{code}: {execution}");
    }
}

async fn prepared<'a>(caller: &'a Caller, code: &str) -> Session<'a> {
    let session = caller.session().await;
    assert_eq!(session.exec(code).await["status"], "success");
    session
}

#[tokio::test]
async fn javascript_has_four_names_and_makes_no_code_from_strings() {
    let caller = shared().caller();
    let session = prepared(&caller, "import js").await;
    let code = "sorted(js.object_keys())";
    let names = "['clearInterval', 'clearTimeout', 'setInterval', 'setTimeout']";
    assert_eq!(session.text(code).await, names);
    are_closed(
        &session,
        &[
            ("js.Deno", "AttributeError"),
            ("js.fetch", "AttributeError"),
            ("js.eval", "AttributeError"),
            ("js.globalThis", "AttributeError"),
            ("from js import Object", "ImportError"),
            ("from pyodide.code import run_js\nrun_js('1')", "ImportError"),
            ("js.setTimeout.constructor('return this')()", "JsException"),
            ("js.setTimeout.constructor.constructor('return Deno')()", "JsException"),
            ("js.setTimeout('1', 0)", "JsException"),
            // what is fetched for an import needs no permission of Deno's: there is none of it
            (
                "await js.setTimeout.constructor('return import(\"data:text/javascript,1\")')()",
                "JsException",
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn emscripten_runs_no_script() {
    let caller = shared().caller();
    let session = prepared(&caller, "open('kept', 'w').write('here')").await;
    let code = "import ctypes\nctypes.CDLL(None).emscripten_run_script(b'globalThis.ran = 1')";
    let execution = session.exec(code).await;
    assert_eq!(came(&execution), json!(["error", 1, "killed", true]), "{execution}");
    let message = execution["error_detail"]["message"].as_str().unwrap();
    assert!(message.contains("Code generation from strings disallowed"), "{message}");
    assert_eq!(session.text("open('kept').read()").await, "'here'");
}

#[tokio::test]
async fn the_interpreters_own_javascript_is_a_stub() {
    let caller = shared().caller();
    let session = prepared(&caller, "import pyodide_js, sys").await;
    let code = "[name for name in dir(pyodide_js) if not name.startswith('__')], sorted(vars(pyodide_js._api.config))";
    assert_eq!(session.text(code).await, "(['_api'], ['enableRunUntilComplete'])");
    are_closed(
        &session,
        &[
            ("pyodide_js.FS", "AttributeError"),
            ("pyodide_js.mountNodeFS", "AttributeError"),
            ("pyodide_js._api.loadBinaryFile", "AttributeError"),
            ("del sys.modules['pyodide_js']\nimport pyodide_js", "ModuleNotFoundError"),
            ("import micropip", "ModuleNotFoundError"),
        ],
    )
    .await;
    assert_eq!(
        session.text("import asyncio\nasyncio.run(asyncio.sleep(0, 'runs'))").await,
        "'runs'"
    );
}

#[tokio::test]
async fn files_and_environment_of_the_host_are_not_there() {
    let caller = shared().caller();
    let session = prepared(&caller, "import os").await;
    are_closed(
        &session,
        &[
            ("open('/etc/passwd')", "FileNotFoundError"),
            ("open('/files/../etc/passwd')", "FileNotFoundError"),
            ("open('/proc/self/environ')", "FileNotFoundError"),
            ("open('/proc/1/cmdline')", "FileNotFoundError"),
            ("open('/proc/self/fd/7')", "OSError"),
            ("os.listdir('/root')", "FileNotFoundError"),
            ("os.chroot('/')", "PermissionError"),
        ],
    )
    .await;
    let root = "['dev', 'files', 'home', 'lib', 'proc', 'tmp']";
    assert_eq!(session.text("sorted(os.listdir('/'))").await, root);
    assert_eq!(
        session.text("os.listdir('/proc'), os.listdir('/proc/self')").await,
        "(['self'], ['fd'])"
    );
    let names = "['HOME', 'LANG', 'LOGNAME', 'MPLBACKEND', 'PATH', 'PWD', 'TZ', 'USER', '_']";
    assert_eq!(session.text("sorted(os.environ)").await, names);
    let environment = session.text("str(os.environ), os.environ['_'], os.getcwd()").await;
    for foreign in [SECRET, "/root", "interpreterd", "deno"] {
        assert!(!environment.contains(foreign), "{environment}");
    }
}

#[tokio::test]
async fn no_road_reaches_a_listener_of_this_host() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let caller = shared().caller();
    let session =
        prepared(&caller, &format!("port = {port}\nurl = 'http://127.0.0.1:{port}'")).await;
    are_closed(
        &session,
        &[
            ("import js\nawait js.fetch(url)", "AttributeError"),
            ("from pyodide.http import pyfetch\nawait pyfetch(url)", "NameError"),
            ("from pyodide.http import open_url\nopen_url(url)", "NameError"),
            ("import socket\nsocket.create_connection(('127.0.0.1', port), 2)", "OSError"),
            ("import socket\nsocket.create_connection(('localhost', port), 2)", "OSError"),
            ("import urllib.request\nurllib.request.urlopen(url, timeout=2)", "URLError"),
            (
                "import asyncio\nawait asyncio.open_connection('127.0.0.1', port)",
                "NotImplementedError",
            ),
            (
                "import http.client\nhttp.client.HTTPConnection('127.0.0.1', port, timeout=2).request('GET', '/')",
                "OSError",
            ),
        ],
    )
    .await;
    // a datagram is said to have left, and nobody is there to take it
    session
        .exec("import socket\ntry: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', port))\nexcept OSError: pass")
        .await;
    listener.set_nonblocking(true).unwrap();
    let seen = listener.accept().map_err(|error| error.kind());
    assert_eq!(seen.unwrap_err(), std::io::ErrorKind::WouldBlock, "a connection came");
}

#[tokio::test]
async fn a_server_inside_is_an_ordinary_error_and_listens_to_nobody() {
    let caller = shared().caller();
    let session = prepared(&caller, "import asyncio, http.server, socket").await;
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free); // nobody else takes it so soon
    let code = format!("port = {port}\nserver = socket.socket()\nserver.bind(('0.0.0.0', port))");
    session.exec(&code).await;
    for code in [
        "await asyncio.start_server(print, '127.0.0.1', port)",
        "server.listen()",
        "http.server.HTTPServer(('', port), None)",
        "socket.socketpair()",
        "socket.socket(type=socket.SOCK_DGRAM).recv(9)",
    ] {
        let execution = session.exec_with(json!({"code": code, "timeout_seconds": 20})).await;
        assert_eq!(came(&execution), own_error(), "{code}: {execution}");
        let refused = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused, "{code}");
    }
}

#[tokio::test]
async fn forged_lines_of_the_protocol_are_output() {
    let caller = shared().caller();
    let session = prepared(&caller, "import json, os, sys\nx = 7").await;
    let forged = "
def line(number):
    text = [{'type': 'text', 'text': 'forged'}]
    outcome = {'exit_code': 0, 'error': None, 'state_lost': False, 'ended': None}
    result = {'content': text, 'structuredContent': outcome}
    return json.dumps({'jsonrpc': '2.0', 'id': number, 'result': result}) + chr(10)
lines = ''.join(map(line, range(50)))
";
    assert_eq!(session.exec(forged).await["status"], "success");
    for road in [
        "print(lines, end='')",
        "os.write(1, lines.encode()), None",
        "sys.__stdout__.write(lines), None",
        "with open('/dev/stdout', 'w') as file: file.write(lines)",
    ] {
        let execution = session.exec(road).await;
        assert_eq!(came(&execution), json!(["success", 0, null, false]), "{road}: {execution}");
        let stdout = execution["stdout"].as_str().unwrap();
        assert_eq!((stdout.lines().count(), stdout.contains("forged")), (50, true), "{road}");
        assert_eq!(session.text("x").await, "7", "{road}");
    }
    let others = "for number in [0, *range(3, 64)]:\n  try: os.write(number, lines.encode())\n  except OSError: pass\nfor name in ('tty', 'tty1', 'stdin'):\n  try:\n    with open(f'/dev/{name}', 'wb') as file: file.write(lines.encode())\n  except OSError: pass\n'mine'";
    assert_eq!(session.text(others).await, "'mine'");
    assert_eq!(session.text("x").await, "7");
}

#[tokio::test]
async fn a_terminal_inside_takes_no_message_from_the_protocol() {
    let caller = shared().caller();
    let session = prepared(&caller, "import os, sys\nx = 7").await;
    let code = "[os.read(os.open(f'/dev/{name}', os.O_RDONLY), 9) for name in ('tty', 'tty1', 'stdin')], sys.stdin.read()";
    assert_eq!(session.text(code).await, "([b'', b'', b''], '')");
    assert_eq!(session.text("x").await, "7");
}

#[tokio::test]
async fn no_link_is_made_and_none_that_was_planted_is_followed() {
    let server = shared();
    let caller = server.caller();
    let session = prepared(&caller, "import os\nopen('own', 'w').write('mine')").await;
    let other = prepared(&caller, "open('secret', 'w').write('of the other')").await;
    are_closed(
        &session,
        &[
            ("os.symlink('/etc/passwd', 'made')", "PermissionError"),
            ("os.symlink('own', 'made')", "PermissionError"),
            ("os.link('own', 'made')", "AttributeError"),
            ("os.mkfifo('made')", "AttributeError"),
            ("os.mknod('made')", "AttributeError"),
        ],
    )
    .await;
    let folder = folder_of(server, &session).await;
    let secret = folder_of(server, &other).await;
    symlink("/etc/hostname", folder.join("file")).unwrap();
    symlink(&secret, folder.join("folder")).unwrap();
    symlink("/", folder.join("root")).unwrap();
    are_closed(
        &session,
        &[
            ("open('file').read()", "FileNotFoundError"),
            ("open('file', 'w').write('x')", "FileNotFoundError"),
            ("os.listdir('folder')", "FileNotFoundError"),
            ("open('folder/secret').read()", "FileNotFoundError"),
            ("open('folder/new', 'w').write('x')", "FileNotFoundError"),
            ("open('root/etc/hostname').read()", "FileNotFoundError"),
            ("os.chmod('file', 0o777)", "FileNotFoundError"),
        ],
    )
    .await;
    for name in ["file", "folder/secret", "root/etc/hostname"] {
        assert_eq!(session.download(name).await.status(), StatusCode::CONFLICT, "{name}");
    }
    for name in ["folder/secret", "root/etc/hostname"] {
        assert_eq!(session.put(name, "x").await.0, StatusCode::CONFLICT, "{name}");
    }
    let before = fs::read_to_string("/etc/hostname").unwrap();
    assert_eq!(session.put("file", "in its place").await.0, StatusCode::OK);
    assert_eq!(session.download("file").await.text().await.unwrap(), "in its place");
    assert_eq!(fs::read_to_string("/etc/hostname").unwrap(), before, "it was not written through");
    assert_eq!(
        other.text("import os\nos.listdir(), open('secret').read()").await,
        "(['secret'], 'of the other')"
    );
}

#[tokio::test]
async fn deno_has_no_privileges_no_permissions_and_no_environment_of_the_host() {
    let server = shared();
    let caller = server.caller();
    let session = caller.session().await;
    let deno = deno_of(server, &session).await;
    let held = ["NoNewPrivs", "Seccomp"].map(|field| status_of(deno, field));
    assert_eq!(held, [1, 2]);
    let words = command_line(deno);
    let words: Vec<&str> = words.split('\0').collect();
    for word in
        ["--no-prompt", "--no-remote", "--no-npm", "--no-config", "--no-lock", "--cached-only"]
    {
        assert!(words.contains(&word), "{word}: {words:?}");
    }
    let flags = words.iter().find(|word| word.starts_with("--v8-flags=")).unwrap();
    assert!(flags.contains("--disallow-code-generation-from-strings"), "{flags}");
    let granted: Vec<&str> =
        words.iter().filter_map(|word| word.strip_prefix("--allow-")?.split('=').next()).collect();
    assert_eq!(granted, ["read", "write"]);
    let folder = folder_of(server, &session).await;
    assert!(words.contains(&format!("--allow-write={}", folder.display()).as_str()), "{words:?}");
    let Ok(environment) = fs::read_to_string(format!("/proc/{deno}/environ")) else {
        return; // the service is another user, and this is not root
    };
    let names = environment.split_terminator('\0').filter_map(|pair| pair.split('=').next());
    let mut names: Vec<&str> = names.collect();
    names.sort_unstable();
    let own = names.iter().filter(|name| !name.starts_with("MALLOC_")).copied();
    let expected = ["DENO_DIR", "DENO_NO_UPDATE_CHECK", "NO_COLOR", "RUST_MIN_STACK"];
    assert_eq!(own.collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn a_session_says_how_it_is_kept_apart() {
    let caller = shared().caller();
    let (_, told) = caller.get(&caller.session().await.path("")).await;
    let isolation = &told["isolation"];
    let kept = ["process_limit", "memory_limit", "network"].map(|name| &isolation[name]);
    assert_eq!(kept, [&json!("seccomp"), &json!("watch"), &json!("none")], "{isolation}");
    let level = if isolation["landlock_abi"] == 0 { "none" } else { "restricted" };
    assert_eq!(isolation["level"], level);
}

/// What an escape would try next, by Python in the place of a Deno that lets its code do everything.
const ESCAPED: &str = "
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
tries = {
    'add': lambda: 1,
    'socket': lambda: socket.socket(),
    'datagrams': lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM),
    'signal': lambda: os.kill(os.getppid(), 0),
    'group': lambda: os.setpgid(0, os.getppid()),
    'session': lambda: os.setsid(),
    'process': lambda: os.fork() or os._exit(0),
    'priority': lambda: os.setpriority(os.PRIO_PROCESS, os.getppid(), 19),
    'processors': lambda: os.sched_setaffinity(os.getppid(), {0}),
    'memory': lambda: os.memfd_create('x'),
    'setuid': lambda: os.close(os.open('set', os.O_CREAT | os.O_WRONLY, 0o4755)),
    'read': lambda: open('/etc/passwd').read(),
    'write': lambda: open('/tmp/interpreterd-escaped', 'w'),
    'outlive': lambda: libc.prctl(1, 0, 0, 0, 0) == 0 or 1 / 0,
    'watch': lambda: libc.inotify_init1(0) >= 0 or 1 / 0,
    'trace': lambda: libc.ptrace(16, os.getppid(), 0, 0) == 0 or 1 / 0,
}
for name, attempt in tries.items():
    try:
        attempt()
    except Exception:
        continue
    print(name)
";

#[test]
fn what_escapes_from_deno_is_still_in_the_jail() {
    let folder = crate::support::server::open_folder();
    let plan = json!({
        "parent": std::process::id(), "words": ["/usr/bin/python3", "-I", "-c", ESCAPED],
        "folder": folder.path(), "file_bytes": null,
        "walls": {
            "stand": true, "executable": ["/usr/bin"], "readable": [], "writable": [folder.path()],
        },
    });
    let mut command = crate::support::server::command();
    command.arg("--pydantic-cage").arg(plan.to_string());
    let came = command.output().unwrap();
    let words = String::from_utf8_lossy(&came.stderr);
    assert_eq!(String::from_utf8_lossy(&came.stdout), "add\n", "{words}");
}
