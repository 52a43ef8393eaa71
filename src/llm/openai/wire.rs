//! The neutral conversation in the words of chat completions: pure.
//!
//! <https://platform.openai.com/docs/api-reference/chat>

use serde_json::{Map, Value, json};

use super::PROTOCOL;
use crate::domain::run::Usage;
use crate::llm::conversation::{
    Conversation, Image, MAX_CALLS, Message, Raw, Said, ToolCall, ToolResult,
};
use crate::llm::{LlmError, Turn, arguments, conversation};

/// Fields of a message that every service takes back.
const PLAIN: [&str; 3] = ["role", "content", "tool_calls"];

/// What differs from model to model.
pub(super) struct Dialect {
    pub(super) model: String,
    pub(super) vision: bool,
    pub(super) max_tokens: Option<u32>,
    pub(super) echo_reasoning: bool,
}

impl Dialect {
    /// The body of a request.
    pub(super) fn request(&self, conversation: &Conversation, stream: bool) -> Value {
        let tool = &conversation.tool;
        let mut body = json!({
            "model": self.model,
            "messages": self.messages(conversation),
            "tools": [{"type": "function", "function": {
                "name": tool.name, "description": tool.description, "parameters": tool.parameters,
            }}],
        });
        if conversation.must_answer {
            body["tool_choice"] = json!("none");
        }
        if let Some(tokens) = self.max_tokens {
            body[self.max_tokens_field()] = json!(tokens);
        }
        if stream {
            body["stream"] = json!(true);
            body["stream_options"] = json!({"include_usage": true});
        }
        body
    }

    fn messages(&self, conversation: &Conversation) -> Vec<Value> {
        let mut messages = vec![json!({"role": "system", "content": conversation.system})];
        let mut ids = Vec::new();
        for (number, message) in conversation.messages.iter().enumerate() {
            match message {
                Message::User(text) => push_user(&mut messages, vec![text_part(text)]),
                Message::Assistant(said) => {
                    let raw = said.raw_of(PROTOCOL, &self.model);
                    ids = conversation::ids(said, number, raw.is_some());
                    messages.push(raw.cloned().unwrap_or_else(|| rebuilt(said, &ids)));
                }
                Message::Results(results) => self.results(results, &ids, &mut messages),
            }
        }
        messages
    }

    /// A message for each call; images may not stand in them, so they follow as one of the user's.
    fn results(&self, results: &[ToolResult], ids: &[String], messages: &mut Vec<Value>) {
        for (result, id) in results.iter().zip(ids) {
            let mut text = result.text.clone();
            if !self.vision && !result.images.is_empty() {
                text.push_str(&format!("[images that are not shown: {}]\n", result.images.len()));
            }
            messages.push(json!({"role": "tool", "tool_call_id": id, "content": text}));
        }
        let images: Vec<&Image> = results.iter().flat_map(|result| &result.images).collect();
        if images.is_empty() || !self.vision {
            return;
        }
        let mut parts = vec![text_part("Images made by the code above:")];
        parts.extend(images.iter().map(|image| {
            json!({"type": "image_url", "image_url": {"url": format!("data:{};base64,{}", image.mime, image.base64)}})
        }));
        push_user(messages, parts);
    }

