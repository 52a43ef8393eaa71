//! Who the service is on the host: never root once it serves.

use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::cgroup::Cgroups;
use super::range::UserRange;
use super::sys;
use crate::config::{Settings, User};

/// Why root could not be given up.
#[derive(Debug, thiserror::Error)]
pub enum UserError {
    /// The folder cannot be made.
    #[error("cannot make the data folder {}", folder.display())]
    Make {
        /// The data folder.
        folder: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The folder cannot be handed over.
    #[error("cannot hand the folder {} to user {uid}", folder.display())]
    HandOver {
        /// The data folder.
        folder: PathBuf,
        /// The user.
        uid: u32,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The kernel refused.
    #[error("cannot become user {0}")]
    Become(u32, #[source] io::Error),
    /// The folder cannot be reached afterwards.
    #[error(
        "user {uid}, which the service becomes, cannot reach the data folder {}: name one that it can \
         reach with --data-dir, such as /var/lib/interpreterd/data", folder.display()
    )]
    Unreachable {
        /// The data folder.
        folder: PathBuf,
        /// The user.
        uid: u32,
    },
}

/// What the service could take before it gave up root.
#[derive(Debug, Default)]
pub struct Taken {
    pub(super) cgroups: Cgroups,
    pub(super) users: Option<UserRange>,
}

/// Gives up root where the process has it, after handing over the data folder, a place for cgroups
/// and a range of users, and gives what it could take. In both cases other processes of the same
/// user may no longer look into this one.
///
/// # Errors
/// [`UserError`] when the service could not work as that user.
pub fn give_up_root(settings: &Settings) -> Result<Taken, UserError> {
    let (user, data_dir) = (settings.server.user, &settings.server.data_dir);
    let wanted = settings.local.local_cgroups;
    let cgroups = if wanted { Cgroups::prepare(user) } else { Cgroups::default() };
    // what callers run and upload is nobody else's to read
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(data_dir);
    made.map_err(|source| UserError::Make { folder: data_dir.clone(), source })?;
    let mut users = None;
    if rustix::process::geteuid().is_root() {
        let User { uid, .. } = user;
        users = take_users(user, settings.local.local_first_user);
        hand_over(user, data_dir).map_err(|source| UserError::HandOver {
            folder: data_dir.to_owned(),
            uid,
            source,
        })?;
        sys::become_user(user.uid, user.gid).map_err(|error| UserError::Become(user.uid, error))?;
        let absolute = std::path::absolute(data_dir).unwrap_or_else(|_| data_dir.to_owned());
        if std::fs::read_dir(&absolute).is_err() {
            return Err(UserError::Unreachable { folder: absolute, uid });
        }
    }
    close_to_others(data_dir);
    let closed = rustix::process::DumpableBehavior::NotDumpable;
    rustix::process::set_dumpable_behavior(closed)
        .map_err(|errno| UserError::Become(user.uid, errno.into()))?;
    Ok(Taken { cgroups, users })
}

/// A folder of an earlier version may be open to everybody on the host.
fn close_to_others(folder: &Path) {
    let Ok(metadata) = std::fs::metadata(folder) else { return };
    let mode = metadata.mode() & 0o7777;
    if metadata.uid() == rustix::process::geteuid().as_raw() && mode & 0o007 != 0 {
        let closed = std::fs::Permissions::from_mode(mode & !0o007);
        if let Err(error) = std::fs::set_permissions(folder, closed) {
            tracing::warn!(%error, folder = %folder.display(), "others can read the data folder");
        }
    }
}

fn take_users(user: User, first: u32) -> Option<UserRange> {
    if first == 0 {
        return None;
    }
    match UserRange::take(user, first) {
        Ok(users) => Some(users),
        Err(error) => {
            tracing::warn!(%error, "no users of their own for sessions");
            None
        }
    }
}

/// Makes the folder the user's, if it is new or empty. One that has something in it must be the
/// user's already: root changes no owner below a folder that others can change.
fn hand_over(user: User, folder: &Path) -> io::Result<()> {
    let opened = std::fs::File::open(folder)?;
    if opened.metadata()?.uid() == user.uid {
        return Ok(());
    }
    if std::fs::read_dir(folder)?.next().is_some() {
        return Err(io::Error::new(
            io::ErrorKind::DirectoryNotEmpty,
            "it belongs to somebody else and is not empty",
        ));
    }
    Ok(rustix::fs::fchown(
        &opened,
        Some(rustix::process::Uid::from_raw(user.uid)),
        Some(rustix::process::Gid::from_raw(user.gid)),
    )?)
}
