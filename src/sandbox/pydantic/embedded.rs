//! The programs of ours in other languages, as they stand in the repository.

use std::fs;
use std::io;
use std::path::Path;

use sha2::{Digest, Sha256};

macro_rules! files {
    ($folder:literal: $($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!($folder, "/", $name)))),*]
    };
}

/// Programs by their names.
pub(super) type Files = &'static [(&'static str, &'static str)];

/// The server that Deno runs.
pub(super) const SERVER: Files = files!("server":
    "boot.mjs",
    "bounds.mjs",
    "cell.mjs",
    "files.mjs",
    "guest.mjs",
    "guest/alarm.py",
    "guest/boot.py",
    "guest/display.py",
    "guest/errors.py",
    "guest/figures.py",
    "guest/finishing.py",
    "guest/kernel.py",
    "guest/packages.py",
    "guest/place.py",
    "guest/preload.py",
    "guest/streams.py",
    "guest/taming.py",
    "interpreter.mjs",
    "options.mjs",
    "outcome.mjs",
    "protocol.mjs",
    "schemas.mjs",
    "server.mjs",
    "snapshot.mjs",
    "stream.mjs",
    "text.mjs",
    "tools.mjs",
    "worker.mjs",
);

/// What installs Deno, Pyodide and the package store.
pub(super) const INSTALL: Files = files!("install":
    "cdn.py",
    "deno.txt",
    "install.py",
    "packages.py",
    "pyodide.sha256",
    "requirements.py",
    "runtime.py",
    "steps.py",
    "store.py",
    "trial.py",
    "wheels.txt",
);

/// What makes a server of somebody else's keep state, once it was brought there: in this order.
pub(super) const MODULES: Files = &[
    ("place", include_str!("upstream/place.py")),
    ("display", include_str!("../guest/display.py")),
    ("figures", include_str!("../guest/figures.py")),
    ("errors", include_str!("../guest/errors.py")),
    ("streams", include_str!("upstream/streams.py")),
    ("guard", include_str!("upstream/guard.py")),
    ("files", include_str!("upstream/files.py")),
    ("kernel", include_str!("upstream/kernel.py")),
];
/// Brings them there.
pub(super) const BRING: &str = include_str!("upstream/bring.py");
/// Asks them.
pub(super) const ASK: &str = include_str!("upstream/ask.py");

/// Writes files below a folder that is there.
pub(super) fn write(files: Files, folder: &Path) -> io::Result<()> {
    for (name, content) in files {
        let path = folder.join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(path, content)?;
    }
    Ok(())
}

/// What tells one version of files from another.
pub(super) fn key(files: Files) -> String {
    let mut digest = Sha256::new();
    for (name, content) in files {
        digest.update((name.len() as u64).to_le_bytes());
        digest.update(name);
        digest.update((content.len() as u64).to_le_bytes());
        digest.update(content);
    }
    digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
