//! The Deno, the Pyodide and the packages that are installed, and how our server is run by them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::cage::Cage;
use super::embedded::{self, INSTALL, SERVER};
use super::error::PydanticError;
use super::process::{self, Plan};
use super::walls::Walls;
use crate::domain::limits::Limits;
use crate::domain::provider::Isolation;
use crate::sandbox::ProviderReport;

/// Written last: a folder without it is no installation.
pub(super) const MANIFEST: &str = "guest.json";
pub(super) const SNAPSHOT: &str = "snapshot.bin";
/// What Deno, V8 and Pyodide take besides the memory of the program.
const OVERHEAD_BYTES: u64 = 320 << 20;
const WASM_PAGE_BYTES: u64 = 64 << 10;
const WASM_MOST_PAGES: u64 = 65_536;
/// The server's own refusal comes before the kernel's, which ends the process.
const FILE_MARGIN_BYTES: u64 = 1 << 20;
/// The server's own bound: what a cell may take is told with each.
const LONGEST_CELL: Duration = Duration::from_secs(86_400);
/// With V8's own bounds recursion through C (`__getattr__`, nested JSON) ends the interpreter. The
/// first thread has 8 MiB.
const STACK_KB: u32 = 6000;
const SWITCHED_STACK_KB: u32 = 8192;
/// All of Deno's environment. Nothing is cached, and no cache of a person is read; what a worker
/// leaves that was replaced goes back to the host.
const ENV: [(&str, &str); 7] = [
    ("DENO_DIR", "/nonexistent"),
    ("NO_COLOR", "1"),
    ("DENO_NO_UPDATE_CHECK", "1"),
    // of its threads, on which Python's recursion stands: more than V8 is told
    ("RUST_MIN_STACK", "16777216"),
    ("MALLOC_ARENA_MAX", "2"),
    ("MALLOC_TRIM_THRESHOLD_", "131072"),
    ("MALLOC_MMAP_THRESHOLD_", "131072"),
];

/// What an installation is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    /// Such as 2.9.8.
    pub(super) deno: String,
    /// Such as 314.0.7.
    pub(super) pyodide: String,
    /// Such as 3.14.2.
    pub(super) python: String,
    /// The packages of the store, with their versions.
    pub(super) packages: BTreeMap<String, String>,
    /// The server that the snapshot was made for; another one starts without it.
    pub(super) server: String,
}

/// An installation.
#[derive(Debug, Clone)]
pub(super) struct Guest {
    folder: PathBuf,
    pub(super) manifest: Manifest,
}

/// One sandbox's own part of the command line.
pub(super) struct Place<'a> {
    /// The folder of our server's files.
    pub(super) server: &'a Path,
    /// The folder that code sees as `/files`.
    pub(super) files: &'a Path,
    pub(super) limits: &'a Limits,
    pub(super) output_bytes: u64,
    pub(super) jail: bool,
    /// How long a cell may go on that was told to stop.
    pub(super) grace: Duration,
}

