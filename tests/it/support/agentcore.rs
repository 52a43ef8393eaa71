//! The double of AWS Bedrock AgentCore, a program of tests/doubles, and its back door.

use std::sync::OnceLock;

use reqwest::Method;
use serde_json::{Value, json};

use super::double::Running;
use super::server::{Server, end_with_the_tests, open_folder};

/// What the double signs with; any id of a key is good.
pub const SECRET: &str = "SECRETTEST";

/// An AWS of its own, ended when dropped.
pub struct AgentCore {
    running: Running,
}

/// The AWS that most tests share, and the service that has it as its default.
pub fn shared() -> &'static (AgentCore, Server) {
    static SHARED: OnceLock<(AgentCore, Server)> = OnceLock::new();
    SHARED.get_or_init(|| {
        let aws = AgentCore::start(&[]);
        let server = aws.serve(&[]);
        end_with_the_tests(server.pid());
        (aws, server)
    })
}

impl AgentCore {
    pub fn start(options: &[&str]) -> Self {
        Self { running: Running::start("agentcore", "agentcore double on ", options) }
    }

    pub fn url(&self) -> &str {
        &self.running.url
    }

    pub fn kill(&self) {
        self.running.kill();
    }

    /// The settings by which a service uses it.
    pub fn settings(&self) -> Vec<(&str, &str)> {
        vec![
            ("BEDROCK_REGION", "us-west-2"),
            ("BEDROCK_ENDPOINT_URL", &self.running.url),
            ("BEDROCK_ACCESS_KEY_ID", "AKIDOFTHETESTS"),
            ("BEDROCK_SECRET_ACCESS_KEY", SECRET),
            ("DEFAULT_PROVIDER", "bedrock"),
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
        let secret = folder.path().join("secret");
        std::fs::write(&secret, SECRET).unwrap();
        let entry = format!(
            "[providers.own]\nkind = \"bedrock\"\nregion = \"us-west-2\"\nendpoint_url = \"{}\"\naccess_key_id = \"AKIDOFTHETESTS\"\nsecret_access_key_file = \"{}\"\n{lines}",
            self.running.url,
            secret.display()
        );
        std::fs::write(&path, entry).unwrap();
        Server::start(&[("CONFIG", path.to_str().unwrap()), ("DEFAULT_PROVIDER", "own")])
    }

    /// Lets calls that match go wrong.
    pub async fn fault(&self, fault: Value) {
        self.running.call(Method::POST, "faults", &fault).await;
    }

    /// What it was sent so far, of calls whose `METHOD /path` begins so.
    pub async fn requests(&self, begin: &str) -> Vec<Value> {
        let all = self.running.call(Method::GET, "requests", &Value::Null).await;
        let matches = |request: &&Value| {
            let text = |name: &str| request[name].as_str().unwrap_or_default().to_owned();
            format!("{} {}", text("method"), text("path")).starts_with(begin)
        };
        all.as_array().unwrap().iter().filter(matches).cloned().collect()
    }

    /// The sessions of AWS that live.
    pub async fn machines(&self) -> Vec<Value> {
        let all = self.running.call(Method::GET, "sessions", &Value::Null).await;
        let lives = |session: &&Value| session["status"] == "READY";
        all.as_array().unwrap().iter().filter(lives).cloned().collect()
    }

    /// How many cells a kernel was given.
    pub async fn executed(&self) -> u64 {
        self.running.call(Method::GET, "stats", &Value::Null).await["executed"].as_u64().unwrap()
    }

    /// A session of AWS ends, as if AWS had ended it.
    pub async fn kill_machine(&self, id: &str) {
        self.running.call(Method::POST, "kill_session", &json!({"id": id})).await;
    }

    pub async fn kill_kernel(&self, id: &str) {
        self.running.call(Method::POST, "kill_kernel", &json!({"id": id})).await;
    }
}
