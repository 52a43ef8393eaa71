//! What a server tells while a cell runs: output, in order and within bounds.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rmcp::model::{
    ClientConfig, Implementation, NotificationMetaObject, ProgressNotificationParam, ProgressToken,
    ProtocolVersion,
};
use rmcp::service::NotificationContext;
use rmcp::{ClientHandler, RoleClient};

use crate::domain::build::VERSION;
use crate::domain::event::OutputSink;
use crate::sandbox::streams::{Stream, Streams};
use crate::sandbox::told::Heard;

/// Pieces that have come before their turn, or before it is known whose they are.
const MAX_WAITING: usize = 1024;
const MAX_WAITING_BYTES: usize = 8 << 20;

/// The client's side of MCP that listens.
#[derive(Clone, Default)]
pub(super) struct Listener(Arc<Mutex<Option<Hearing>>>);

/// One cell's output. Each notification comes in a task of its own, so that their order is not that
/// of the server, and some come after the answer.
struct Hearing {
    sink: OutputSink,
    heard: Heard,
    /// The same, for a server that does not live to answer.
    kept: Streams,
    /// None until the request has left.
    token: Option<ProgressToken>,
    early: Vec<(ProgressToken, u64, Piece)>,
    next: u64,
    waiting: BTreeMap<u64, Piece>,
    waiting_bytes: usize,
}

type Piece = (Stream, Vec<u8>);

impl Listener {
    /// Listens for one cell, until what was heard is taken.
    /// `cap`: bytes of each stream that are kept.
    pub(super) fn listen(&self, sink: &OutputSink, cap: usize) {
        *self.held() = Some(Hearing {
            sink: sink.clone(),
            heard: Heard::nothing(),
            kept: Streams::new(cap),
            token: None,
            early: Vec::new(),
            next: 1,
            waiting: BTreeMap::new(),
            waiting_bytes: 0,
        });
    }

    /// The request has left: what bears this token belongs to it, and nothing else does.
    pub(super) fn expect(&self, token: ProgressToken) {
        if let Some(hearing) = self.held().as_mut() {
            hearing.waiting_bytes = 0;
            for (whose, number, piece) in std::mem::take(&mut hearing.early) {
                if whose == token {
                    hearing.add(number, piece);
                }
            }
            hearing.token = Some(token);
        }
    }

    /// Ends the listening: what comes now comes too late.
    pub(super) fn take(&self) -> (Heard, Streams) {
        let hearing = self.held().take();
        let nothing = || (Heard::nothing(), Streams::new(0));
        hearing.map_or_else(nothing, |hearing| (hearing.heard, hearing.kept))
    }

    fn held(&self) -> std::sync::MutexGuard<'_, Option<Hearing>> {
        self.0.lock().expect("no panic while the hearing is held")
    }
}

impl Hearing {
    fn hear(&mut self, told: ProgressNotificationParam) {
        let Some((number, piece)) = piece(&told) else { return };
        match &self.token {
            Some(token) if *token == told.progress_token => self.add(number, piece),
            None if self.early.len() < MAX_WAITING && self.has_room_for(&piece) => {
                self.waiting_bytes += piece.1.len();
                self.early.push((told.progress_token, number, piece));
            }
            Some(_) | None => {} // of another cell, or too much
        }
    }

    fn has_room_for(&self, piece: &Piece) -> bool {
        self.waiting_bytes + piece.1.len() <= MAX_WAITING_BYTES
    }

    fn add(&mut self, number: u64, piece: Piece) {
        let fits = self.waiting.len() < MAX_WAITING && self.has_room_for(&piece);
        if number < self.next || !fits {
            return; // the answer has it all once more
        }
        self.waiting_bytes += piece.1.len();
        if let Some((_, twice)) = self.waiting.insert(number, piece) {
            self.waiting_bytes -= twice.len();
        }
        while let Some((stream, bytes)) = self.waiting.remove(&self.next) {
            self.next += 1;
            self.waiting_bytes -= bytes.len();
            self.kept.push(stream, &bytes, &OutputSink::discard());
            self.heard.tell(stream, &bytes, &self.sink);
        }
    }
}

