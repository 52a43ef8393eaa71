//! The neutral conversation: what was said, whoever speaks.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Calls of one message that are read; one with more is no message.
pub const MAX_CALLS: usize = 256;
/// Bytes of a call's id that are kept.
const MAX_ID: usize = 128;
/// Characters of a tool's name that services take.
const MAX_NAME: usize = 64;

/// All that the model is told.
#[derive(Debug, Clone, PartialEq)]
pub struct Conversation {
    /// Who it is and what holds.
    pub system: String,
    /// What was said, in order; each message of calls is followed by the results of them all.
    pub messages: Vec<Message>,
    /// The tool that it has.
    pub tool: Tool,
    /// True when it must answer in text now.
    pub must_answer: bool,
}

/// One message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// From the caller.
    User(String),
    /// The model's own.
    Assistant(Said),
    /// What came of all the calls of the message before, in their order.
    Results(Vec<ToolResult>),
}

/// What a model said, in neutral words and as its service sent it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Said {
    /// Its text, empty when there is none.
    pub text: String,
    /// The calls that it makes, each of which must get one result.
    pub calls: Vec<ToolCall>,
    /// The message itself; absent where it was repaired.
    pub raw: Option<Raw>,
}

/// A message as its service sent it. It is replayed verbatim to the model that wrote it; any other
/// one is told the neutral words.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Raw {
    /// The wire protocol.
    pub protocol: String,
    /// The model as its service knows it.
    pub model: String,
    /// The message.
    pub message: Value,
}

/// A tool as models are told of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// Its name.
    pub name: &'static str,
    /// What it does, for the model.
    pub description: String,
    /// JSON Schema of its arguments.
    pub parameters: Value,
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The id that its result must bear.
    pub id: String,
    /// The tool's name as the model wrote it.
    pub name: String,
    /// The arguments, or what stood in their place.
    pub arguments: Result<Map<String, Value>, BadArguments>,
}

/// Arguments that are no JSON object.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BadArguments {
    /// What the model wrote.
    pub raw: String,
    /// What the parser says.
    pub why: String,
}

/// What came of one call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolResult {
    /// The call's id.
    pub call_id: String,
    /// Plain text.
    pub text: String,
    /// Pictures.
    pub images: Vec<Image>,
    /// True when the call failed.
    pub is_error: bool,
}

/// A picture for a model that reads them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Image {
    /// Such as image/png.
    pub mime: String,
    /// The bytes.
    pub base64: String,
}

impl Said {
    /// The message as a service of this kind sent it, when this very model wrote it.
    #[must_use]
    pub fn raw_of(&self, protocol: &str, model: &str) -> Option<&Value> {
        let raw = self.raw.as_ref()?;
        (raw.protocol == protocol && raw.model == model).then_some(&raw.message)
    }
}

/// The ids of a message's calls: its own when it is replayed verbatim, else new ones that no other
/// message of the conversation has, of letters that every service takes.
pub(super) fn ids(said: &Said, number: usize, verbatim: bool) -> Vec<String> {
    let own = |(place, call): (usize, &ToolCall)| {
        if verbatim { call.id.clone() } else { format!("call_{number}_{place}") }
    };
    said.calls.iter().enumerate().map(own).collect()
}

/// A tool's name as every service takes it back, whatever the model wrote.
#[must_use]
pub fn tool_name(name: &str) -> String {
    let plain = |c: &char| c.is_ascii_alphanumeric() || *c == '_' || *c == '-';
    let plain: String = name.chars().filter(plain).take(MAX_NAME).collect();
    if plain.is_empty() { "unknown".to_owned() } else { plain }
}

/// The id that a call came with, or a new one where it has none or shares it.
pub(super) fn own_id(id: Option<&str>, before: &[ToolCall]) -> String {
    let id = id
        .filter(|id| (1..=MAX_ID).contains(&id.len()) && before.iter().all(|call| call.id != *id));
    id.map_or_else(|| format!("call_{:016x}", fastrand::u64(..)), str::to_owned)
}
