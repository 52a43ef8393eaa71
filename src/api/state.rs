//! What handlers work with.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::access::Access;
use crate::config::LimitSettings;
use crate::runs::Runs;
use crate::sessions::Sessions;
use crate::telemetry::metrics::Metrics;

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
    /// Room for JSON bodies that are read at once, in pieces of [`BODY_PIECE_BYTES`].
    pub bodies: Arc<Semaphore>,
    /// Lists of files that are made at once: each may have tens of thousands of entries.
    pub listings: Arc<Semaphore>,
    /// A place for each stream that may be read at once.
    pub readers: Arc<Semaphore>,
    /// What is counted and timed.
    pub metrics: Metrics,
    /// Names besides localhost and IP addresses that the Host header may hold.
    pub allowed_hosts: Arc<[String]>,
}

/// What one place for bodies stands for.
const BODY_PIECE_BYTES: u64 = 64 * 1024;

impl ApiState {
    /// How many places so many bytes of bodies are.
    #[must_use]
    pub fn body_places(bytes: u64) -> usize {
        usize::try_from(bytes.div_ceil(BODY_PIECE_BYTES))
            .unwrap_or(usize::MAX)
            .min(Semaphore::MAX_PERMITS)
    }
}
