//! Plays a recorded conversation; for tests and the demo.

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Conversation, LanguageModel, LlmError, Message, ToolCall, Turn};
use crate::config::ModelSettings;
use crate::domain::run::Usage;

/// What the model is called when no name is set.
const NAME: &str = "replay";

/// A recording, as its JSON file holds it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Recording {
    turns: Vec<RecordedTurn>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordedTurn {
    /// What must stand in the results that came before, so that the recording tells no lies.
    #[serde(default)]
    after: Vec<String>,
    #[serde(default)]
    text: String,
    /// Code of the calls that the turn makes.
    #[serde(default)]
    code: Vec<String>,
    #[serde(default)]
    usage: Usage,
}

/// Plays one recording to everybody who asks.
pub(super) struct Replay {
    name: String,
    recording: Recording,
}

impl Replay {
    pub(super) fn open(settings: &ModelSettings) -> Result<Self, LlmError> {
        let path = settings.model_replay_file.clone().unwrap_or_default();
        let unusable = |error| LlmError::Recording(path.clone(), error);
        let text = std::fs::read_to_string(&path).map_err(unusable)?;
        let recording = serde_json::from_str(&text).map_err(|error| unusable(error.into()))?;
        let name = settings.model.clone().unwrap_or_else(|| NAME.to_owned());
        Ok(Self { name, recording })
    }
}

#[async_trait]
impl LanguageModel for Replay {
    fn name(&self) -> &str {
        &self.name
    }

    fn vision(&self) -> bool {
        false
    }

    async fn turn(&self, conversation: &Conversation) -> Result<Turn, LlmError> {
        let messages = &conversation.messages;
        let number =
            messages.iter().filter(|message| matches!(message, Message::Assistant(_))).count();
        let recorded =
            self.recording.turns.get(number).ok_or(LlmError::OffScript("it has no more turns"))?;
        let heard = last_results(messages);
        if !recorded.after.iter().all(|expected| heard.contains(expected.as_str())) {
            return Err(LlmError::OffScript("a result is not what was recorded"));
        }
        let call = |(index, code): (usize, &String)| ToolCall {
            id: format!("call_{number}_{index}"),
            name: conversation.tool.name.to_owned(),
            arguments: Ok(Map::from_iter([("code".to_owned(), Value::from(code.as_str()))])),
        };
        Ok(Turn {
            text: recorded.text.clone(),
            calls: recorded.code.iter().enumerate().map(call).collect(),
            raw: json!({"role": "assistant", "content": recorded.text}),
            cut: false,
            usage: recorded.usage,
        })
    }
}

fn last_results(messages: &[Message]) -> String {
    match messages.last() {
        Some(Message::Results(results)) => {
            results.iter().map(|result| result.text.as_str()).collect()
        }
        _ => String::new(),
    }
}
