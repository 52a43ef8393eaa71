//! The neutral conversation in the words of chat completions: pure.
//!
//! <https://platform.openai.com/docs/api-reference/chat>

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::domain::run::Usage;
use crate::llm::{
    BadArguments, Conversation, Image, LlmError, Message, ToolCall, ToolResult, Turn,
};

/// What differs from model to model.
pub(super) struct Dialect {
    pub(super) model: String,
    pub(super) vision: bool,
    pub(super) max_tokens: Option<u32>,
}

impl Dialect {
    /// The body of a request.
    pub(super) fn request(&self, conversation: &Conversation) -> Value {
        let mut messages = vec![json!({"role": "system", "content": conversation.system})];
        for message in &conversation.messages {
            match message {
                Message::User(text) => messages.push(json!({"role": "user", "content": text})),
                Message::Assistant(raw) => messages.push(raw.clone()),
                Message::Results(results) => self.results(results, &mut messages),
            }
        }
        let tool = &conversation.tool;
        let mut body = json!({
            "model": self.model,
            "messages": messages,
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
        body
    }

    /// A message for each call; images may not stand in them, so they follow as one of the user's.
    fn results(&self, results: &[ToolResult], messages: &mut Vec<Value>) {
        for result in results {
            messages.push(
                json!({"role": "tool", "tool_call_id": result.call_id, "content": result.text}),
            );
        }
        let images: Vec<&Image> = results.iter().flat_map(|result| &result.images).collect();
        if images.is_empty() || !self.vision {
            return;
        }
        let mut parts = vec![json!({"type": "text", "text": "Images made by the code above:"})];
        parts.extend(images.iter().map(|image| {
            json!({"type": "image_url", "image_url": {"url": format!("data:{};base64,{}", image.mime, image.base64)}})
        }));
        messages.push(json!({"role": "user", "content": parts}));
    }

    fn max_tokens_field(&self) -> &'static str {
        let name = self.model.rsplit('/').next().unwrap_or(&self.model);
        let reasons =
            ["o1", "o3", "o4", "gpt-5", "gpt-6"].iter().any(|prefix| name.starts_with(prefix));
        if reasons { "max_completion_tokens" } else { "max_tokens" }
    }
}

/// The turn in a successful answer.
pub(super) fn turn(body: &[u8]) -> Result<Turn, LlmError> {
    let body: Value =
        serde_json::from_slice(body).map_err(|_| LlmError::BadResponse("the body is not JSON"))?;
    if body.get("error").is_some_and(|error| !error.is_null()) {
        return Err(LlmError::Overloaded(200));
    }
    let choice = &body["choices"][0];
    let Some(message) = choice["message"].as_object() else {
        return Err(LlmError::BadResponse("there is no message in it"));
    };
    let calls: Vec<ToolCall> = message
        .get("tool_calls")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .enumerate()
        .map(call)
        .collect();
    Ok(Turn {
        text: text(message.get("content")),
        raw: echo(message, &calls),
        calls,
        cut: choice["finish_reason"] == "length",
        usage: Usage {
            input_tokens: body["usage"]["prompt_tokens"].as_u64().unwrap_or(0),
            output_tokens: body["usage"]["completion_tokens"].as_u64().unwrap_or(0),
        },
    })
}

/// Content is a text, or a list of parts.
fn text(content: Option<&Value>) -> String {
    match content {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            parts.iter().filter_map(|part| part["text"].as_str()).collect()
        }
        _ => String::new(),
    }
}

fn call((number, call): (usize, &Value)) -> ToolCall {
    let function = &call["function"];
    let id = call["id"].as_str().filter(|id| !id.is_empty());
    ToolCall {
        id: id.map_or_else(|| format!("call_{number}"), str::to_owned),
        name: function["name"].as_str().unwrap_or_default().to_owned(),
        arguments: arguments(&function["arguments"]),
    }
}

/// A JSON text, by the protocol; empty means none, and some servers send the object itself.
fn arguments(value: &Value) -> Result<Map<String, Value>, BadArguments> {
    let raw = match value {
        Value::Object(object) => return Ok(object.clone()),
        Value::Null => return Ok(Map::new()),
        Value::String(raw) if raw.trim().is_empty() => return Ok(Map::new()),
        Value::String(raw) => raw,
        other => {
            return Err(BadArguments { raw: other.to_string(), why: "not an object".to_owned() });
        }
    };
    match serde_json::from_str(raw) {
        Ok(Value::Object(object)) => Ok(object),
        // encoded twice
        Ok(Value::String(inner)) => match serde_json::from_str(&inner) {
            Ok(Value::Object(object)) => Ok(object),
            _ => Err(BadArguments { raw: inner, why: "not an object".to_owned() }),
        },
        Ok(_) => Err(BadArguments { raw: raw.clone(), why: "not an object".to_owned() }),
        Err(error) => Err(BadArguments { raw: raw.clone(), why: error.to_string() }),
    }
}

