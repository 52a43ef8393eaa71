//! Installs the guest Python: a venv with the locked packages.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::guest::{INSIDE, LOCK, MANIFEST, Manifest, folder_name};
use crate::config::GuestSettings;
use crate::sandbox::host::python::{self, NoPython, Python, command};

/// Why the guest Python was not installed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// No Python that could be used.
    #[error(transparent)]
    NoPython(#[from] NoPython),
    /// A program that is needed could not be run.
    #[error("cannot run {}", .0.display())]
    Run(PathBuf, #[source] io::Error),
    /// A step failed; its own words stand above.
    #[error("{0} failed, see above")]
    Step(&'static str),
    /// The folder cannot be written.
    #[error("cannot write {}", .0.display())]
    Write(PathBuf, #[source] io::Error),
}

/// Installs the guest Python below the settings' folder and gives its place. Does nothing when it
/// is there already; what a broken installation left behind is made anew.
///
/// # Errors
/// [`InstallError`] says which step failed.
pub fn install(settings: &GuestSettings) -> Result<PathBuf, InstallError> {
    let python = python::choose(settings.guest_python.as_deref())?;
    let folder = settings.folder();
    let target = folder.join(folder_name(python.minor));
    let write = |error| InstallError::Write(folder.clone(), error);
    // root's umask may be stricter than the sandbox's user can live with
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    fs::create_dir_all(&folder).map_err(write)?;
    let lock = fs::File::create(folder.join("install.lock")).map_err(write)?;
    lock.lock().map_err(write)?; // a second installation waits for the first
    if target.join(MANIFEST).is_file() {
        say(&format!("the guest Python is there: {}", target.display()));
        return Ok(target);
    }
    let partial = folder.join(format!("{}.partial", folder_name(python.minor)));
    if partial.exists() {
        fs::remove_dir_all(&partial).map_err(write)?;
    }
    say(&format!("guest Python: CPython {} from {}", python.version, python.executable.display()));
    build(&python, &partial)?;
    let manifest = Manifest { python: python.version, base_prefix: python.base_prefix };
    let manifest = serde_json::to_vec(&manifest).expect("a manifest has string keys");
    fs::write(partial.join(MANIFEST), manifest).map_err(write)?;
    if target.exists() {
        fs::remove_dir_all(&target).map_err(write)?;
    }
    fs::rename(&partial, &target).map_err(write)?;
    say(&format!("the guest Python is ready: {}", target.display()));
    Ok(target)
}

fn say(line: &str) {
    println!("{line}");
}

/// venv, locked packages as wheels only, then scripts that work inside a room.
fn build(python: &Python, venv: &Path) -> Result<(), InstallError> {
    let write = |error| InstallError::Write(venv.to_owned(), error);
    say("1/3 making the venv");
    run("the venv", command(&python.executable).args(["-m", "venv"]).arg(venv))?;
    say("2/3 installing the packages (about 130 MB to download the first time)");
    let lock = venv.join("requirements.lock");
    fs::write(&lock, LOCK).map_err(write)?;
    let pip = ["-m", "pip", "install", "--no-deps", "--require-hashes", "--only-binary=:all:"];
    let quiet = ["--disable-pip-version-check", "--no-input", "--progress-bar=off", "-r"];
    let interpreter = venv.join("bin/python");
    run("pip install", command(&interpreter).args(pip).args(quiet).arg(&lock))?;
    say("3/3 trying the packages");
    let imports =
        "import IPython, matplotlib, numpy, openpyxl, pandas, PIL, scipy, seaborn, sklearn, sympy";
    run("importing the packages", command(&interpreter).args(["-I", "-c", imports]))?;
    point_scripts_inside(&venv.join("bin")).map_err(write)
}

/// Scripts name their interpreter by its path, and a room sees the venv elsewhere.
fn point_scripts_inside(bin: &Path) -> io::Result<()> {
    for entry in fs::read_dir(bin)? {
        let path = entry?.path();
        if path.is_symlink() {
            continue;
        }
        let content = fs::read(&path)?;
        let Some(end) = content.iter().position(|byte| *byte == b'\n') else { continue };
        if content.starts_with(b"#!")
            && content[..end].windows(10).any(|w| w == b"bin/python".as_slice())
        {
            let script =
                [format!("#!{INSIDE}/bin/python").into_bytes(), content[end..].to_vec()].concat();
            fs::write(&path, script)?;
        }
    }
    Ok(())
}

fn run(step: &'static str, command: &mut Command) -> Result<(), InstallError> {
    let program = PathBuf::from(command.get_program());
    let status = command.status().map_err(|error| InstallError::Run(program, error))?;
    if status.success() { Ok(()) } else { Err(InstallError::Step(step)) }
}
