//! Fills a store with runs that have ended.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use interpreterd::domain::id::{RunId, SessionId, Tenant};
use interpreterd::domain::session::{Session, SessionState};
use interpreterd::store::{Finish, Store};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use tokio::task::JoinSet;

use crate::Failure;
use crate::rows::{KEYED, Story, session, story};

/// Runs of one session.
const IN_A_SESSION: u64 = 20;
/// One run every two seconds: a million is the work of three weeks, which are kept.
const BETWEEN: Duration = Duration::from_secs(2);
/// What the store is to remember when it is full.
const MOST: u64 = 1_000_000;
/// Sessions that run at once, so that their writes are committed together.
const AT_ONCE: usize = 128;

/// What a store has been filled with; it is kept beside the data, for the next step.
#[derive(Debug, Serialize, Deserialize)]
pub struct Filled {
    /// When the first run was asked for.
    #[serde(with = "time::serde::rfc3339")]
    began: OffsetDateTime,
    /// How many runs there are, measured ones among them.
    pub runs: u64,
    /// How long the last step took, in seconds.
    pub seconds: f64,
    /// Every fiftieth run, in the order in which they were made.
    pub known: Vec<Known>,
}

/// A run whose ids are known.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Known {
    /// Its number, from which its key follows.
    pub number: u64,
    /// Its id.
    pub run_id: RunId,
    /// The session that it ran in.
    pub session_id: SessionId,
    /// When it was asked for.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
}

impl Filled {
    /// What is written in the data folder; nothing where nothing is.
    pub fn read(data_dir: &Path) -> Result<Self, Failure> {
        match std::fs::read(place(data_dir)) {
            Ok(text) => Ok(serde_json::from_slice(&text)?),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::empty()),
            Err(error) => Err(error.into()),
        }
    }

    fn empty() -> Self {
        let began = OffsetDateTime::now_utc() - BETWEEN * MOST as u32;
        Self { began, runs: 0, seconds: 0.0, known: Vec::new() }
    }

    /// Writes it down.
    pub fn write(&self, data_dir: &Path) -> Result<(), Failure> {
        Ok(std::fs::write(place(data_dir), serde_json::to_vec(self)?)?)
    }

    /// Adds runs until there are that many.
    pub async fn fill(&mut self, store: &Arc<dyn Store>, runs: u64) -> Result<(), Failure> {
        let started = Instant::now();
        let next = Arc::new(AtomicU64::new(self.runs));
        let mut sessions = JoinSet::new();
        for _ in 0..AT_ONCE {
            sessions.spawn(sessions_until(Arc::clone(store), self.began, Arc::clone(&next), runs));
        }
        while let Some(known) = sessions.join_next().await {
            self.known.extend(known??);
        }
        self.known.sort_unstable_by_key(|known| known.run_id.uuid());
        self.runs = self.runs.max(runs);
        self.seconds = started.elapsed().as_secs_f64();
        Ok(())
    }
}

/// Ends a run as its story has it.
pub async fn finish(store: &Arc<dyn Store>, story: &Story) -> Result<(), Failure> {
    let finish = Finish {
        run: &story.ended,
        files: &story.files,
        events: None,
        conversation: story.conversation.clone(),
        epoch: store.epoch(),
        release_key: false,
    };
    if store.finish_run(&Tenant::single(), &finish).await? {
        Ok(())
    } else {
        Err("a run that was begun could not be ended".into())
    }
}

fn place(data_dir: &Path) -> PathBuf {
    data_dir.join("filled.json")
}

/// One session after the other, until all runs there are to be have been taken.
async fn sessions_until(
    store: Arc<dyn Store>,
    began: OffsetDateTime,
    next: Arc<AtomicU64>,
    runs: u64,
) -> Result<Vec<Known>, Failure> {
    let mut found = Vec::new();
    loop {
        let first = next.fetch_add(IN_A_SESSION, Ordering::Relaxed);
        if first >= runs {
            return Ok(found);
        }
        let id = SessionId::new();
        let ended = session(id);
        let ready = Session { state: SessionState::Ready, ended_at: None, ..ended.clone() };
        store.insert_session(&Tenant::single(), &ready, None).await?;
        for number in first..runs.min(first + IN_A_SESSION) {
            let at = began + BETWEEN * number as u32;
            let story = story(number, id, Some(at));
            store.begin_run(&Tenant::single(), &story.begun, story.claim.as_ref()).await?;
            finish(&store, &story).await?;
            if number.is_multiple_of(KEYED) {
                let (run_id, session_id) = (story.begun.id, id);
                found.push(Known { number, run_id, session_id, created_at: at });
            }
        }
        store.update_session(&Tenant::single(), &ended).await?;
    }
}
