//! Which build of the program this is.

/// The version, as in Cargo.toml.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The first twelve digits of the commit that it was built from; None in a debug build, and where neither
/// `INTERPRETERD_COMMIT` nor git told it.
pub const COMMIT: Option<&str> = option_env!("BUILD_COMMIT");

/// Version and commit in one line.
#[must_use]
pub fn line() -> String {
    match COMMIT {
        Some(commit) => format!("{VERSION} ({commit})"),
        None => format!("{VERSION} (no commit known)"),
    }
}