    fn max_tokens_field(&self) -> &'static str {
        let name = self.model.rsplit('/').next().unwrap_or(&self.model);
        let reasons =
            ["o1", "o3", "o4", "gpt-5", "gpt-6"].iter().any(|prefix| name.starts_with(prefix));
        if reasons { "max_completion_tokens" } else { "max_tokens" }
    }

    /// The turn in a successful answer.
    pub(super) fn turn(&self, body: &Value) -> Result<Turn, LlmError> {
        let choice = &body["choices"][0];
        let Some(message) = choice["message"].as_object() else {
            return Err(LlmError::BadResponse("there is no message in it"));
        };
        let listed = message.get("tool_calls").and_then(Value::as_array);
        let mut calls = Vec::new();
        for listed in listed.into_iter().flatten() {
            if calls.len() >= MAX_CALLS {
                return Err(LlmError::BadResponse("it makes calls without end"));
            }
            calls.push(call(listed, &calls));
        }
        let text = Some(text(message.get("content"))).filter(|text| !text.is_empty());
        let refusal = || message.get("refusal")?.as_str().map(str::to_owned);
        let text = text.or_else(refusal).unwrap_or_default();
        let raw = Raw {
            protocol: PROTOCOL.to_owned(),
            model: self.model.clone(),
            message: self.echo(message, &calls, &text),
        };
        Ok(Turn {
            said: Said { text, calls, raw: Some(raw) },
            cut: choice["finish_reason"] == "length",
            usage: Usage {
                input_tokens: body["usage"]["prompt_tokens"].as_u64().unwrap_or(0),
                output_tokens: body["usage"]["completion_tokens"].as_u64().unwrap_or(0),
            },
        })
    }

    /// The message for the replay, verbatim but for what servers refuse: a call without id or type,
    /// two with one id, arguments that are no JSON, an empty list of calls.
    fn echo(&self, message: &Map<String, Value>, calls: &[ToolCall], text: &str) -> Value {
        let mut echo = message.clone();
        echo.retain(|name, _| self.echo_reasoning || PLAIN.contains(&name.as_str()));
        echo.insert("role".to_owned(), json!("assistant"));
        if calls.is_empty() {
            echo.remove("tool_calls");
            if echo.get("content").is_none_or(Value::is_null) {
                echo.insert("content".to_owned(), json!(text));
            }
            return Value::Object(echo);
        }
        let list = echo.get_mut("tool_calls").and_then(Value::as_array_mut);
        for (raw, call) in list.into_iter().flatten().zip(calls) {
            if !raw.is_object() {
                *raw = json!({});
            }
            raw.as_object_mut().expect("it is one now").remove("index");
            raw["id"] = json!(call.id);
            raw["type"] = json!("function");
            if !raw["function"].is_object() {
                raw["function"] = json!({});
            }
            raw["function"]["name"] = json!(conversation::tool_name(&call.name));
            let arguments = &mut raw["function"]["arguments"];
            if !arguments.as_str().is_some_and(is_object) {
                *arguments = json!(written(call));
            }
        }
        Value::Object(echo)
    }
}

/// Two messages of the user in a row are one.
fn push_user(messages: &mut Vec<Value>, mut parts: Vec<Value>) {
    if messages.last().is_some_and(|last| last["role"] == "user") {
        let before = messages.pop().unwrap_or_default();
        let mut all = match &before["content"] {
            Value::Array(parts) => parts.clone(),
            text => vec![text_part(text.as_str().unwrap_or_default())],
        };
        all.append(&mut parts);
        parts = all;
    }
    let texts: Option<Vec<&str>> = parts.iter().map(|part| part["text"].as_str()).collect();
    let content = texts.map_or_else(|| json!(parts), |texts| json!(texts.join("\n\n")));
    messages.push(json!({"role": "user", "content": content}));
}

fn text_part(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

/// A message that another model wrote, or that was repaired.
fn rebuilt(said: &Said, ids: &[String]) -> Value {
    if said.calls.is_empty() {
        return json!({"role": "assistant", "content": said.text});
    }
    let call = |(call, id): (&ToolCall, &String)| json!({"id": id, "type": "function", "function": {"name": conversation::tool_name(&call.name), "arguments": written(call)}});
    let calls: Vec<Value> = said.calls.iter().zip(ids).map(call).collect();
    let content = if said.text.is_empty() { Value::Null } else { json!(said.text) };
    json!({"role": "assistant", "content": content, "tool_calls": calls})
}

fn is_object(arguments: &str) -> bool {
    serde_json::from_str::<Map<String, Value>>(arguments).is_ok()
}

fn written(call: &ToolCall) -> String {
    Value::Object(call.arguments.clone().unwrap_or_default()).to_string()
}

/// Content is a text, or a list of parts.
pub(super) fn text(content: Option<&Value>) -> String {
    match content {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            parts.iter().filter_map(|part| part["text"].as_str()).collect()
        }
        _ => String::new(),
    }
}