/// The message for the replay, verbatim but for what servers refuse: a call without id or type,
/// arguments that are no JSON, an empty list of calls.
fn echo(message: &Map<String, Value>, calls: &[ToolCall]) -> Value {
    let mut echo = message.clone();
    echo.insert("role".to_owned(), json!("assistant"));
    if calls.is_empty() {
        echo.remove("tool_calls");
        return Value::Object(echo);
    }
    let Some(list) = echo.get_mut("tool_calls").and_then(Value::as_array_mut) else {
        return Value::Object(echo);
    };
    for (raw, call) in list.iter_mut().zip(calls) {
        raw["id"] = json!(call.id);
        raw["type"] = json!("function");
        let arguments = &mut raw["function"]["arguments"];
        if call.arguments.is_err() || !arguments.is_string() || arguments == "" {
            let known = call.arguments.clone().unwrap_or_default();
            *arguments = json!(Value::Object(known).to_string());
        }
    }
    Value::Object(echo)
}

/// What an answer with an error status means.
pub(super) fn refusal(status: u16, after: Option<Duration>, body: &[u8]) -> LlmError {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let said = format!("{} {}", body["error"]["code"], body["error"]["message"]).to_lowercase();
    let too_long = ["context_length_exceeded", "context length", "prompt is too long"]
        .iter()
        .any(|sign| said.contains(sign));
    match status {
        400 | 413 if too_long => LlmError::ContextTooLong,
        401 | 403 => LlmError::Auth(status),
        429 => LlmError::RateLimited { after },
        408 | 504 => LlmError::Timeout,
        500.. => LlmError::Overloaded(status),
        _ => LlmError::Refused(status),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(message: &Value) -> Vec<u8> {
        json!({"choices": [{"message": message, "finish_reason": "stop"}], "usage": {"prompt_tokens": 3, "completion_tokens": 2}})
            .to_string()
            .into_bytes()
    }

    fn call_with(arguments: &Value) -> Turn {
        let call = json!({"id": "a", "type": "function", "function": {"name": "run_python", "arguments": arguments}});
        turn(&answer(&json!({"role": "assistant", "content": null, "tool_calls": [call]})))
            .expect("a turn")
    }

    #[test]
    fn arguments_are_read_as_servers_send_them() {
        let code = Map::from_iter([("code".to_owned(), json!("1"))]);
        for arguments in
            [json!("{\"code\":\"1\"}"), json!({"code": "1"}), json!("\"{\\\"code\\\":\\\"1\\\"}\"")]
        {
            assert_eq!(call_with(&arguments).calls[0].arguments, Ok(code.clone()), "{arguments}");
        }
        for arguments in [json!(""), json!(null)] {
            assert_eq!(call_with(&arguments).calls[0].arguments, Ok(Map::new()));
        }
        let broken = call_with(&json!("{\"code\": \"print(1)"));
        assert!(broken.calls[0].arguments.is_err());
        assert_eq!(broken.raw["tool_calls"][0]["function"]["arguments"], "{}");
    }

    #[test]
    fn a_message_is_replayed_verbatim_but_for_what_servers_refuse() {
        let message = json!({"role": "assistant", "content": "hm", "reasoning_content": "kept",
            "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]});
        let turn = turn(&answer(&message)).expect("a turn");
        let expected = json!({"role": "assistant", "content": "hm", "reasoning_content": "kept",
            "tool_calls": [{"id": "call_0", "type": "function", "function": {"name": "f", "arguments": "{}"}}]});
        assert_eq!(turn.raw, expected);
        assert_eq!(turn.usage, Usage { input_tokens: 3, output_tokens: 2 });
    }

    #[test]
    fn errors_are_told_apart() {
        let too_long = json!({"error": {"code": "context_length_exceeded"}}).to_string();
        assert!(matches!(refusal(400, None, too_long.as_bytes()), LlmError::ContextTooLong));
        assert!(matches!(refusal(400, None, b"<html>"), LlmError::Refused(400)));
        assert!(matches!(refusal(401, None, b""), LlmError::Auth(401)));
        let after = Some(Duration::from_secs(2));
        assert!(matches!(refusal(429, after, b""), LlmError::RateLimited { after: Some(_) }));
        assert!(matches!(refusal(503, None, b""), LlmError::Overloaded(503)));
        assert!(matches!(turn(b"{\"error\":{\"message\":\"x\"}}"), Err(LlmError::Overloaded(200))));
        assert!(matches!(turn(b"hello"), Err(LlmError::BadResponse(_))));
        assert!(matches!(turn(b"{\"choices\":[]}"), Err(LlmError::BadResponse(_))));
    }
}
