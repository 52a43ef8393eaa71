//! The doubles of clouds, programs of tests/doubles; E2B's and its back door.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, OnceLock};

use reqwest::Method;
use serde_json::{Value, json};

use super::must_come;
use super::server::{Server, end_with_the_tests, open_folder};

/// The Python that has what doubles need; `make doubles` installs it.
const PYTHON: &str = "INTERPRETERD_TEST_DOUBLES_PYTHON";
/// Where the doubles are, when that is not the repository.
const FOLDER: &str = "INTERPRETERD_TEST_DOUBLES_DIR";
pub const KEY: &str = "key-of-the-tests";

/// A double that runs, ended when dropped.
pub struct Running {
    child: Mutex<Child>,
    /// It ends when this is closed, as it is when the tests are killed.
    _stdin: ChildStdin,
    pub url: String,
    client: reqwest::Client,
}

/// A cloud of its own, ended when dropped.
pub struct Double {
    running: Running,
    pub url: String,
}

/// The cloud that most tests share, and the service that has it as its default.
pub fn shared() -> &'static (Double, Server) {
    static SHARED: OnceLock<(Double, Server)> = OnceLock::new();
    SHARED.get_or_init(|| {
        let double = Double::start(&["--max-sandboxes", "200"]);
        let server = double.serve(&[]);
        end_with_the_tests(server.pid());
        (double, server)
    })
}

impl Running {
    /// Starts a program of tests/doubles, which says where it is.
    pub fn start(program: &str, greeting: &str, options: &[&str]) -> Self {
        let python = doubles_python();
        let folder = std::env::var_os(FOLDER).map_or_else(
            || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/doubles"),
            PathBuf::from,
        );
        assert!(python.exists(), "there is no {}: make doubles installs it", python.display());
        #[expect(clippy::disallowed_methods, reason = "the double is a program")]
        let mut command = Command::new(python);
        let mut child = command
            .args(["-m", program, "--python"])
            .arg(guest_python())
            .args(options)
            .env("PYTHONPATH", folder)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix(greeting).expect("the double starts").to_owned();
        interpreterd::net::install_crypto();
        #[expect(clippy::disallowed_methods, reason = "tests are callers, not the service")]
        let client = reqwest::Client::builder().tls_danger_accept_invalid_certs(true);
        let stdin = child.stdin.take().unwrap();
        Self { child: Mutex::new(child), _stdin: stdin, url, client: client.build().unwrap() }
    }

    /// A call of its back door.
    pub async fn call(&self, method: Method, path: &str, body: &Value) -> Value {
        let request = self.client.request(method, format!("{}/_double/{path}", self.url));
        let response = request.json(body).send().await.unwrap();
        let status = response.status();
        let text = response.text().await.unwrap();
        assert!(status.is_success(), "{path}: {status} {text}");
        serde_json::from_str(&text).unwrap_or_default()
    }

