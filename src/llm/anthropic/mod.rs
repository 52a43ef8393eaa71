//! Anthropic's Messages API, and whatever speaks it.

mod stream;
mod wire;

use serde_json::Value;

use super::conversation::Conversation;
use super::remote::{Access, Piece, Remote, Wire};
use super::{LlmError, Turn};
use crate::config::ModelEntry;
use wire::Dialect;

const PROTOCOL: &str = "anthropic";
/// The API demands a limit on what the model writes.
const MAX_TOKENS: u32 = 8192;
/// The version that the vendor's own clients speak; a header of the model's entry replaces it.
/// <https://platform.claude.com/docs/en/api/versioning>
const ACCESS: Access = Access {
    vendor_url: "https://api.anthropic.com",
    version: Some("/v1"),
    route: "/messages",
    key_header: Some("x-api-key"),
    headers: &[("anthropic-version", "2026-10-21")],
};

/// A model behind `POST {base URL}/v1/messages`.
pub(super) fn connect(entry: &ModelEntry) -> Result<Remote<Anthropic>, LlmError> {
    let dialect = Dialect {
        model: entry.model.clone(),
        vision: entry.vision,
        max_tokens: entry.max_tokens.unwrap_or(MAX_TOKENS),
        echo_reasoning: entry.echo_reasoning,
    };
    Remote::new(Anthropic(dialect), &ACCESS, entry)
}

pub(super) struct Anthropic(Dialect);

impl Wire for Anthropic {
    fn protocol(&self) -> &'static str {
        PROTOCOL
    }

    fn request(&self, conversation: &Conversation, stream: bool) -> Value {
        self.0.request(conversation, stream)
    }

    fn put(&self, body: &mut Value, event: &str) -> Result<Piece, LlmError> {
        stream::put(body, event)
    }

    fn turn(&self, body: &Value) -> Result<Turn, LlmError> {
        self.0.turn(body)
    }
}
