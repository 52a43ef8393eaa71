//! What providers on this host share: folders of sessions, and the files in them.

pub(super) mod files;
pub(super) mod folders;
pub(super) mod listing;
pub mod python;
pub(super) mod seen;