impl Guest {
    /// The installation for this version of the service.
    pub(super) fn find(folder: &Path) -> Result<Self, PydanticError> {
        let target = folder.join(folder_name());
        let manifest = match fs::read(target.join(MANIFEST)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(PydanticError::NotInstalled(folder.to_owned()));
            }
            read => read.map_err(PydanticError::Folder)?,
        };
        refuse_comma(&target)?;
        let missing = |what| PydanticError::Missing { what, folder: target.clone() };
        let manifest = serde_json::from_slice(&manifest).map_err(|_| missing("its manifest"))?;
        let parts = [
            ("bin/deno", "Deno"),
            ("pyodide/pyodide.mjs", "Pyodide"),
            ("pyodide/pyodide.asm.wasm", "Pyodide's program (pyodide.asm.wasm)"),
            ("pyodide/python_stdlib.zip", "Python's standard library"),
            ("packages/pyodide-lock.json", "the package store"),
        ];
        for (path, what) in parts {
            if !target.join(path).is_file() {
                return Err(missing(what));
            }
        }
        Ok(Self { folder: target, manifest })
    }

    /// What its sandboxes are like, as far as it is known.
    pub(super) fn report(&self, isolation: Option<Isolation>) -> ProviderReport {
        let Manifest { python, packages, .. } = self.manifest.clone();
        ProviderReport { isolation, python: Some(python), packages }
    }

    fn path(&self, below: &str) -> PathBuf {
        self.folder.join(below)
    }

    /// The snapshot, where it is one of this version's server.
    pub(super) fn snapshot(&self) -> Option<PathBuf> {
        let path = self.path(SNAPSHOT);
        (self.manifest.server == embedded::key(SERVER) && path.is_file()).then_some(path)
    }

    /// How a server of ours is started.
    pub(super) fn plan(&self, place: &Place<'_>) -> Plan {
        let mut readable =
            vec![place.server.to_owned(), self.path("pyodide"), self.path("packages")];
        readable.extend(self.snapshot());
        let files = vec![place.files.to_owned()];
        let cage = Cage {
            file_bytes: place.limits.disk_bytes.map(|most| most + FILE_MARGIN_BYTES),
            walls: Some(Walls {
                stand: place.jail,
                executable: vec![self.path("bin/deno")],
                readable: readable.clone(),
                writable: files.clone(),
            }),
            ..process::cage(self.words(place, &readable), Some(place.server.to_owned()))
        };
        let env = ENV.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Plan { cage, env: env.into() }
    }

    fn words(&self, place: &Place<'_>, readable: &[PathBuf]) -> Vec<String> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let mut words = vec![text(&self.path("bin/deno")), "run".to_owned()];
        let closed =
            ["--no-prompt", "--no-remote", "--no-npm", "--no-config", "--no-lock", "--cached-only"];
        words.extend(closed.map(str::to_owned));
        let pages = wasm_pages(place.limits.memory_bytes);
        words.push(format!(
            "--v8-flags=--wasm-max-mem-pages={pages},--disallow-code-generation-from-strings,--expose-gc,\
             --stack-size={STACK_KB},--wasm-stack-switching-stack-size={SWITCHED_STACK_KB}"
        ));
        let mut all: Vec<_> = readable.iter().map(PathBuf::as_path).collect();
        all.push(place.files);
        words.push(format!("--allow-read={}", listed(&all)));
        words.push(format!("--allow-write={}", listed(&[place.files])));
        words.push(text(&place.server.join("server.mjs")));
        let mut option = |name: &str, value: String| words.extend([format!("--{name}"), value]);
        option("pyodide", text(&self.path("pyodide")));
        option("packages", text(&self.path("packages")));
        option("files", text(place.files));
        option("max-timeout-ms", LONGEST_CELL.as_millis().to_string());
        option("grace-ms", place.grace.as_millis().to_string());
        option("output-bytes", place.output_bytes.to_string());
        if let Some(snapshot) = self.snapshot() {
            option("snapshot", text(&snapshot));
        }
        if let Some(most) = place.limits.disk_bytes {
            option("files-bytes", most.to_string());
        }
        words
    }
}

/// Deno separates the paths of a permission by commas, and knows no other way.
pub(super) fn refuse_comma(path: &Path) -> Result<(), PydanticError> {
    let has_comma = path.to_string_lossy().contains(',');
    if has_comma { Err(PydanticError::Comma(path.to_owned())) } else { Ok(()) }
}

/// Paths as Deno's permissions take them.
fn listed(paths: &[&Path]) -> String {
    let texts: Vec<_> = paths.iter().map(|path| path.to_string_lossy()).collect();
    texts.join(",")
}

/// How far the memory of the program may grow.
fn wasm_pages(memory_bytes: Option<u64>) -> u64 {
    let bytes = memory_bytes.unwrap_or(u64::MAX).saturating_sub(OVERHEAD_BYTES);
    (bytes / WASM_PAGE_BYTES).min(WASM_MOST_PAGES)
}

/// The name of an installation's folder: which Deno, Pyodide and packages.
pub(super) fn folder_name() -> String {
    let is_program = |name: &str| Path::new(name).extension().is_some_and(|end| end == "py");
    let pins = INSTALL.iter().filter(|(name, _)| !is_program(name));
    let mut digest = Sha256::new();
    for (name, content) in pins {
        digest.update(name);
        digest.update(content);
    }
    let key: String = digest.finalize().iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    format!("pydantic-{key}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_memory_is_what_the_interpreter_leaves_of_it() {
        assert_eq!(wasm_pages(Some(1 << 30)), 11_264);
        assert_eq!(wasm_pages(Some(5 << 30)), WASM_MOST_PAGES);
        assert_eq!(wasm_pages(None), WASM_MOST_PAGES);
    }

    #[test]
    fn what_is_missing_of_an_installation_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let absent = Guest::find(folder.path()).expect_err("nothing is there");
        assert!(absent.to_string().contains("guest install --provider pydantic"), "{absent}");
        let target = folder.path().join(folder_name());
        fs::create_dir_all(target.join("bin")).expect("made");
        fs::write(target.join("bin/deno"), "").expect("written");
        let manifest = Manifest {
            deno: "2".into(),
            pyodide: "314".into(),
            python: "3.14".into(),
            packages: BTreeMap::new(),
            server: String::new(),
        };
        let text = serde_json::to_vec(&manifest).expect("plain");
        fs::write(target.join(MANIFEST), text).expect("written");
        let part = Guest::find(folder.path()).expect_err("Pyodide is missing");
        assert!(part.to_string().starts_with("Pyodide is missing"), "{part}");
    }
}
