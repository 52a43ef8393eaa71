//! What handlers work with.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::access::Access;
use crate::config::LimitSettings;
use crate::runs::Runs;
use crate::sessions::Sessions;

/// What handlers work with.
#[derive(Clone)]
pub struct ApiState {
    /// All work.
    pub runs: Runs,
    /// Sessions and their files.
    pub sessions: Arc<Sessions>,
    /// Who may call.
    pub access: Arc<Access>,
    /// How much a request may ask for.
    pub limits: Arc<LimitSettings>,
    /// A place for each stream that may be read at once.
    pub readers: Arc<Semaphore>,
    /// Names besides localhost and IP addresses that the Host header may hold.
    pub allowed_hosts: Arc<[String]>,
}
