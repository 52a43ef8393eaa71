//! Packages that sessions ask for: installed once, seen by them alone, away from the service's rights.

use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::support::index::{Index, Package};
use crate::support::processes::descendants;
use crate::support::server::{Server, caller};
use crate::support::{Caller, Session, must_come, problem};

pub fn usual() -> Index {
    Index::start(&[
        Package::new("demo-a", "1.0").needing("demo-b"),
        Package::new("demo-a", "2.0").needing("demo-b"),
        Package::new("demo-b", "1.0"),
        Package::new("demo-old-numpy", "1.0").needing("numpy<2"),
        Package::new("demo-script", "1.0")
            .with(
                "demo_script-1.0.dist-info/entry_points.txt",
                "[console_scripts]\ndemo-script = demo_script:main\n",
            )
            .with("demo_script/__init__.py", "def main(): print('from the script')\n"),
        Package::new("demo-large", "1.0").with("demo_large.bin", vec![7; 3 << 20]),
        Package::new("demo-hostile", "1.0")
            .with("hostile.pth", "import os; os.environ['HOSTILE'] = str(os.getpid())\n")
            .with("json.py", "raise SystemError('another json')\n")
            .with("numpy/__init__.py", "raise SystemError('another numpy')\n")
            .with("interpreterd_guest/__init__.py", "raise SystemError('another guest')\n")
            .with("sitecustomize.py", "raise SystemError('another sitecustomize')\n"),
        Package::new("demo-rude", "1.0").with("rude.pth", "import sys; sys.exit(3)\n"),
        Package::new("demo-climber", "1.0").with("../../../../tmp/climbed.py", "climbed = True\n"),
    ])
}

pub fn server(index: &Index, more: &[(&str, &str)]) -> Server {
    Server::start(&[&[("LOCAL_PACKAGE_INDEX", index.url.as_str())], more].concat())
}

pub async fn ready(session: &Session<'_>) -> Value {
    must_come(async {
        loop {
            let (_, told) = session.caller.get(&session.path("")).await;
            if told["state"] != "starting" {
                return told;
            }
            tokio::task::yield_now().await;
        }
    })
    .await
}

/// A session whose packages are being installed until the index is opened.
pub async fn starting<'a>(index: &Index, caller: &'a Caller) -> Session<'a> {
    index.close();
    let session = caller.session_with(json!({"packages": ["demo-a"]})).await;
    index.is_asked_for("demo-a").await;
    session
}