/// A piece of output and its number.
fn piece(told: &ProgressNotificationParam) -> Option<(u64, Piece)> {
    let meta = &told.meta.as_ref()?.0;
    let stream = match meta.get("stream")?.as_str()? {
        "stdout" => Stream::Stdout,
        "stderr" => Stream::Stderr,
        _ => return None,
    };
    let bytes = STANDARD.decode(meta.get("data")?.as_str()?).ok()?;
    let is_number = told.progress.fract() == 0.0 && (1.0..1e15).contains(&told.progress);
    is_number.then_some((told.progress as u64, (stream, bytes)))
}

impl ClientHandler for Listener {
    async fn on_progress(
        &self,
        mut told: ProgressNotificationParam,
        context: NotificationContext<RoleClient>,
    ) {
        // rmcp 3.11 takes it out of what was told, and leaves it here
        let meta = context.extensions.get::<NotificationMetaObject>().cloned();
        told.meta = told.meta.or(meta).or(Some(context.meta));
        if let Some(hearing) = self.held().as_mut() {
            hearing.hear(told);
        }
    }

    fn get_info(&self) -> ClientConfig {
        let mut info = ClientConfig::default();
        // later ones have no handshake, which servers on pipes wait for
        info.protocol_version = ProtocolVersion::V_2025_06_18;
        info.client_info = Implementation::new("interpreterd", VERSION);
        info
    }
}

#[cfg(test)]
mod tests {
    use rmcp::model::NumberOrString;
    use serde_json::json;

    use super::*;
    use crate::domain::event::EventLog;

    fn told(token: i64, number: f64, text: &str) -> ProgressNotificationParam {
        let token = ProgressToken(NumberOrString::Number(token));
        let mut told = ProgressNotificationParam::new(token, number);
        let meta = json!({"stream": "stdout", "data": STANDARD.encode(text)});
        told.meta = Some(NotificationMetaObject(serde_json::from_value(meta).expect("an object")));
        told
    }

    #[test]
    fn output_is_told_in_the_servers_order_and_no_other_cells() {
        let listener = Listener::default();
        let log = Arc::new(EventLog::default());
        listener.listen(&OutputSink::into_log(Arc::clone(&log)), 1000);
        let hear = |told| listener.held().as_mut().expect("it listens").hear(told);
        hear(told(7, 2.0, "b"));
        hear(told(6, 1.0, "of another cell"));
        listener.expect(ProgressToken(NumberOrString::Number(7)));
        for piece in [told(7, 4.0, "d"), told(8, 1.0, "?"), told(7, 1.0, "a"), told(7, 1.5, "?")] {
            hear(piece);
        }
        hear(told(7, 1.0, "once more"));
        hear(told(7, 3.0, "c"));
        let texts: String = log.kept().iter().map(|sent| sent.data.clone()).collect();
        let order: Vec<_> =
            ["a", "b", "c", "d"].map(|text| texts.find(&format!("\"{text}\""))).into();
        assert!(order.is_sorted() && order.iter().all(Option::is_some), "{texts}");
        assert!(!texts.contains('?') && !texts.contains("once"), "{texts}");
        let (heard, kept) = listener.take();
        assert_eq!((heard.bytes, kept.into_stdout()), ([4, 0], "abcd".to_owned()));
    }

    #[test]
    fn what_comes_before_its_turn_is_held_within_bounds() {
        let listener = Listener::default();
        let log = Arc::new(EventLog::default());
        listener.listen(&OutputSink::into_log(log), 1000);
        listener.expect(ProgressToken(NumberOrString::Number(1)));
        let megabyte = "x".repeat(1 << 20);
        for number in 2..100_u32 {
            listener.held().as_mut().expect("it listens").hear(told(
                1,
                f64::from(number),
                &megabyte,
            ));
        }
        let held = listener.held().as_ref().map(|hearing| hearing.waiting_bytes);
        assert!(held.is_some_and(|held| held <= MAX_WAITING_BYTES));
    }
}
