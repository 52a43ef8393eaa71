//! How many sessions there are, for those who operate the service.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use super::Sessions;
use crate::domain::session::SessionState;
use crate::telemetry::Now;

/// The states of sessions that count, as labels.
const STATES: [&str; 4] = ["starting", "ready", "busy", "ending"];

impl Sessions {
    /// How sessions and pools stand; what is not theirs is left empty.
    #[must_use]
    pub fn now(&self) -> Now {
        let names = self.providers.iter().map(|entry| entry.name.clone());
        let mut sessions: BTreeMap<(String, &'static str), usize> =
            names.flat_map(|name| STATES.map(|state| ((name.clone(), state), 0))).collect();
        let slots: Vec<_> = self.live().values().cloned().collect();
        for slot in &slots {
            let session = slot.snapshot();
            *sessions.entry((session.provider, word(session.state))).or_default() += 1;
        }
        let pool = |entry: &super::Entry| {
            let sets = entry.provider.pool();
            let (ready, size) =
                sets.iter().fold((0, 0), |(ready, size), set| (ready + set.ready, size + set.size));
            (!sets.is_empty()).then(|| (entry.name.clone(), ready, size))
        };
        Now {
            sessions: sessions
                .into_iter()
                .map(|((provider, state), count)| (provider, state, count))
                .collect(),
            sessions_max: self.limits.max_sessions,
            cells_waiting: slots
                .iter()
                .map(|slot| u64::from(slot.waiting.load(Ordering::SeqCst)))
                .sum(),
            pools: self.providers.iter().filter_map(pool).collect(),
            ..Now::default()
        }
    }
}

/// One whose end is not written yet counts too: it takes the place of another one.
const fn word(state: SessionState) -> &'static str {
    match state {
        SessionState::Starting => STATES[0],
        SessionState::Ready => STATES[1],
        SessionState::Busy => STATES[2],
        SessionState::Ended | SessionState::Failed => STATES[3],
    }
}
