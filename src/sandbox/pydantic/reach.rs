//! How servers of somebody else's are reached: started for each sandbox, or called at their URL.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use secrecy::SecretString;
use tokio::sync::Semaphore;

use super::client::Client;
use super::error::PydanticError;
use super::link::Link;
use super::process::{Plan, cage, path_and_home};
use crate::config::PydanticServer;
use crate::domain::id::SessionId;
use crate::domain::limits::Limits;
use crate::sandbox::ProviderReport;

/// One entry's server.
pub(super) struct Reach {
    way: Way,
    /// A home for commands, where the service's user has none.
    home: PathBuf,
    pub(super) create_limit: Duration,
    pub(super) limits: Limits,
    /// What the last one that was made is like.
    pub(super) seen: Mutex<Option<ProviderReport>>,
}

enum Way {
    Command { words: Vec<String>, folder: Option<PathBuf>, env: BTreeMap<String, String> },
    Url { url: String, token: Option<SecretString>, free: Arc<Semaphore> },
}

impl Reach {
    /// None for the server of ours.
    pub(super) fn new(
        server: &PydanticServer,
        home: PathBuf,
        create_limit: Duration,
        limits: Limits,
    ) -> Option<Self> {
        let way = match server.clone() {
            PydanticServer::Ours => return None,
            PydanticServer::Command { words, folder, env } => Way::Command { words, folder, env },
            PydanticServer::Url { url, token } => {
                // all of its sessions share one interpreter
                Way::Url { url, token, free: Arc::new(Semaphore::new(1)) }
            }
        };
        Some(Self { way, home, create_limit, limits, seen: Mutex::default() })
    }

    /// A new connection, with a process of its own where that can be.
    pub(super) async fn link(&self, session: SessionId) -> Result<Link, PydanticError> {
        match &self.way {
            Way::Command { words, folder, env } => {
                std::fs::create_dir_all(&self.home).map_err(PydanticError::Folder)?;
                let env = [path_and_home(&self.home), env.clone()].into_iter().flatten().collect();
                let plan = Plan { cage: cage(words.clone(), folder.clone()), env };
                let (client, process) = Client::start(plan, self.create_limit).await?;
                Ok(Link::new(client, Some(process), None, session))
            }
            Way::Url { url, token, free } => {
                let permit =
                    Arc::clone(free).try_acquire_owned().map_err(|_| PydanticError::Taken)?;
                let client = Client::at_url(url, token.as_ref(), self.create_limit).await?;
                Ok(Link::new(client, None, Some(permit), session))
            }
        }
    }
}