fn call(call: &Value, before: &[ToolCall]) -> ToolCall {
    let function = &call["function"];
    ToolCall {
        id: conversation::own_id(call["id"].as_str(), before),
        name: function["name"].as_str().unwrap_or_default().to_owned(),
        arguments: arguments::read(&function["arguments"]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dialect() -> Dialect {
        Dialect { model: "m".to_owned(), vision: true, max_tokens: None, echo_reasoning: true }
    }

    fn turn(message: &Value) -> Turn {
        let body = json!({"choices": [{"message": message, "finish_reason": "stop"}], "usage": {"prompt_tokens": 3, "completion_tokens": 2}});
        dialect().turn(&body).expect("a turn")
    }

    fn raw(turn: Turn) -> Value {
        turn.said.raw.expect("kept").message
    }

    #[test]
    fn a_message_is_replayed_verbatim_but_for_what_servers_refuse() {
        let message = json!({"role": "assistant", "content": "hm", "reasoning_content": "kept",
            "tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{\"a"}}, {"id": "x", "extra_content": {"s": 1}, "function": {"name": "f", "arguments": "{}"}}]});
        let turn = turn(&message);
        assert_eq!(turn.usage, Usage { input_tokens: 3, output_tokens: 2 });
        let id = turn.said.calls[0].id.clone();
        let expected = json!({"role": "assistant", "content": "hm", "reasoning_content": "kept",
            "tool_calls": [{"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}},
                {"id": "x", "type": "function", "extra_content": {"s": 1}, "function": {"name": "f", "arguments": "{}"}}]});
        assert_eq!(raw(turn), expected);
    }

    #[test]
    fn reasoning_is_not_sent_where_it_is_refused() {
        let body =
            json!({"choices": [{"message": {"content": "a", "reasoning": "b", "refusal": null}}]});
        let plain = Dialect { echo_reasoning: false, ..dialect() };
        let turn = plain.turn(&body).expect("a turn");
        assert_eq!(raw(turn), json!({"role": "assistant", "content": "a"}));
    }

    #[test]
    fn two_calls_with_one_id_get_two() {
        let call = json!({"id": "a", "function": {"name": "f", "arguments": ""}});
        let turn = turn(&json!({"tool_calls": [call, call]}));
        let [first, second] = turn.said.calls.as_slice() else { panic!("two") };
        assert_eq!(first.id, "a");
        assert_ne!(second.id, "a");
    }

    #[test]
    fn users_in_a_row_are_one_message() {
        let mut messages = Vec::new();
        push_user(&mut messages, vec![text_part("a")]);
        push_user(&mut messages, vec![text_part("b")]);
        assert_eq!(messages, [json!({"role": "user", "content": "a\n\nb"})]);
        push_user(&mut messages, vec![json!({"type": "image_url"})]);
        assert_eq!(messages.len(), 1);
        assert_eq!(messages[0]["content"][1], json!({"type": "image_url"}));
    }

    #[test]
    fn a_body_without_a_message_is_told() {
        for body in
            [json!({"choices": []}), json!({}), json!([]), json!({"choices": [{"message": 1}]})]
        {
            assert!(matches!(dialect().turn(&body), Err(LlmError::BadResponse(_))), "{body}");
        }
        let odd = json!({"choices": [{"message": {"tool_calls": [1, {"function": 2}]}}]});
        assert_eq!(dialect().turn(&odd).expect("a turn").said.calls.len(), 2);
    }
}
