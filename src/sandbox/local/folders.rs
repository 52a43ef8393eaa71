//! The place for the folders of sessions, and the zygotes' own beside them.

use std::fs;
use std::io;
use std::path::Path;

use super::guest;
use crate::sandbox::host::folders;

/// The zygote's own place beside the folders of sessions: its code, its home.
pub(super) const ZYGOTE: &str = "zygote";

/// Makes a place for the folders of sessions without what an earlier start of the service left, and
/// writes the zygotes' code. Never while one runs: zygotes and sessions read it, and Landlock knows
/// a folder by its inode.
pub(super) fn prepare(rooms: &Path) -> io::Result<()> {
    folders::make_empty(rooms)?;
    fs::create_dir_all(rooms.join(ZYGOTE).join("home"))?;
    guest::write_code(&rooms.join(ZYGOTE))
}
