//! What was said, within what a model can hold. Pure.

use crate::domain::weight::weigh;
use crate::llm::conversation::{Conversation, Message, Said, ToolResult};

/// Pictures of the newest results that stay in the conversation.
const MAX_IMAGES: usize = 8;
/// Base64 of them together.
const MAX_IMAGES_BYTES: usize = 15_000_000;
/// The largest conversation: each request copies it.
const MAX_BYTES: usize = 64 << 20;
/// Characters of an old output that stay when the model can hold no more.
const STUB: usize = 200;
/// Characters of the newest outputs that stay then.
const SHORTENED: usize = 4000;

/// The conversation of a task.
pub(super) struct History {
    conversation: Conversation,
    note: Option<Note>,
    shortened: bool,
    /// What has been said, roughly as it stands in memory.
    bytes: usize,
}

/// What of ours stands at the end of a conversation for one turn.
struct Note {
    text: String,
    /// It is a message of its own.
    own: bool,
}

impl History {
    pub(super) fn new(conversation: Conversation) -> Self {
        let mut history = Self { conversation, note: None, shortened: false, bytes: 0 };
        for message in std::mem::take(&mut history.conversation.messages) {
            history.count(&message);
            history.conversation.messages.push(message);
        }
        history
    }

    pub(super) fn conversation(&self) -> &Conversation {
        &self.conversation
    }

    pub(super) fn into_messages(self) -> Vec<Message> {
        self.conversation.messages
    }

    pub(super) fn add_answer(&mut self, said: Said) {
        let message = Message::Assistant(said);
        self.count(&message);
        self.conversation.messages.push(message);
    }

    /// Adds calls with their results; old pictures make room.
    pub(super) fn add_calls(&mut self, said: Said, results: Vec<ToolResult>) {
        for message in [Message::Assistant(said), Message::Results(results)] {
            self.count(&message);
            self.conversation.messages.push(message);
        }
        drop_images(&mut self.conversation.messages, MAX_IMAGES, MAX_IMAGES_BYTES);
    }

    /// True when it takes more memory than a conversation may.
    pub(super) fn is_too_large(&self) -> bool {
        self.bytes > MAX_BYTES
    }

    /// Pictures are not counted: old ones make room, within a bound of their own.
    fn count(&mut self, message: &Message) {
        self.bytes += match message {
            Message::User(text) => text.len(),
            Message::Assistant(said) => {
                let text = serde_json::to_vec(said).expect("messages have string keys");
                text.len() + weigh(&text).parsed_bytes
            }
            Message::Results(results) => results.iter().map(|result| result.text.len()).sum(),
        };
    }

    /// Tells the model something for one turn; it is no part of the history.
    pub(super) fn note(&mut self, note: Option<&str>, must_answer: bool) {
        self.conversation.must_answer = must_answer;
        let Some(note) = note else { return };
        let note = format!("\n\n{note}\n");
        let last = last_text(&mut self.conversation.messages);
        let own = last.is_none();
        match last {
            Some(text) => text.push_str(&note),
            None => self.conversation.messages.push(Message::User(note.clone())),
        }
        self.note = Some(Note { text: note, own });
    }

    /// Takes the note back.
    pub(super) fn forget_note(&mut self) {
        let Some(Note { text: note, own }) = self.note.take() else { return };
        if let Some(text) = last_text(&mut self.conversation.messages)
            && let Some(without) = text.strip_suffix(&note)
        {
            text.truncate(without.len());
        }
        if own {
            self.conversation.messages.pop();
        }
    }

    /// Puts stubs in place of what code put out, once. False the second time.
    pub(super) fn shorten(&mut self) -> bool {
        if std::mem::replace(&mut self.shortened, true) {
            return false;
        }
        shorten(&mut self.conversation.messages);
        true
    }
}

/// The text that a note can be put behind.
fn last_text(messages: &mut [Message]) -> Option<&mut String> {
    match messages.last_mut()? {
        Message::Results(results) => Some(&mut results.last_mut()?.text),
        Message::User(text) => Some(text),
        Message::Assistant(_) => None,
    }
}

/// Old outputs become stubs, the newest ones short; no picture stays.
fn shorten(messages: &mut [Message]) {
    drop_images(messages, 0, 0);
    let mut most = SHORTENED;
    for message in messages.iter_mut().rev() {
        let Message::Results(results) = message else { continue };
        for result in results {
            let count = result.text.chars().count();
            if count > most {
                result.text = ends(&result.text, count, most);
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
fn drop_images(messages: &mut [Message], most: usize, most_bytes: usize) {
    let (mut left, mut bytes_left) = (most, most_bytes);
    for message in messages.iter_mut().rev() {
        let Message::Results(results) = message else { continue };
        for result in results.iter_mut().rev() {
            let count = result.images.len();
            let bytes = result.images.iter().map(|image| image.base64.len()).sum();
            if count > left || bytes > bytes_left {
                result.images.clear();
                result.text.push_str(&format!("[images dropped to save room: {count}]\n"));
            }
            left = left.saturating_sub(count);
            bytes_left = bytes_left.saturating_sub(bytes);
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
        history.note(Some("note"), true);
        assert_eq!(texts(&history.conversation().messages), ["q\n\nnote\n"]);
        assert!(history.conversation().must_answer);
        history.forget_note();
        history.add_calls(said(), vec![result("r\n", 0)]);
        history.note(Some("note"), false);
        assert_eq!(texts(&history.conversation().messages), ["q", "r\n\n\nnote\n"]);
        history.forget_note();
        history.add_answer(said());
        history.note(Some("note"), false);
        assert_eq!(texts(&history.conversation().messages), ["q", "r\n", "\n\nnote\n"]);
        history.forget_note();
        history.forget_note();
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
    fn what_is_said_is_bounded_and_pictures_that_made_room_do_not_count() {
        let mut history = history(vec![Message::User("q".to_owned())]);
        let drawn = || {
            let base64 = "A".repeat(4_000_000);
            let image = Image { mime: "image/png".to_owned(), base64 };
            ToolResult { images: vec![image; 3], ..result("", 0) }
        };
        for _ in 0..10 {
            history.add_calls(said(), vec![drawn()]);
        }
        assert!(!history.is_too_large(), "120 MB were drawn, 15 MB stay");
        let long = Said { text: "x".repeat(MAX_BYTES / 2), ..said() };
        history.add_answer(long.clone());
        assert!(!history.is_too_large());
        history.add_answer(long);
        assert!(history.is_too_large());
    }

    #[test]
    fn outputs_are_shortened_once() {
        let long = "x".repeat(10_000);
        let mut history = history(vec![Message::User(long.clone())]);
        history.add_calls(said(), vec![result(&long, 1)]);
        history.add_calls(said(), vec![result(&long, 0)]);
        history.note(Some("note"), false);
        assert!(history.shorten());
        assert!(texts(&history.conversation().messages)[2].ends_with("note\n"));
        history.forget_note();
        assert!(!history.shorten());
        let shorter = history.into_messages();
        let lengths: Vec<usize> = texts(&shorter).iter().map(String::len).collect();
        assert_eq!(lengths[0], 10_000, "what people say stays");
        assert!(lengths[1] < 300 && lengths[2] < 4100, "{lengths:?}");
    }
}
