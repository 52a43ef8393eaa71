//! Chat completions at any base URL.

mod stream;
mod wire;

use serde_json::Value;

use super::conversation::Conversation;
use super::remote::{Access, Piece, Remote, Wire};
use super::{LlmError, Turn};
use crate::config::ModelEntry;
use wire::Dialect;

const PROTOCOL: &str = "openai";
const ACCESS: Access = Access {
    vendor_url: "https://api.openai.com/v1",
    version: None,
    route: "/chat/completions",
    key_header: None,
    headers: &[],
};

/// A model behind `POST {base URL}/chat/completions`.
pub(super) fn connect(entry: &ModelEntry) -> Result<Remote<OpenAi>, LlmError> {
    let dialect = Dialect {
        model: entry.model.clone(),
        vision: entry.vision,
        max_tokens: entry.max_tokens,
        echo_reasoning: entry.echo_reasoning,
    };
    Remote::new(OpenAi(dialect), &ACCESS, entry)
}

pub(super) struct OpenAi(Dialect);

impl Wire for OpenAi {
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
