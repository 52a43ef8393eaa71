//! The neutral conversation in the words of the Messages API: pure.
//!
//! <https://docs.claude.com/en/api/messages>

use serde_json::{Map, Value, json};

use super::PROTOCOL;
use crate::domain::run::Usage;
use crate::llm::conversation::{
    BadArguments, Conversation, Image, MAX_CALLS, Message, Raw, Said, ToolCall, ToolResult,
};
use crate::llm::{LlmError, Turn, arguments, conversation};

/// Blocks that are sent back where no others are wanted.
const PLAIN: [&str; 2] = ["text", "tool_use"];

/// Why a message ends before its end.
const CUT: [&str; 2] = ["max_tokens", "model_context_window_exceeded"];

/// What differs from model to model.
pub(super) struct Dialect {
    pub(super) model: String,
    pub(super) vision: bool,
    pub(super) max_tokens: u32,
    pub(super) echo_reasoning: bool,
}

impl Dialect {
    /// The body of a request.
    pub(super) fn request(&self, conversation: &Conversation, stream: bool) -> Value {
        let tool = &conversation.tool;
        let mut body = json!({
            "model": self.model,
            "max_tokens": self.max_tokens,
            "system": conversation.system,
            "messages": self.messages(&conversation.messages),
            "tools": [{"name": tool.name, "description": tool.description, "input_schema": tool.parameters}],
        });
        if conversation.must_answer {
            body["tool_choice"] = json!({"type": "none"});
        }
        if stream {
            body["stream"] = json!(true);
        }
        body
    }

    /// Messages take turns: what follows results belongs into their message, behind them.
    fn messages(&self, messages: &[Message]) -> Vec<Value> {
        let mut turns: Vec<Value> = Vec::new();
        let mut ids = Vec::new();
        for (number, message) in messages.iter().enumerate() {
            let (role, mut blocks) = match message {
                Message::User(text) => ("user", vec![text_block(text)]),
                Message::Assistant(said) => {
                    let raw = said.raw_of(PROTOCOL, &self.model).and_then(Value::as_array);
                    ids = conversation::ids(said, number, raw.is_some());
                    ("assistant", raw.cloned().unwrap_or_else(|| rebuilt(said, &ids)))
                }
                Message::Results(results) => ("user", self.results(results, &ids)),
            };
            match turns.last_mut().filter(|last| last["role"] == role) {
                Some(last) => {
                    last["content"].as_array_mut().expect("blocks").append(&mut blocks);
                }
                None => turns.push(json!({"role": role, "content": blocks})),
            }
        }
        turns
    }

    fn results(&self, results: &[ToolResult], ids: &[String]) -> Vec<Value> {
        let block = |(result, id): (&ToolResult, &String)| {
            let mut content = vec![text_block(&result.text)];
            if self.vision {
                content.extend(result.images.iter().map(image));
            } else if !result.images.is_empty() {
                let note = format!("[images that are not shown: {}]", result.images.len());
                content.push(text_block(&note));
            }
            // beside a picture the service takes no error; the text tells it
            let is_error = result.is_error && content.iter().all(|block| block["type"] == "text");
            json!({"type": "tool_result", "tool_use_id": id, "is_error": is_error, "content": content})
        };
        results.iter().zip(ids).map(block).collect()
    }

    /// The turn in a successful answer.
    pub(super) fn turn(&self, body: &Value) -> Result<Turn, LlmError> {
        let Some(blocks) = body["content"].as_array() else {
            return Err(LlmError::BadResponse("there is no message in it"));
        };
        let text = blocks.iter().filter(|block| block["type"] == "text");
        let text = text.filter_map(|block| block["text"].as_str()).collect();
        let cut = body["stop_reason"].as_str().is_some_and(|reason| CUT.contains(&reason));
        let mut calls = Vec::new();
        let mut echo = Vec::new();
        for block in blocks.iter().filter_map(Value::as_object) {
            if let Some(block) = self.echo(block, &mut calls) {
                echo.push(block);
            }
            if calls.len() > MAX_CALLS {
                return Err(LlmError::BadResponse("it makes calls without end"));
            }
        }
        if let Some(last) = calls.last_mut().filter(|_| cut && is_call(blocks.last())) {
            last.arguments = cut_off(&body["content"][blocks.len() - 1]["input"]);
        }
        let raw = Raw {
            protocol: PROTOCOL.to_owned(),
            model: self.model.clone(),
            message: Value::Array(echo),
        };
        let count = |name: &str| body["usage"][name].as_u64().unwrap_or(0);
        Ok(Turn {
            said: Said { text, calls, raw: Some(raw) },
            cut,
            usage: Usage {
                input_tokens: count("input_tokens")
                    .saturating_add(count("cache_creation_input_tokens"))
                    .saturating_add(count("cache_read_input_tokens")),
                output_tokens: count("output_tokens"),
            },
        })
    }

    /// A block for the replay, verbatim but for what the service refuses: empty texts, an input that
    /// is no object, a call without an id of its own. A call is taken note of.
    fn echo(&self, block: &Map<String, Value>, calls: &mut Vec<ToolCall>) -> Option<Value> {
        let mut block = block.clone();
        block.remove("index");
        let kind = block.get("type").and_then(Value::as_str).unwrap_or_default();
        let blank = |text: Option<&Value>| {
            text.and_then(Value::as_str).is_none_or(|text| text.trim().is_empty())
        };
        match kind {
            "text" if blank(block.get("text")) => return None,
            "tool_use" => {
                let call = call(&block, calls);
                block.insert("id".to_owned(), json!(call.id));
                block.insert("name".to_owned(), json!(conversation::tool_name(&call.name)));
                block.insert("input".to_owned(), input(&call));
                calls.push(call);
            }
            kind if !self.echo_reasoning && !PLAIN.contains(&kind) => return None,
            _ => {}
        }
        Some(Value::Object(block))
    }
}

