//! Installs Deno, Pyodide, a snapshot and a store of packages.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::embedded::{self, INSTALL, SERVER};
use super::guest::{MANIFEST, Manifest, folder_name};
use crate::config::InstallSettings;
use crate::sandbox::host::python::{self, NoPython};

/// Why nothing was installed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// No Python that could be used.
    #[error(transparent)]
    NoPython(#[from] NoPython),
    /// The installing program could not be run.
    #[error("cannot run {}", .0.display())]
    Run(PathBuf, #[source] io::Error),
    /// It failed; its own words stand above.
    #[error("the installation failed, see above")]
    Failed,
    /// It did not leave what it should.
    #[error("the installation in {} is not whole", .0.display())]
    NotWhole(PathBuf),
    /// The folder cannot be written.
    #[error("cannot write {}", .0.display())]
    Write(PathBuf, #[source] io::Error),
}

/// A mirror of Pyodide's own packages, for the installing program.
const CDN: &str = "INTERPRETERD_PYODIDE_CDN";

/// What the installing program notes of its work.
#[derive(Deserialize)]
struct About {
    deno: String,
    pyodide: String,
    python: String,
}

/// What is left to do in a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    /// All of it.
    Install,
    /// More packages.
    Add,
    /// The snapshot alone: the server is another one.
    Snapshot,
    Nothing,
}

/// Installs all that the provider `pydantic` needs below the settings' folder; adds packages to what is
/// there already.
///
/// # Errors
/// [`InstallError`] when a step failed.
pub fn install(settings: &InstallSettings) -> Result<(), InstallError> {
    let folder = settings.guest.folder();
    let target = folder.join(folder_name());
    let write = |error| InstallError::Write(folder.clone(), error);
    // root's umask may be stricter than the sandbox's user can live with
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    fs::create_dir_all(&folder).map_err(write)?;
    let lock = fs::File::create(folder.join("install.lock")).map_err(write)?;
    lock.lock().map_err(write)?; // a second installation waits for the first
    let work = work(&target, settings);
    if work == Work::Nothing {
        println!("Deno and Pyodide are there: {}", target.display());
        return Ok(());
    }
    let partial = folder.join(format!("{}.partial", folder_name()));
    if work == Work::Install && partial.exists() {
        fs::remove_dir_all(&partial).map_err(write)?;
    }
    let place = if work == Work::Install { &partial } else { &target };
    let code = tempfile::tempdir_in(&folder).map_err(write)?;
    run(settings, work, place, code.path())?;
    note(place)?;
    if work == Work::Install {
        if target.exists() {
            fs::remove_dir_all(&target).map_err(write)?;
        }
        fs::rename(&partial, &target).map_err(write)?;
    }
    println!("Deno and Pyodide are ready: {}", target.display());
    Ok(())
}

fn work(target: &Path, settings: &InstallSettings) -> Work {
    let manifest = fs::read(target.join(MANIFEST)).ok();
    let manifest = manifest.and_then(|text| serde_json::from_slice::<Manifest>(&text).ok());
    match manifest {
        None => Work::Install,
        Some(_) if !settings.packages.is_empty() || settings.wheels.is_some() => Work::Add,
        Some(manifest) if manifest.server != embedded::key(SERVER) => Work::Snapshot,
        Some(_) => Work::Nothing,
    }
}

/// Runs the installing program, which says itself what it does.
fn run(
    settings: &InstallSettings,
    work: Work,
    place: &Path,
    code: &Path,
) -> Result<(), InstallError> {
    let python = python::choose(settings.guest.guest_python.as_deref())?;
    let (program, server) = (code.join("install"), code.join("server"));
    embedded::write(INSTALL, &program)
        .and_then(|()| embedded::write(SERVER, &server))
        .map_err(|error| InstallError::Write(code.to_owned(), error))?;
    let mut command = python::command(&python.executable);
    if let Some(mirror) = &settings.cdn {
        command.env(CDN, mirror);
    }
    command.arg("-I").arg(program.join("install.py"));
    command.arg("--target").arg(place).arg("--server").arg(&server);
    match work {
        Work::Add => drop(command.arg("--add")),
        Work::Snapshot => drop(command.arg("--snapshot")),
        Work::Install | Work::Nothing => {}
    }
    if let Some(wheels) = &settings.wheels {
        command.arg("--wheels").arg(wheels);
    }
    if !settings.packages.is_empty() {
        command.arg("--packages").args(&settings.packages);
    }
    let status = command.status();
    let status = status.map_err(|error| InstallError::Run(python.executable.clone(), error))?;
    if status.success() { Ok(()) } else { Err(InstallError::Failed) }
}

/// Writes down what there is now.
fn note(place: &Path) -> Result<(), InstallError> {
    let not_whole = || InstallError::NotWhole(place.to_owned());
    let about: About = read(&place.join("about.json")).ok_or_else(not_whole)?;
    let packages: BTreeMap<String, String> =
        read(&place.join("packages.json")).ok_or_else(not_whole)?;
    let About { deno, pyodide, python } = about;
    let manifest = Manifest { deno, pyodide, python, packages, server: embedded::key(SERVER) };
    let text = serde_json::to_vec(&manifest).expect("a manifest has string keys");
    let written = place.join(format!("{MANIFEST}.partial"));
    fs::write(&written, text)
        .and_then(|()| fs::rename(&written, place.join(MANIFEST)))
        .map_err(|error| InstallError::Write(place.to_owned(), error))
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}