/// The problem of a one-shot that asks for packages.
pub async fn refused(caller: &Caller, packages: &[&str]) -> (u16, String, String) {
    let body = json!({"code": "1", "packages": packages});
    let answer = caller.post("/v1/execute", body).await;
    let (status, code) = problem(&answer);
    (status, code, answer.1["detail"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn a_session_is_starting_until_its_packages_are_installed_and_cells_and_files_wait() {
    let index = usual();
    let server = server(&index, &[]);
    let caller = server.caller();
    index.close();
    let session = caller.session_with(json!({"packages": ["Demo_A==2.0"]})).await;
    index.is_asked_for("demo-a").await;
    let (_, told) = caller.get(&session.path("")).await;
    assert_eq!(told["state"], "starting");
    assert_eq!(told["progress"], "installing packages");
    assert_eq!(told["packages"], json!(["demo-a==2.0"]));
    let (_, list) = caller.get("/v1/sessions").await;
    assert_eq!(list["data"][0]["progress"], "installing packages");
    let work = async {
        let (cell, put) = tokio::join!(
            session.text("import demo_a, demo_b; demo_a.VERSION"),
            session.put("a.txt", "x")
        );
        (cell, put.0)
    };
    let (done, ()) = tokio::join!(work, async { index.open() });
    assert_eq!(done, ("'2.0'".to_owned(), StatusCode::OK));
    let told = ready(&session).await;
    assert_eq!((&told["state"], told.get("progress")), (&json!("ready"), None));
    assert_eq!(session.delete().await, 204);
}

#[tokio::test]
async fn the_second_session_of_a_set_is_ready_when_it_is_answered() {
    let index = usual();
    let server = server(&index, &[]);
    let caller = server.caller();
    let first = caller.session_with(json!({"packages": ["demo-b", "demo-a"]})).await;
    assert_eq!(ready(&first).await["state"], "ready");
    let asked = index.asked_for("demo-a");
    for packages in [["demo-a", "demo-b"], ["Demo.B", "DEMO_a"]] {
        let (_, told) = caller.post("/v1/sessions", json!({"packages": packages})).await;
        assert_eq!(told["state"], "ready", "{told}");
    }
    assert_eq!(index.asked_for("demo-a"), asked);
}

#[tokio::test]
async fn a_session_sees_its_own_packages_alone_and_cannot_change_them() {
    let index = usual();
    let server = server(&index, &[]);
    let caller = server.caller();
    let one = caller.session_with(json!({"packages": ["demo-a"]})).await;
    let other = caller.session_with(json!({"packages": ["demo-script"]})).await;
    let none = caller.session().await;
    let seen = "import importlib.util, os\n\
        [name for name in ('demo_a', 'demo_script') if importlib.util.find_spec(name)], os.listdir('/opt/layers')";
    assert_eq!(one.text(seen).await, "(['demo_a'], [])");
    assert_eq!(other.text(seen).await, "(['demo_script'], [])");
    assert_eq!(none.text(seen).await, "([], [])");
    let write = "import demo_a\nopen(demo_a.__file__, 'a').write('changed = True')";
    let denied = one.exec(write).await;
    let name = denied["error_detail"]["name"].as_str().unwrap();
    assert!(["OSError", "PermissionError"].contains(&name), "{denied}"); // by Landlock, or by the mount
    let port = index.url.split([':', '/']).nth(4).unwrap();
    let network = format!("import socket\nsocket.create_connection(('127.0.0.1', {port}), 2)");
    assert_eq!(one.exec(&network).await["status"], "error");
}

#[tokio::test]
async fn programs_of_a_session_and_its_next_kernel_have_its_packages_too() {
    let index = usual();
    let server = server(&index, &[]);
    let caller = server.caller();
    let session = caller.session_with(json!({"packages": ["demo-a", "demo-script"]})).await;
    let program = "!python -c 'import demo_a; print(demo_a.VERSION)'; demo-script";
    let told = session.exec(program).await;
    assert_eq!(told["stdout"], "2.0\nfrom the script\n", "{told}");
    session.exec("import os; os._exit(3)").await;
    assert_eq!(session.text("import demo_a; demo_a.VERSION").await, "'2.0'");
}

#[tokio::test]
async fn urls_paths_options_and_markers_are_refused_by_name() {
    let caller = caller();
    for text in [
        "https://example.org/x.whl",
        "x @ file:///etc/passwd",
        "git+https://example.org/x",
        "../x",
        "/etc/passwd",
        "--index-url=example",
        "-r requirements.txt",
        "x; sys_platform == 'linux'",
        "x y",
        "",
    ] {
        let packages = json!(["polars", text]);
        for (path, mut body) in [
            ("/v1/sessions", json!({})),
            ("/v1/execute", json!({"code": "1"})),
            ("/v1/interpret", json!({"message": "?"})),
        ] {
            body["packages"] = packages.clone();
            let answer = caller.post(path, body).await;
            assert_eq!(problem(&answer).0, 422, "{text}: {}", answer.1);
            assert_eq!(answer.1["errors"][0]["pointer"], "/packages/1", "{text}: {}", answer.1);
        }
    }
    let many: Vec<_> = (0..65).map(|number| format!("x{number}")).collect();
    let answer = caller.post("/v1/sessions", json!({"packages": many})).await;
    assert_eq!(problem(&answer).0, 422);
    assert_eq!(answer.1["errors"][0]["pointer"], "/packages", "{}", answer.1);
}

#[tokio::test]
async fn what_cannot_be_had_is_a_clear_problem() {
    let index = usual();
    let server = server(&index, &[("LOCAL_PACKAGE_BYTES", "1048576")]);
    let caller = server.caller();
    for (packages, status, code, words) in [
        (["demo-no"], 422, "package_not_found", "there is no package named demo-no"),
        (["demo-a==3"], 422, "package_not_found", "there are: 1.0, 2.0"),
        (["numpy<1.1"], 422, "packages_conflict", "numpy is there in version"),
        (["demo-old-numpy"], 422, "packages_conflict", "numpy<2"),
        (["demo-large"], 422, "packages_too_large", "1048576 bytes"),
    ] {
        let (got, name, detail) = refused(&caller, &packages).await;
        assert_eq!((got, name.as_str()), (status, code), "{packages:?}: {detail}");
        assert!(detail.contains(words), "{packages:?}: {detail}");
    }
    let session = caller.session_with(json!({"packages": ["demo-no"]})).await;
    let told = ready(&session).await;
    assert_eq!((&told["state"], &told["end_reason"]), (&json!("failed"), &json!("failed")));
    let failure =
        json!({"code": "package_not_found", "message": "there is no package named demo-no"});
    assert_eq!(told["failure"], failure);
    let (_, list) = caller.get("/v1/sessions").await;
    assert_eq!(list["data"][0]["failure"], failure);
    let answer = caller.post(&session.path("/exec"), json!({"code": "1"})).await;
    assert_eq!(problem(&answer), (410, "session_failed".to_owned()));
    assert!(answer.1["detail"].as_str().unwrap().contains("no package named demo-no"));
    assert_eq!(session.delete().await, 204);
}

#[tokio::test]
async fn source_code_is_refused_and_never_run() {
    let index = Index::with_source();
    let server = server(&index, &[]);
    // by its name, and by a URL in a wheel
    for package in ["demo-source", "demo-tricky"] {
        let (status, code, detail) = refused(&server.caller(), &[package]).await;
        assert_eq!((status, code.as_str()), (422, "package_without_wheel"), "{detail}");
        assert!(detail.contains("demo-source has no wheel"), "{detail}");
    }
    assert_eq!(index.asked_for("built"), 0);
}

#[tokio::test]
async fn an_index_that_is_not_there_is_a_problem_that_may_pass() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("http://{closed}/simple");
    let server = Server::start(&[("LOCAL_PACKAGE_INDEX", &url)]);
    let caller = server.caller();
    let answer = caller.post("/v1/execute", json!({"code": "1", "packages": ["demo-a"]})).await;
    assert_eq!(problem(&answer), (503, "package_index_unreachable".to_owned()));
    assert_eq!(answer.1["retry_safe"], true);
}

#[tokio::test]
async fn callers_who_want_one_set_at_once_install_it_once() {
    let index = usual();
    let server = server(&index, &[]);
    let caller = server.caller();
    index.close();
    let sessions: Vec<_> = futures::future::join_all(
        (0..6).map(|_| caller.session_with(json!({"packages": ["demo-a"]}))),
    )
    .await;
    index.is_asked_for("demo-a").await;
    index.open();
    for session in &sessions {
        assert_eq!(session.text("import demo_a; demo_a.VERSION").await, "'2.0'");
    }
    assert_eq!(index.asked_for("demo-a"), 2, "once to resolve, once to install");
}

#[tokio::test]
async fn hostile_packages_replace_nothing_and_reach_their_own_session_alone() {
    let index = usual();
    let server = server(&index, &[("LOCAL_PACKAGE_SETS", "demo-hostile")]);
    let caller = server.caller();
    let session = caller.session_with(json!({"packages": ["demo-hostile"]})).await;
    let told = "import os, sys, json, numpy, subprocess\n\
        print(os.environ['HOSTILE'] == str(os.getpid()), json.dumps(1), numpy.__name__)\n\
        print(subprocess.run([sys.executable, '-c', 'import json, numpy; print(json.dumps(2))'], capture_output=True, text=True).stdout)";
    assert_eq!(session.text(told).await, "True 1 numpy\n2\n\n");
    let other = caller.session().await;
    assert_eq!(other.text("import os; os.environ.get('HOSTILE')").await, "");
    let (status, code, _) = refused(&caller, &["demo-climber"]).await;
    assert_eq!((status, code.as_str()), (422, "packages_failed"));
    assert!(!std::path::Path::new("/tmp/climbed.py").exists());
}

#[tokio::test]
async fn a_set_in_the_settings_is_imported_before_its_sessions_are_made_and_has_a_pool() {
    let index = usual();
    let sets = "demo-a==1.0 demo-script; demo-no";
    let server = server(&index, &[("LOCAL_PACKAGE_SETS", sets), ("LOCAL_POOL", "1")]);
    let caller = server.caller();
    let pool = loop {
        let (_, providers) = caller.get("/v1/providers").await;
        let pool = providers["data"][0]["pool"].clone();
        if pool[1]["ready"] == 1 && !pool[2]["reason"].is_null() {
            break pool;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(pool[0]["packages"], json!([]));
    assert_eq!(pool[1], json!({"packages": ["demo-a==1.0", "demo-script"], "size": 1, "ready": 1}));
    assert_eq!(pool[2]["reason"], "there is no package named demo-no");
    let body = json!({"packages": ["demo-script", "demo-a==1.0"]});
    let (_, told) = caller.post("/v1/sessions", body).await;
    assert_eq!(told["state"], "ready");
    let session = Session { caller: &caller, id: told["id"].as_str().unwrap().to_owned() };
    let imported = "import sys\n'demo_a' in sys.modules, 'demo_script' in sys.modules, sys.modules['demo_a'].__file__";
    assert_eq!(session.text(imported).await, "(True, True, '/opt/packages/demo_a.py')");
    assert_eq!(caller.session().await.text("import sys\n'demo_a' in sys.modules").await, "False");
}

#[tokio::test]
async fn settings_may_allow_prepared_sets_alone_or_no_packages() {
    let index = usual();
    let sets = [("LOCAL_PACKAGES", "prepared"), ("LOCAL_PACKAGE_SETS", "demo-a demo-b")];
    let prepared = server(&index, &sets);
    let caller = prepared.caller();
    let session = caller.session_with(json!({"packages": ["demo-b", "demo-a"]})).await;
    assert_eq!(session.text("import demo_a; demo_a.VERSION").await, "'2.0'");
    let (status, code, detail) = refused(&caller, &["demo-script"]).await;
    assert_eq!((status, code.as_str()), (422, "packages_not_prepared"));
    assert!(detail.ends_with("demo-a demo-b"), "{detail}");
    let off = server(&index, &[("LOCAL_PACKAGES", "off")]);
    let caller = off.caller();
    assert_eq!(refused(&caller, &["demo-a"]).await.1, "provider_cannot");
    let (_, providers) = caller.get("/v1/providers").await;
    assert_eq!(providers["data"][0]["capabilities"]["packages"], false);
    // what is there needs no installing
    let session = caller.session_with(json!({"packages": ["numpy>=1"]})).await;
    assert_eq!(session.text("1 + 1").await, "2");
}

/// The process of pip that installs for a service.
async fn installer(server: &Server) -> u32 {
    let is_pip = |pid: &u32| {
        std::fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| String::from_utf8_lossy(&line).contains("pip._internal"))
    };
    must_come(async {
        loop {
            if let Some(pid) = descendants(server.pid()).into_iter().find(is_pip) {
                return pid;
            }
            tokio::task::yield_now().await;
        }
    })
    .await
}

#[tokio::test]
async fn packages_are_installed_away_from_the_services_rights() {
    let index = usual();
    let server = server(&index, &[]);
    let caller = server.caller();
    let session = starting(&index, &caller).await;
    let pid = installer(&server).await;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().to_owned()
    };
    assert_eq!((line("CapEff:"), line("NoNewPrivs:")), ("0000000000000000".into(), "1".into()));
    assert_eq!(line("Seccomp:"), "2");
    if rustix::process::geteuid().is_root() {
        let user: u32 = line("Uid:").split_whitespace().next().unwrap().parse().unwrap();
        assert!(user >= 1_900_000_000, "{user} is the service's or root");
        let read = |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).unwrap();
        let environ = String::from_utf8_lossy(&read("environ")).into_owned();
        assert!(environ.contains("PIP_INDEX_URL") && !environ.contains("SECRET_HOST_ENV"));
        let root = format!("/proc/{pid}/root");
        let data = format!("{root}{}", server.data_dir.display());
        assert!(!std::path::Path::new(&data).exists());
        assert!(!std::path::Path::new(&format!("{root}/etc/shadow")).exists());
    }
    index.open();
    assert_eq!(ready(&session).await["state"], "ready");
}

#[tokio::test]
async fn restricted_sessions_have_packages_too() {
    let index = usual();
    let server =
        server(&index, &[("LOCAL_LEVELS", "restricted"), ("LOCAL_PACKAGE_SETS", "demo-b")]);
    let caller = server.caller();
    for (packages, module, version) in [("demo-a", "demo_a", "2.0"), ("demo-b", "demo_b", "1.0")] {
        let session = caller.session_with(json!({"packages": [packages]})).await;
        let code = format!(
            "import {module}, subprocess, sys\n\
            subprocess.run([sys.executable, '-c', 'import {module}; print({module}.VERSION)'], capture_output=True, text=True).stdout"
        );
        assert_eq!(session.text(&code).await, format!("'{version}\\n'"));
        let network = "import socket\nsocket.socket()";
        assert_eq!(session.exec(network).await["error_detail"]["name"], "PermissionError");
        let others = format!("import os\nos.listdir({:?})", server.data_dir.join("layers"));
        assert_eq!(session.exec(&others).await["error_detail"]["name"], "PermissionError");
    }
}

#[tokio::test]
async fn restricted_sessions_keep_our_code_while_others_packages_are_installed() {
    let index = usual();
    let server = server(&index, &[("LOCAL_LEVELS", "restricted")]);
    let caller = server.caller();
    let session = caller.session().await;
    let other = caller.session_with(json!({"packages": ["demo-a"]})).await;
    assert_eq!(ready(&other).await["state"], "ready");
    let shadow = "import os\nsorted(os.listdir(os.environ['PYTHONPATH']))";
    assert_eq!(session.text(shadow).await, "['bin', 'pip', 'sitecustomize.py']");
}

#[tokio::test]
async fn packages_and_a_session_that_is_made_do_not_go_together() {
    let caller = caller();
    let session = caller.session().await;
    for (field, value) in [("packages", json!(["demo-a"])), ("provider", json!("local"))] {
        let mut body = json!({"message": "[script none]"});
        body[field] = value;
        let answer = caller.post(&format!("/v1/interpret?session_id={}", session.id), body).await;
        assert_eq!(problem(&answer), (422, "session_is_made".to_owned()));
        assert_eq!(answer.1["errors"][0]["pointer"], format!("/{field}"));
    }
}

#[tokio::test]
async fn a_package_that_ends_python_at_its_start_ends_a_cell_and_not_the_session() {
    let index = usual();
    let server = server(&index, &[]);
    let caller = server.caller();
    let session = caller.session_with(json!({"packages": ["demo-rude"]})).await;
    let first = session.exec("1").await;
    assert_eq!(
        (&first["status"], &first["state_lost"]),
        (&json!("error"), &json!(false)),
        "{first}"
    );
    assert_eq!(session.text("import demo_rude; demo_rude.VERSION").await, "'1.0'");
}
