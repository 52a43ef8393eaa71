//! Language models: one neutral conversation, spoken over many wires.

pub mod connect;
mod error;
mod openai;
mod replay;

use async_trait::async_trait;
use serde_json::{Map, Value};

pub use error::LlmError;

use crate::domain::run::Usage;

/// A model that answers a conversation turn by turn.
#[async_trait]
pub trait LanguageModel: Send + Sync {
    /// The name that requests use.
    fn name(&self) -> &str;

    /// True when it reads images.
    fn vision(&self) -> bool;

    /// Asks for the next turn. What can be tried again safely has been.
    async fn turn(&self, conversation: &Conversation) -> Result<Turn, LlmError>;
}

/// All that the model is told.
#[derive(Debug, Clone, PartialEq)]
pub struct Conversation {
    /// Who it is and what holds.
    pub system: String,
    /// What was said, in order.
    pub messages: Vec<Message>,
    /// The tool that it has.
    pub tool: Tool,
    /// True when it must answer in text now.
    pub must_answer: bool,
}

/// One message.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    /// From the caller, or from us in the caller's place.
    User(String),
    /// The model's own, as its service sent it: it is replayed verbatim.
    Assistant(Value),
    /// What came of all the calls of the message before.
    Results(Vec<ToolResult>),
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

/// What came of one call.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolResult {
    /// The call's id.
    pub call_id: String,
    /// Plain text.
    pub text: String,
    /// Pictures.
    pub images: Vec<Image>,
}

/// A picture for a model that reads them.
#[derive(Debug, Clone, PartialEq)]
pub struct Image {
    /// Such as image/png.
    pub mime: String,
    /// The bytes.
    pub base64: String,
}

/// What the model said.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    /// Its text, empty when there is none.
    pub text: String,
    /// The calls that it makes, each of which must get one result.
    pub calls: Vec<ToolCall>,
    /// The message as its service sent it, with what a replay needs.
    pub raw: Value,
    /// True when it was cut off by a limit on tokens.
    pub cut: bool,
    /// What the service counted.
    pub usage: Usage,
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// The id that its result must bear.
    pub id: String,
    /// The tool's name as the model wrote it.
    pub name: String,
    /// The arguments, or what stood in their place.
    pub arguments: Result<Map<String, Value>, BadArguments>,
}

/// Arguments that are no JSON object.
#[derive(Debug, Clone, PartialEq)]
pub struct BadArguments {
    /// What the model wrote.
    pub raw: String,
    /// What the parser says.
    pub why: String,
}