    pub fn kill(&self) {
        let mut child = self.child.lock().unwrap();
        let _ = child.kill();
        let _ = child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Double {
    pub fn start(options: &[&str]) -> Self {
        let options = [&["--api-key", KEY], options].concat();
        let running = Running::start("e2b_cloud", "e2b double on ", &options);
        Self { url: running.url.clone(), running }
    }

    /// The settings by which a service uses it.
    pub fn settings(&self) -> Vec<(&str, &str)> {
        vec![
            ("E2B_API_KEY", KEY),
            ("E2B_API_URL", &self.url),
            ("E2B_SANDBOX_URL", &self.url),
            ("DEFAULT_PROVIDER", "e2b"),
        ]
    }

    /// A service whose default provider it is.
    pub fn serve(&self, more: &[(&str, &str)]) -> Server {
        Server::start(&[self.settings().as_slice(), more].concat())
    }

    /// A service with one entry `own` of the TOML file, which says more.
    pub fn serve_entry(&self, lines: &str) -> Server {
        let folder = open_folder();
        let path = folder.path().join("settings.toml");
        let key = folder.path().join("key");
        std::fs::write(&key, KEY).unwrap();
        let entry = format!(
            "[providers.own]\nkind = \"e2b\"\napi_key_file = \"{1}\"\napi_url = \"{0}\"\nsandbox_url = \"{0}\"\n{lines}",
            self.url,
            key.display()
        );
        std::fs::write(&path, entry).unwrap();
        Server::start(&[("CONFIG", path.to_str().unwrap()), ("DEFAULT_PROVIDER", "own")])
    }

    async fn call(&self, method: Method, path: &str, body: &Value) -> Value {
        self.running.call(method, path, body).await
    }

    /// Lets calls that match go wrong.
    pub async fn fault(&self, fault: Value) {
        self.call(Method::POST, "faults", &fault).await;
    }

    /// What it was sent so far, of calls whose `METHOD /path` begins so.
    pub async fn requests(&self, begin: &str) -> Vec<Value> {
        let all = self.call(Method::GET, "requests", &Value::Null).await;
        let matches = |request: &&Value| {
            let text = |name: &str| request[name].as_str().unwrap_or_default().to_owned();
            format!("{} {}", text("method"), text("path")).starts_with(begin)
        };
        all.as_array().unwrap().iter().filter(matches).cloned().collect()
    }

    /// The sandboxes that there are, of all teams.
    pub async fn sandboxes(&self) -> Vec<Value> {
        let all = self.call(Method::GET, "sandboxes", &Value::Null).await;
        all.as_array().unwrap().clone()
    }

    /// Waits until there are so many.
    pub async fn has_sandboxes(&self, count: usize) {
        must_come(async {
            while self.sandboxes().await.len() != count {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    /// Takes a sandbox's contexts away, as its own code can.
    pub async fn delete_contexts(&self, id: &str) {
        let sandboxes = self.sandboxes().await;
        let sandbox = sandboxes.iter().find(|sandbox| sandbox["sandboxID"] == id).unwrap();
        let token = sandbox["trafficAccessToken"].as_str().unwrap();
        for context in sandbox["contexts"].as_array().unwrap() {
            let path = format!("{}/contexts/{}", self.url, context["id"].as_str().unwrap());
            let request = self.running.client.delete(path).header("e2b-sandbox-id", id);
            let request = request.header("e2b-sandbox-port", "49999");
            let request = request.header("e2b-traffic-access-token", token);
            assert!(request.send().await.unwrap().status().is_success());
        }
    }

    /// A sandbox vanishes, as some do long before their time.
    pub async fn kill_sandbox(&self, id: &str) {
        self.call(Method::POST, "kill_sandbox", &json!({"id": id})).await;
    }

    pub fn kill(&self) {
        self.running.kill();
    }
}

/// The Python that has what doubles need.
pub fn doubles_python() -> PathBuf {
    std::env::var_os(PYTHON).map_or_else(installed, PathBuf::from)
}

fn installed() -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    let tools = std::env::var_os("INTERPRETERD_TOOLS_DIR").map(PathBuf::from);
    let tools = tools.or_else(|| Some(cache?.join("interpreterd-tools"))).unwrap();
    tools.join("doubles/bin/python")
}

/// The Python with the usual packages, for the double's kernels.
pub fn guest_python() -> PathBuf {
    let folders = std::fs::read_dir(guests()).unwrap().flatten();
    let pythons = folders.map(|folder| folder.path().join("bin/python"));
    let newest = pythons.filter(|python| python.exists()).max_by_key(|python| {
        std::fs::metadata(python.parent().unwrap()).and_then(|about| about.modified()).ok()
    });
    newest.expect("make guest installs it")
}

/// The folder of all that `guest install` installs.
pub fn guests() -> PathBuf {
    let named = std::env::var_os("INTERPRETERD_GUEST_DIR").map(PathBuf::from);
    named.unwrap_or_else(|| {
        if rustix::process::geteuid().is_root() {
            return "/var/lib/interpreterd/guest".into();
        }
        let home = PathBuf::from(std::env::var_os("HOME").unwrap());
        let data = std::env::var_os("XDG_DATA_HOME").map_or(home.join(".local/share"), Into::into);
        data.join("interpreterd/guest")
    })
}
