//! What was said, within what a model can hold. Pure.

use crate::llm::conversation::{Conversation, Message, Said, ToolResult};

/// Pictures of the newest results that stay in the conversation.
const MAX_IMAGES: usize = 8;
/// Characters of an old output that stay when the model can hold no more.
const STUB: usize = 200;
/// Characters of the newest outputs that stay then.
const SHORTENED: usize = 4000;

/// The conversation of a task.
pub(super) struct History {
    conversation: Conversation,
    shortened: bool,
}

impl History {
    pub(super) fn new(conversation: Conversation) -> Self {
        Self { conversation, shortened: false }
    }

    pub(super) fn into_messages(self) -> Vec<Message> {
        self.conversation.messages
    }

    pub(super) fn add_answer(&mut self, said: Said) {
        self.conversation.messages.push(Message::Assistant(said));
    }

    /// Adds calls with their results; old pictures make room.
    pub(super) fn add_calls(&mut self, said: Said, results: Vec<ToolResult>) {
        self.conversation.messages.push(Message::Assistant(said));
        self.conversation.messages.push(Message::Results(results));
        drop_images(&mut self.conversation.messages, MAX_IMAGES);
    }

    /// The conversation with a note of ours at its end, which is no part of the history.
    pub(super) fn with(&self, note: Option<String>, must_answer: bool) -> Conversation {
        let mut conversation = Conversation { must_answer, ..self.conversation.clone() };
        let Some(note) = note else { return conversation };
        match conversation.messages.last_mut() {
            Some(Message::Results(results)) if !results.is_empty() => {
                let last = results.last_mut().expect("there is one");
                last.text.push_str(&format!("\n{note}\n"));
            }
            Some(Message::User(text)) => text.push_str(&format!("\n\n{note}")),
            _ => conversation.messages.push(Message::User(note)),
        }
        conversation
    }

    /// The same with stubs for what code put out, once; the history stays so. None the second time.
    pub(super) fn shortened(&mut self, conversation: &Conversation) -> Option<Conversation> {
        if std::mem::replace(&mut self.shortened, true) {
            return None;
        }
        shorten(&mut self.conversation.messages);
        let mut shorter = conversation.clone();
        shorten(&mut shorter.messages);
        Some(shorter)
    }
}

/// Old outputs become stubs, the newest ones short; no picture stays.
fn shorten(messages: &mut [Message]) {
    drop_images(messages, 0);
    let mut most = SHORTENED;
    for message in messages.iter_mut().rev() {
        let Message::Results(results) = message else { continue };
        for result in results {
            let count = result.text.chars().count();
            if count > most {
                result.text = format!("{}\n", ends(&result.text, count, most));
            }
        }
        most = STUB;
    }
}

fn ends(text: &str, count: usize, most: usize) -> String {
    let head: String = text.chars().take(most / 2).collect();
    let tail: String = text.chars().skip(count - most / 2).collect();
    let cut = count - most / 2 * 2;
    format!("{head}\n[... {cut} characters dropped to save room ...]\n{tail}")
}

/// Only the newest pictures stay.
fn drop_images(messages: &mut [Message], most: usize) {
    let mut left = most;
    for message in messages.iter_mut().rev() {
        let Message::Results(results) = message else { continue };
        for result in results.iter_mut().rev() {
            let count = result.images.len();
            if count > left {
                result.images.clear();
                result.text.push_str(&format!("[images dropped to save room: {count}]\n"));
            }
            left = left.saturating_sub(count);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::llm::conversation::{Image, Tool};

    fn history(messages: Vec<Message>) -> History {
        let tool = Tool { name: "run_python", description: String::new(), parameters: json!({}) };
        History::new(Conversation { system: String::new(), messages, tool, must_answer: false })
    }

    fn result(text: &str, images: usize) -> ToolResult {
        let image = Image { mime: "image/png".to_owned(), base64: String::new() };
        ToolResult {
            call_id: "a".to_owned(),
            text: text.to_owned(),
            images: vec![image; images],
            is_error: false,
        }
    }

    fn said() -> Said {
        Said { text: String::new(), calls: Vec::new(), raw: None }
    }

    fn texts(messages: &[Message]) -> Vec<String> {
        let text = |message: &Message| match message {
            Message::User(text) => Some(text.clone()),
            Message::Assistant(_) => None,
            Message::Results(results) => Some(results[0].text.clone()),
        };
        messages.iter().filter_map(text).collect()
    }

    #[test]
    fn a_note_joins_the_last_message_and_is_no_part_of_the_history() {
        let mut history = history(vec![Message::User("q".to_owned())]);
        let noted = history.with(Some("note".to_owned()), true);
        assert_eq!(
            (texts(&noted.messages), noted.must_answer),
            (vec!["q\n\nnote".to_owned()], true)
        );
        history.add_calls(said(), vec![result("r\n", 0)]);
        let noted = history.with(Some("note".to_owned()), false);
        assert_eq!(texts(&noted.messages), ["q", "r\n\nnote\n"]);
        assert_eq!(texts(&history.into_messages()), ["q", "r\n"]);
    }

    #[test]
    fn only_the_newest_pictures_stay() {
        let mut history = history(vec![Message::User("q".to_owned())]);
        for _ in 0..3 {
            history.add_calls(said(), vec![result("", 4)]);
        }
        let messages = history.into_messages();
        assert_eq!(texts(&messages), ["q", "[images dropped to save room: 4]\n", "", ""]);
    }

    #[test]
    fn outputs_are_shortened_once() {
        let long = "x".repeat(10_000);
        let mut history = history(vec![Message::User(long.clone())]);
        history.add_calls(said(), vec![result(&long, 1)]);
        history.add_calls(said(), vec![result(&long, 0)]);
        let asked = history.with(None, false);
        let shorter = history.shortened(&asked).expect("the first time");
        let lengths: Vec<usize> = texts(&shorter.messages).iter().map(String::len).collect();
        assert_eq!(lengths[0], 10_000, "what people say stays");
        assert!(lengths[1] < 300 && lengths[2] < 4100, "{lengths:?}");
        assert_eq!(history.conversation.messages, shorter.messages);
        assert!(history.shortened(&asked).is_none());
    }
}
