//! Language models: one neutral conversation, spoken over many wires.

mod anthropic;
mod arguments;
pub mod connect;
pub mod conversation;
mod error;
mod observed;
mod openai;
mod remote;
mod replay;

use async_trait::async_trait;

pub use error::LlmError;

use crate::domain::event::OutputSink;
use crate::domain::run::Usage;
use conversation::{Conversation, Said};

/// A model that answers a conversation turn by turn.
#[async_trait]
pub trait LanguageModel: Send + Sync {
    /// The name that requests use.
    fn name(&self) -> &str;

    /// The wire that it is spoken to over.
    fn protocol(&self) -> &'static str;

    /// Where it is asked, for people: no key, no query.
    fn place(&self) -> String;

    /// True when it reads images.
    fn vision(&self) -> bool;

    /// Asks for the next turn. Its text goes to the sink as it comes, where somebody reads that.
    /// What can be tried again safely has been; nothing is, once text was told.
    async fn turn(&self, conversation: &Conversation, sink: &OutputSink) -> Result<Turn, LlmError>;
}

/// What the model said.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    /// Its message.
    pub said: Said,
    /// True when it was cut off by a limit on tokens.
    pub cut: bool,
    /// What the service counted.
    pub usage: Usage,
}
