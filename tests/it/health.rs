//! Alive and ready, as operators, load balancers and containers ask.

use interpreterd::domain::build;
use reqwest::StatusCode;
use serde_json::json;

use crate::support::postgres::{self, Stop};
use crate::support::server::{Server, command, open_folder, shared};

/// What `healthcheck` says of an address: whether it is well, and its words.
fn healthcheck(listen: &str) -> (bool, String) {
    let mut command = command();
    // a container may have a proxy for everything
    command.env("http_proxy", "http://127.0.0.1:1").env("HTTP_PROXY", "http://127.0.0.1:1");
    let asked = command.args(["healthcheck", "--listen", listen]).output().unwrap();
    let told = [asked.stdout, asked.stderr].concat();
    (asked.status.success(), String::from_utf8(told).unwrap())
}

fn address(server: &Server) -> &str {
    server.base.strip_prefix("http://").unwrap()
}

#[tokio::test]
async fn health_tells_version_and_commit() {
    let expected = json!({"status": "ok", "version": build::VERSION, "commit": build::COMMIT});
    let caller = shared().caller();
    assert_eq!(caller.get("/healthz").await, (StatusCode::OK, expected.clone()));
    assert_eq!(caller.get("/readyz").await, (StatusCode::OK, expected));
}

#[test]
fn the_program_tells_version_and_commit() {
    let asked = command().arg("--version").output().unwrap();
    let told = String::from_utf8(asked.stdout).unwrap();
    assert_eq!(told, format!("interpreterd {}\n", build::line()));
    assert!(told.contains(env!("CARGO_PKG_VERSION")), "{told}");
}

#[test]
fn healthcheck_is_well_where_the_service_is_ready() {
    let (well, told) = healthcheck(address(shared()));
    assert!(well && told.contains(r#""status":"ok""#), "{told}");
}

#[test]
fn healthcheck_asks_on_loopback_where_the_service_listens_on_every_address() {
    let server = Server::start(&[("LISTEN", "0.0.0.0:0"), ("ALLOW_ANONYMOUS", "true")]);
    let port = server.base.rsplit(':').next().unwrap();
    let (well, told) = healthcheck(&format!("0.0.0.0:{port}"));
    assert!(well, "{told}");
}

#[test]
fn healthcheck_fails_where_nobody_answers() {
    let (well, told) = healthcheck("127.0.0.1:1");
    assert!(!well && told.contains("no service answers"), "{told}");
}

#[test]
fn healthcheck_fails_and_says_why_where_the_service_is_not_ready() {
    let Some(store) = postgres::Server::start_private() else { return };
    let server = Server::start(&[("DATABASE_URL", &store.url()), ("DATABASE_SECONDS", "1")]);
    assert!(healthcheck(address(&server)).0);
    store.stop(Stop::Immediate);
    let (well, told) = healthcheck(address(&server));
    assert!(!well && told.contains("store_unavailable"), "{told}");
}

#[test]
fn healthcheck_and_migrate_read_the_settings_file() {
    let folder = open_folder();
    let file = folder.path().join("interpreterd.toml");
    let (listen, data) = (address(shared()), folder.path().join("named"));
    std::fs::create_dir(&data).unwrap();
    std::os::unix::fs::chown(&data, Some(10001), Some(10001)).ok();
    std::fs::write(&file, format!("listen = \"{listen}\"\ndata_dir = \"{}\"\n", data.display()))
        .unwrap();
    for action in ["healthcheck", "migrate"] {
        let mut command = command();
        let told = command.arg(action).arg("--config").arg(&file).current_dir(folder.path());
        let told = told.output().unwrap();
        assert!(told.status.success(), "{action}: {}", String::from_utf8_lossy(&told.stderr));
    }
    assert!(data.join("interpreterd.db").exists(), "the database of the file is the one");
}
