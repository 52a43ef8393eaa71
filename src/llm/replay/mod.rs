//! Plays recorded conversations; for tests and the demo.

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::conversation::{Conversation, Message, Said, ToolCall};
use super::{LanguageModel, LlmError, Turn};
use crate::config::ModelEntry;
use crate::domain::event::{Event, OutputSink};
use crate::domain::run::Usage;

/// What a JSON file of recordings holds: one for every question, or several, each for its own.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Recordings {
    One(Recording),
    Several { recordings: Vec<Recording> },
}

/// A recorded conversation.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Recording {
    /// What its question begins with; every question does when this is empty.
    #[serde(default)]
    question: String,
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

/// Plays the recordings to everybody who asks.
pub(super) struct Replay {
    name: String,
    recordings: Vec<Recording>,
}

impl Replay {
    pub(super) fn open(entry: &ModelEntry) -> Result<Self, LlmError> {
        let path = entry.replay_file.clone().unwrap_or_default();
        let unusable = |error| LlmError::Recording(path.clone(), error);
        let text = std::fs::read_to_string(&path).map_err(unusable)?;
        let recordings =
            match serde_json::from_str(&text).map_err(|error| unusable(error.into()))? {
                Recordings::One(recording) => vec![recording],
                Recordings::Several { recordings } => recordings,
            };
        Ok(Self { name: entry.name.clone(), recordings })
    }

    /// The turn that comes now.
    fn next(&self, messages: &[Message]) -> Result<(usize, &RecordedTurn), LlmError> {
        let question = messages.iter().find_map(|message| match message {
            Message::User(text) => Some(text.as_str()),
            Message::Assistant(_) | Message::Results(_) => None,
        });
        let question = question.unwrap_or_default();
        let plays = |recording: &&Recording| question.starts_with(&recording.question);
        let recording = self.recordings.iter().find(plays);
        let recording = recording.ok_or(LlmError::OffScript("it has no such question"))?;
        let said = |message: &&Message| matches!(message, Message::Assistant(_));
        let number = messages.iter().filter(said).count();
        let turn = recording.turns.get(number);
        Ok((number, turn.ok_or(LlmError::OffScript("it has no more turns"))?))
    }
}

#[async_trait]
impl LanguageModel for Replay {
    fn name(&self) -> &str {
        &self.name
    }

    fn protocol(&self) -> &'static str {
        "replay"
    }

    fn place(&self) -> String {
        "a recording".to_owned()
    }

    fn vision(&self) -> bool {
        false
    }

    async fn turn(&self, conversation: &Conversation, sink: &OutputSink) -> Result<Turn, LlmError> {
        let messages = &conversation.messages;
        let (number, recorded) = self.next(messages)?;
        let heard = last_results(messages);
        if !recorded.after.iter().all(|expected| heard.contains(expected.as_str())) {
            return Err(LlmError::OffScript("a result is not what was recorded"));
        }
        if !recorded.text.is_empty() {
            sink.send(Event::ModelDelta { text: recorded.text.clone() });
        }
        let call = |(index, code): (usize, &String)| ToolCall {
            id: format!("call_{number}_{index}"),
            name: conversation.tool.name.to_owned(),
            arguments: Ok(Map::from_iter([("code".to_owned(), Value::from(code.as_str()))])),
        };
        Ok(Turn {
            said: Said {
                text: recorded.text.clone(),
                calls: recorded.code.iter().enumerate().map(call).collect(),
                raw: None,
            },
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