fn is_call(block: Option<&Value>) -> bool {
    block.is_some_and(|block| block["type"] == "tool_use")
}

/// The arguments of a call in which the message was cut off: an object that came whole may lack the
/// rest, a text that is an object does not.
fn cut_off(input: &Value) -> Result<Map<String, Value>, BadArguments> {
    match input {
        Value::String(_) => arguments::read(input),
        input => Err(BadArguments { raw: input.to_string(), why: "cut off".to_owned() }),
    }
}

fn text_block(text: &str) -> Value {
    // an empty text is refused
    json!({"type": "text", "text": if text.trim().is_empty() { "(nothing)" } else { text }})
}

fn image(image: &Image) -> Value {
    json!({"type": "image", "source": {"type": "base64", "media_type": image.mime, "data": image.base64}})
}

/// A message that another model wrote, or that was repaired.
fn rebuilt(said: &Said, ids: &[String]) -> Vec<Value> {
    let mut blocks = Vec::new();
    if said.calls.is_empty() || !said.text.trim().is_empty() {
        blocks.push(text_block(&said.text));
    }
    blocks.extend(said.calls.iter().zip(ids).map(
        |(call, id)| json!({"type": "tool_use", "id": id, "name": conversation::tool_name(&call.name), "input": input(call)}),
    ));
    blocks
}

fn input(call: &ToolCall) -> Value {
    Value::Object(call.arguments.clone().unwrap_or_default())
}

fn call(block: &Map<String, Value>, before: &[ToolCall]) -> ToolCall {
    let text = |name: &str| block.get(name).and_then(Value::as_str);
    ToolCall {
        id: conversation::own_id(text("id"), before),
        name: text("name").unwrap_or_default().to_owned(),
        arguments: arguments::read(block.get("input").unwrap_or(&Value::Null)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dialect() -> Dialect {
        Dialect { model: "m".to_owned(), vision: true, max_tokens: 100, echo_reasoning: true }
    }

    fn result(id: &str, text: &str) -> ToolResult {
        ToolResult {
            call_id: id.to_owned(),
            text: text.to_owned(),
            images: Vec::new(),
            is_error: false,
        }
    }

    #[test]
    fn thinking_is_replayed_byte_for_byte_and_in_its_place() {
        let content = json!([
            {"type": "thinking", "thinking": "h\u{e9} \u{1f600}", "signature": "EqQB/+=="},
            {"type": "redacted_thinking", "data": "RED1"},
            {"type": "text", "text": ""},
            {"type": "text", "text": "let me"},
            {"type": "tool_use", "id": "t", "name": "run_python", "input": {"code": "1"}, "new_field": 1},
        ]);
        let turn = dialect().turn(&json!({"content": content, "usage": {"input_tokens": 1, "cache_read_input_tokens": 2}})).expect("a turn");
        assert_eq!((turn.said.text.as_str(), turn.usage.input_tokens), ("let me", 3));
        let mut kept = content.as_array().expect("blocks").clone();
        kept.remove(2);
        let messages = [Message::User("q".to_owned()), Message::Assistant(turn.said)];
        assert_eq!(dialect().messages(&messages)[1]["content"], json!(kept));
        let other = Dialect { model: "other".to_owned(), ..dialect() };
        let rebuilt = &other.messages(&messages)[1]["content"];
        let expected = json!([{"type": "text", "text": "let me"}, {"type": "tool_use", "id": "call_1_0", "name": "run_python", "input": {"code": "1"}}]);
        assert_eq!(rebuilt, &expected, "another model is told the neutral words");
    }

    #[test]
    fn all_results_stand_in_one_message_and_what_follows_comes_behind_them() {
        let call = |id: &str| ToolCall {
            id: id.to_owned(),
            name: "f".to_owned(),
            arguments: Ok(Map::new()),
        };
        let said = Said { text: String::new(), calls: vec![call("a"), call("b")], raw: None };
        let image = Image { mime: "image/png".to_owned(), base64: "AA==".to_owned() };
        let second = ToolResult { images: vec![image], is_error: true, ..result("b", "two") };
        let messages = [
            Message::User("q".to_owned()),
            Message::Assistant(said),
            Message::Results(vec![result("a", ""), second]),
            Message::User("more".to_owned()),
        ];
        let turns = dialect().messages(&messages);
        assert_eq!(turns.len(), 3);
        let expected = json!([
            {"type": "tool_result", "tool_use_id": "call_1_0", "is_error": false, "content": [{"type": "text", "text": "(nothing)"}]},
            {"type": "tool_result", "tool_use_id": "call_1_1", "is_error": false, "content": [{"type": "text", "text": "two"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}]},
            {"type": "text", "text": "more"},
        ]);
        assert_eq!(turns[2]["content"], expected);
    }

    #[test]
    fn an_input_that_is_no_object_is_told_and_not_replayed() {
        let body = json!({"content": [{"type": "tool_use", "id": "a", "name": "f", "input": "{\"co"}, {"type": "tool_use", "id": "a", "name": "f"}], "stop_reason": "max_tokens"});
        let turn = dialect().turn(&body).expect("a turn");
        assert!(turn.cut && turn.said.calls[0].arguments.is_err());
        assert!(turn.said.calls[1].arguments.is_err(), "what is missing may be the rest");
        assert_ne!(turn.said.calls[1].id, "a");
        let raw = turn.said.raw.expect("kept").message;
        assert_eq!((&raw[0]["input"], &raw[1]["input"]), (&json!({}), &json!({})));
    }
}
