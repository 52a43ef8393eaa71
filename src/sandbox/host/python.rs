//! The CPython of this host that guests are built on.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde::Deserialize;

const NEWEST_MINOR: u32 = 14;
const OLDEST_MINOR: u32 = 11;
/// How the network is reached.
pub(in crate::sandbox) const PROXIES: [&str; 6] =
    ["http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"];
/// What pip may know of the caller's environment besides.
const PIP_ENVIRONMENT: [&str; 6] =
    ["PATH", "HOME", "LANG", "TMPDIR", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"];
const PROBE: &str = "import json, sys; ok = True\ntry:\n import ensurepip, venv\nexcept ImportError:\n ok = False\n\
    print(json.dumps({'implementation': sys.implementation.name, 'major': sys.version_info[0], \
    'minor': sys.version_info[1], 'version': sys.version.split()[0], 'base_prefix': sys.base_prefix, \
    'executable': sys.executable, 'venv': ok}))";

/// No Python could be used; what was wrong with each one.
#[derive(Debug, thiserror::Error)]
#[error("no CPython 3.11 to 3.14 that the sandbox can use was found{}\n\
         install one (Debian and Ubuntu: apt-get install python3 python3-venv) or name one with --guest-python", listed(.0))]
pub struct NoPython(Vec<(PathBuf, Unfit)>);

/// Why a Python cannot be the guest.
#[derive(Debug, thiserror::Error)]
pub enum Unfit {
    /// It did not run.
    #[error("it cannot be run")]
    Broken,
    /// Another language implementation or version.
    #[error("it is {0} and not CPython 3.11 to 3.14")]
    Version(String),
    /// Its standard library is split up.
    #[error("it has no venv module (Debian and Ubuntu: apt-get install python3-venv)")]
    NoVenv,
    /// It stands where only root may look.
    #[error("the sandbox's user cannot read {}", .0.display())]
    Unreadable(PathBuf),
}

fn listed(unfit: &[(PathBuf, Unfit)]) -> String {
    unfit.iter().map(|(path, why)| format!("\n  {}: {why}", path.display())).collect()
}

/// A Python of this host, as it says of itself.
#[derive(Debug, Deserialize)]
pub(in crate::sandbox) struct Python {
    implementation: String,
    major: u32,
    pub(in crate::sandbox) minor: u32,
    pub(in crate::sandbox) version: String,
    pub(in crate::sandbox) base_prefix: PathBuf,
    pub(in crate::sandbox) executable: PathBuf,
    venv: bool,
}

/// A program with what it may know of the caller's environment.
#[expect(clippy::disallowed_methods, reason = "the guest is a part of the sandbox")]
pub(in crate::sandbox) fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear();
    for (name, value) in std::env::vars_os() {
        let wanted = name.to_str().is_some_and(|name| {
            PIP_ENVIRONMENT.contains(&name)
                || PROXIES.contains(&name)
                || name.starts_with("PIP_")
                || name.starts_with("NPM_CONFIG_")
                || name.starts_with("OPENBLAS_")
        });
        if wanted {
            command.env(name, value);
        }
    }
    command
}

/// The one that is named, or the newest that fits.
pub(in crate::sandbox) fn choose(named: Option<&Path>) -> Result<Python, NoPython> {
    let candidates = named.map_or_else(candidates, |path| vec![path.to_owned()]);
    let mut unfit = Vec::new();
    for path in candidates {
        match probe(&path) {
            Ok(python) => return Ok(python),
            Err(why) => unfit.push((path, why)),
        }
    }
    Err(NoPython(unfit))
}

/// The newest first, in PATH and where distributions put them.
fn candidates() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    folders.extend(["/usr/local/bin", "/usr/bin"].map(PathBuf::from));
    let versions = (OLDEST_MINOR..=NEWEST_MINOR).rev().map(|minor| format!("python3.{minor}"));
    let mut found = Vec::new();
    for name in versions.chain(["python3".to_owned()]) {
        for folder in &folders {
            let candidate = folder.join(&name);
            if candidate.is_file() && !found.contains(&candidate) {
                found.push(candidate);
            }
        }
    }
    found
}

fn probe(path: &Path) -> Result<Python, Unfit> {
    let output: Output =
        command(path).args(["-I", "-c", PROBE]).output().map_err(|_| Unfit::Broken)?;
    let python: Python = serde_json::from_slice(&output.stdout).map_err(|_| Unfit::Broken)?;
    let fits = python.implementation == "cpython"
        && python.major == 3
        && (OLDEST_MINOR..=NEWEST_MINOR).contains(&python.minor);
    if !fits {
        return Err(Unfit::Version(format!("{} {}", python.implementation, python.version)));
    }
    if rustix::process::geteuid().is_root() {
        let real = fs::canonicalize(&python.executable).map_err(|_| Unfit::Broken)?;
        for path in [real.as_path(), python.base_prefix.as_path()] {
            if let Some(closed) = closed_to_others(path) {
                return Err(Unfit::Unreadable(closed));
            }
        }
    }
    if python.venv { Ok(python) } else { Err(Unfit::NoVenv) }
}

/// The first folder on the way to a path, or the path, that users other than its owner cannot enter.
fn closed_to_others(path: &Path) -> Option<PathBuf> {
    let mut ancestors: Vec<&Path> = path.ancestors().collect();
    ancestors.reverse();
    let closed = |path: &&Path| {
        fs::metadata(path).map_or(true, |metadata| {
            metadata.uid() == 0 && metadata.permissions().mode() & 0o001 == 0
        })
    };
    ancestors.into_iter().find(closed).map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_python_is_refused_with_a_clear_sentence() {
        let folder = tempfile::tempdir().expect("a folder");
        let fake = folder.path().join("python3.9");
        let answer = r#"{"implementation":"cpython","major":3,"minor":9,"version":"3.9.2","base_prefix":"/usr","executable":"/usr/bin/python3.9","venv":true}"#;
        fs::write(&fake, format!("#!/bin/sh\necho '{answer}'\n")).expect("written");
        fs::set_permissions(&fake, fs::Permissions::from_mode(0o755)).expect("executable");
        let error = choose(Some(&fake)).expect_err("too old").to_string();
        assert!(error.contains("it is cpython 3.9.2 and not CPython 3.11 to 3.14"), "{error}");
    }

    #[test]
    fn a_folder_that_only_root_may_enter_is_found() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).expect("closed");
        let inner = folder.path().join("bin");
        fs::create_dir(&inner).expect("made");
        let found = closed_to_others(&inner);
        let mine = rustix::process::geteuid().is_root();
        assert_eq!(found, mine.then(|| folder.path().to_owned()));
    }
}
