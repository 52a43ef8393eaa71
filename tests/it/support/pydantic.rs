//! Services whose provider is `pydantic`: over our server, and over the genuine upstream server.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

use super::double::{doubles_python, guests};
use super::server::{Server, end_with_the_tests, open_folder};

/// The service that most tests share.
pub fn shared() -> &'static Server {
    static SHARED: OnceLock<Server> = OnceLock::new();
    SHARED.get_or_init(|| {
        let server = Server::start(&[("DEFAULT_PROVIDER", "pydantic"), ("PYDANTIC_POOL", "2")]);
        end_with_the_tests(server.pid());
        server
    })
}

/// A service with one entry `own` of the TOML file as its default, which says more.
pub fn serve_entry(lines: &str, more: &[(&str, &str)]) -> Server {
    let folder = open_folder();
    let path = folder.path().join("settings.toml");
    std::fs::write(&path, format!("[providers.own]\nkind = \"pydantic\"\n{lines}\n")).unwrap();
    let settings = [("CONFIG", path.to_str().unwrap()), ("DEFAULT_PROVIDER", "own")];
    Server::start(&[settings.as_slice(), more].concat())
}

/// The genuine mcp-run-python 0.0.22, where the service may read it.
pub struct Upstream {
    folder: PathBuf,
    about: Value,
}

/// One for all tests, with the service whose default it is.
pub fn upstream() -> &'static (Upstream, Server) {
    static SHARED: OnceLock<(Upstream, Server)> = OnceLock::new();
    SHARED.get_or_init(|| {
        let upstream = Upstream::unpack();
        let server = serve_entry(&upstream.lines(), &[]);
        end_with_the_tests(server.pid());
        (upstream, server)
    })
}

/// Deno as it was installed with the guest.
pub fn deno() -> PathBuf {
    installed().join("bin/deno")
}

/// What `guest install --provider pydantic` has installed.
pub fn installed() -> PathBuf {
    let folders = std::fs::read_dir(guests()).unwrap().flatten().map(|folder| folder.path());
    let is_it =
        |folder: &PathBuf| folder.join("pyodide").is_dir() && folder.join("guest.json").is_file();
    let newest = folders
        .filter(is_it)
        .max_by_key(|folder| std::fs::metadata(folder).and_then(|about| about.modified()).ok());
    newest.expect("make doubles installs it")
}

impl Upstream {
    pub fn unpack() -> Self {
        let python = doubles_python();
        let source = python.parent().and_then(Path::parent).unwrap().join("upstream");
        let about = source.join("command.json");
        let about = std::fs::read_to_string(about).expect("make doubles installs it");
        let folder = copied(&source);
        Self { folder, about: serde_json::from_str(&about).unwrap() }
    }

    fn words(&self, name: &str) -> Vec<String> {
        let arguments = self.about[name].as_array().unwrap().iter();
        let arguments = arguments.map(|word| word.as_str().unwrap().to_owned());
        [deno().to_str().unwrap().to_owned()].into_iter().chain(arguments).collect()
    }

    fn cwd(&self) -> PathBuf {
        self.folder.clone()
    }

    /// The lines of an entry that starts it for each sandbox.
    pub fn lines(&self) -> String {
        let words = self.words("args");
        format!("command = {words:?}\nfolder = \"{}\"", self.cwd().display())
    }

    /// The same, with the tags of its older way in place of JSON.
    pub fn lines_with_tags(&self) -> String {
        self.lines().replace("--return-mode=json", "--return-mode=xml")
    }

    /// Starts it as a server at a URL.
    pub fn at_url(&self) -> AtUrl {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let words = self.words("http_args");
        let words = words.iter().map(|word| word.replace("{port}", &port.to_string()));
        let words: Vec<String> = words.collect();
        #[expect(clippy::disallowed_methods, reason = "the double is a program")]
        let mut command = Command::new(&words[0]);
        let mut child = command
            .args(&words[1..])
            .current_dir(self.cwd())
            .env_clear()
            .env("DENO_DIR", "/nonexistent") // users without a home have no place for its cache
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let is_ready = lines.any(|line| line.unwrap().contains("Listening on port"));
        assert!(is_ready, "it has ended");
        end_with_the_tests(child.id());
        let stdin = child.stdin.take().unwrap();
        AtUrl { child, _stdin: stdin, url: format!("http://127.0.0.1:{port}/mcp") }
    }
}

/// A server that answers at a URL, ended when dropped.
pub struct AtUrl {
    child: Child,
    _stdin: ChildStdin,
    pub url: String,
}

impl Drop for AtUrl {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A copy for this user, made once: it is large, and nobody removes what all tests share.
fn copied(source: &Path) -> PathBuf {
    let stamp = std::fs::metadata(source.join("command.json")).unwrap().modified().unwrap();
    let stamp = stamp.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let user = rustix::process::geteuid().as_raw();
    let place = std::env::temp_dir().join(format!("interpreterd-upstream-{user}-{stamp}"));
    if !place.exists() {
        let partial = open_folder();
        let copy = partial.path().join("upstream");
        #[expect(clippy::disallowed_methods, reason = "the double is files")]
        let copied = Command::new("cp").arg("-a").arg(source).arg(&copy).status().unwrap();
        assert!(copied.success());
        std::fs::rename(&copy, &place).unwrap();
    }
    place
}
