//! What the documents show works: their examples are run against the real service.

mod pages;
#[cfg(feature = "bedrock")]
mod settings;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::support::double::doubles_python;
use crate::support::index::{Index, Package};
use crate::support::server::{Server, end_with_the_tests, open_folder};

/// They are built in, as are the recordings: a user who cannot read the repository runs them too.
const README: &str = include_str!("../../README.md");
const QUICKSTART: &str = include_str!("../../docs/quickstart.md");
const API: &str = include_str!("../../docs/api.md");
const QUESTIONS: &str = include_str!("../../docs/api-questions.md");
const RUNS: &str = include_str!("../../docs/api-runs.md");
const EVENTS: &str = include_str!("../../docs/events.md");
const FROM_GLLM_TOOLS: &str = include_str!("../../docs/from-gllm-tools.md");

const PROGRAM: &str = include_str!("../../scripts/examples");
const SALES: &str = include_str!("../../demo/sales.csv");
const RECORDINGS: &str = include_str!("examples/recordings.json");
const KEY: &str = "key-of-the-examples";

/// A service with recorded answers and an index that has the package which the examples ask for.
struct Service {
    server: Server,
    _index: Index,
    _folder: tempfile::TempDir,
}

impl Service {
    fn start(more: &[(&str, &str)]) -> Self {
        let folder = open_folder();
        let recordings = folder.path().join("recordings.json");
        std::fs::write(&recordings, RECORDINGS).unwrap();
        let index = Index::start(&[Package::new("tabulate", "0.9.0")]);
        let settings = [
            ("MODEL_PROTOCOL", "replay"),
            ("MODEL_REPLAY_FILE", recordings.to_str().unwrap()),
            ("LOCAL_PACKAGE_INDEX", &index.url),
        ];
        let server = Server::start(&[&settings, more].concat());
        end_with_the_tests(server.pid());
        Self { server, _index: index, _folder: folder }
    }

    fn shared() -> &'static Self {
        static SHARED: OnceLock<Service> = OnceLock::new();
        SHARED.get_or_init(|| Self::start(&[]))
    }

    fn with_keys() -> &'static Self {
        static SHARED: OnceLock<Service> = OnceLock::new();
        SHARED.get_or_init(|| Self::start(&[("API_KEYS", KEY)]))
    }

    /// Runs the examples of pages; whether all are well, and what was told of them.
    fn run(&self, pages: &[(&str, &str)], language: &str, more: &[&str]) -> (bool, String) {
        let folder = open_folder();
        let lay = |name: &str, text: &str| -> PathBuf {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, text).unwrap();
            path
        };
        lay("demo/sales.csv", SALES);
        lay("key", KEY);
        let program = lay("scripts/examples", PROGRAM);
        let files = pages.iter().map(|(name, text)| lay(name, text));
        let python = doubles_python();
        #[expect(clippy::disallowed_methods, reason = "the examples are programs")]
        let mut command = std::process::Command::new("/usr/bin/python3");
        command.arg(program).args(files).args(["--base", &self.server.base]);
        command.args(["--language", language, "--total-seconds", "300"]);
        command.arg("--javascript").arg(python.with_file_name("deno"));
        command.arg("--python").arg(python).args(more);
        let output = command.current_dir(folder.path()).output().unwrap();
        let told = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&told).into_owned())
    }

    fn all_work(&self, pages: &[(&str, &str)], language: &str) {
        let (well, told) = self.run(pages, language, &[]);
        assert!(well, "{told}");
    }
}

const ALL_OF_THE_API: [(&str, &str); 3] =
    [("api.md", API), ("api-questions.md", QUESTIONS), ("api-runs.md", RUNS)];

#[test]
fn the_readmes_examples_work() {
    Service::shared().all_work(&[("README.md", README)], "sh");
}

#[test]
fn the_quick_starts_examples_work() {
    Service::shared().all_work(&[("quickstart.md", QUICKSTART)], "sh");
}

#[test]
fn the_example_of_events_works() {
    Service::shared().all_work(&[("events.md", EVENTS)], "sh");
}

#[test]
fn the_example_beside_gllm_tools_works() {
    Service::shared().all_work(&[("from-gllm-tools.md", FROM_GLLM_TOOLS)], "python");
}

#[test]
fn each_example_of_the_api_works_in_a_shell() {
    Service::shared().all_work(&ALL_OF_THE_API, "sh");
}

#[test]
fn each_example_of_the_api_works_in_python() {
    Service::shared().all_work(&ALL_OF_THE_API, "python");
}

#[test]
fn each_example_of_the_api_works_in_javascript() {
    Service::shared().all_work(&ALL_OF_THE_API, "javascript");
}

#[test]
fn the_examples_work_with_a_key_and_not_without() {
    let service = Service::with_keys();
    for language in ["sh", "python", "javascript"] {
        let (well, told) = service.run(&ALL_OF_THE_API, language, &["--key-file", "key"]);
        assert!(well, "{told}");
        let (well, told) = service.run(&ALL_OF_THE_API, language, &[]);
        assert!(!well && told.contains("unauthorized"), "{told}");
    }
}

#[test]
fn an_example_that_prints_something_else_is_told_with_its_line() {
    let page = "# A page\n\n```sh\ncurl -s http://127.0.0.1:8080/healthz\n```\n\n```json\n{\"status\": \"ill\", \"…\": \"…\"}\n```\n\n\
                ```sh\ncurl -s http://127.0.0.1:8080/v1/runs/1\n```\n\n<!-- not run: it would fail -->\n```sh\nexit 3\n```\n\n\
                ```sh\nprintf 'one\\ntwo\\nthree\\n'\n```\n<!-- prints\none\n…\ntree\n-->\n\n```sh\nexit 4\n```\n\n```sh\ntrue\n```\n";
    let (well, told) = Service::shared().run(&[("page.md", page)], "sh", &[]);
    assert!(!well, "{told}");
    for line in [
        "page.md:3: this example in sh does not print what line 7 says",
        "/status: expected \"ill\", it is \"ok\"",
        "page.md:11: the service answered a problem in sh",
        "page.md:20: this example in sh does not print what line 23 says",
        "+three",
        "page.md:29: it ended with 4 in this example in sh",
        "1 examples after it were not run",
        "page.md: 5 examples in sh, 5 failed",
    ] {
        assert!(told.contains(line), "{line} is not in:\n{told}");
    }
}

/// Where the repository is, for what reads more of it than is built in.
fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
