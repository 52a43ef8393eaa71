//! A streamed completion, put together to what the whole one would be. Pure.
//!
//! Servers differ: a call's index may be missing or the same for all, its id or name may come late,
//! the end may be a reason, `[DONE]`, or both.

use serde_json::{Map, Value, json};

use super::wire;
use crate::llm::LlmError;
use crate::llm::conversation::MAX_CALLS;
use crate::llm::remote::{Piece, check};

/// Fields of a message that are kept besides, and parts of one of them.
const MAX_FIELDS: usize = 16;
const MAX_PARTS: usize = 256;

pub(super) fn put(body: &mut Value, event: &str) -> Result<Piece, LlmError> {
    if event.trim() == "[DONE]" {
        return Ok(Piece { ends: true, closes: true, ..Piece::default() });
    }
    let chunk: Value = serde_json::from_str(event)
        .map_err(|_| LlmError::BadResponse("a piece of the stream is not JSON"))?;
    check(&chunk)?;
    if body.is_null() {
        *body = json!({"choices": []});
    }
    if chunk["usage"].is_object() {
        body["usage"] = chunk["usage"].clone();
    }
    let Some(choice) = chunk["choices"].get(0) else { return Ok(Piece::default()) };
    if body["choices"].get(0).is_none() {
        body["choices"] = json!([{"message": {"role": "assistant", "content": null}}]);
    }
    let whole = &mut body["choices"][0];
    let ends = choice["finish_reason"].is_string();
    if ends {
        whole["finish_reason"] = choice["finish_reason"].clone();
    }
    let mut text = String::new();
    for (name, value) in choice["delta"].as_object().into_iter().flatten() {
        let known = whole["message"].as_object().map_or(0, Map::len);
        if known >= MAX_FIELDS && whole["message"].get(name).is_none() {
            continue;
        }
        match (name.as_str(), value) {
            (_, Value::Null) | ("role", _) => {}
            ("content", value) => {
                text = wire::text(Some(value));
                append(&mut whole["message"]["content"], &text);
            }
            ("tool_calls", Value::Array(pieces)) => {
                let pieces = pieces.iter().take(MAX_CALLS);
                for piece in pieces {
                    call(&mut whole["message"], piece)?;
                }
            }
            (name, Value::String(more)) => append(&mut whole["message"][name], more),
            (name, Value::Array(more)) => extend(&mut whole["message"][name], more),
            (name, other) => whole["message"][name] = other.clone(),
        }
    }
    Ok(Piece { text, ends, closes: false })
}

fn append(place: &mut Value, more: &str) {
    match place {
        Value::String(text) => text.push_str(more),
        other => *other = Value::from(more),
    }
}

fn extend(place: &mut Value, more: &[Value]) {
    match place {
        Value::Array(list) if list.len() >= MAX_PARTS => {}
        Value::Array(list) => list.extend(more.iter().take(MAX_PARTS).cloned()),
        other => *other = Value::from(more),
    }
}

/// Puts a piece of a call to the call that it belongs to.
fn call(message: &mut Value, piece: &Value) -> Result<(), LlmError> {
    if !message["tool_calls"].is_array() {
        message["tool_calls"] = json!([]);
    }
    let calls = message["tool_calls"].as_array_mut().expect("it is one now");
    let place = match place_of(calls, piece) {
        Some(place) => place,
        None if calls.len() < MAX_CALLS => {
            calls.push(json!({"type": "function", "function": {"name": "", "arguments": ""}}));
            calls.len() - 1
        }
        None => return Err(LlmError::BadResponse("it makes calls without end")),
    };
    let whole = &mut calls[place];
    for (name, value) in piece.as_object().into_iter().flatten() {
        match (name.as_str(), value) {
            (_, Value::Null) | ("type", _) => {}
            ("function", function) => {
                if let (Some(name), Some("")) =
                    (function["name"].as_str(), whole["function"]["name"].as_str())
                {
                    whole["function"]["name"] = json!(name);
                }
                match &function["arguments"] {
                    Value::Null => {}
                    Value::String(more) => append(&mut whole["function"]["arguments"], more),
                    other => append(&mut whole["function"]["arguments"], &other.to_string()),
                }
            }
            (name, value) => whole[name] = value.clone(),
        }
    }
    Ok(())
}

/// Where the call of a piece is; a new id is a new call, whatever its index.
fn place_of(calls: &[Value], piece: &Value) -> Option<usize> {
    let id = piece["id"].as_str().filter(|id| !id.is_empty());
    let same_id =
        |call: &Value| id.is_none() || !call["id"].is_string() || call["id"] == piece["id"];
    if piece["index"].is_u64() {
        let place = calls.iter().rposition(|call| call["index"] == piece["index"])?;
        return same_id(&calls[place]).then_some(place);
    }
    match id {
        Some(_) => calls.iter().rposition(|call| call["id"] == piece["id"]),
        None => calls.len().checked_sub(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn together(deltas: &[Value]) -> Value {
        let mut body = Value::Null;
        for delta in deltas {
            let chunk = json!({"choices": [{"index": 0, "delta": delta}]});
            put(&mut body, &chunk.to_string()).expect("a good piece");
        }
        body["choices"][0]["message"].clone()
    }

    fn codes(deltas: &[Value]) -> Vec<String> {
        let message = together(deltas);
        let calls = message["tool_calls"].as_array().expect("calls");
        calls
            .iter()
            .map(|call| call["function"]["arguments"].as_str().expect("text").to_owned())
            .collect()
    }

    fn piece(index: Option<u32>, id: Option<&str>, arguments: &str) -> Value {
        let mut call = json!({"function": {"arguments": arguments}});
        if let Some(index) = index {
            call["index"] = json!(index);
        }
        if let Some(id) = id {
            call["id"] = json!(id);
            call["function"]["name"] = json!("run_python");
        }
        json!({"tool_calls": [call]})
    }

    #[test]
    fn calls_are_told_apart_however_they_are_numbered() {
        let numberings: [[Option<u32>; 2]; 3] =
            [[Some(0), Some(1)], [Some(0), Some(0)], [None, None]];
        for [first, second] in numberings {
            let deltas = [
                piece(first, Some("a"), "{\"x"),
                piece(first, None, "\":1}"),
                piece(second, Some("b"), "{}"),
            ];
            assert_eq!(codes(&deltas), ["{\"x\":1}", "{}"], "{first:?} {second:?}");
        }
    }

    #[test]
    fn what_comes_late_or_again_belongs_to_the_same_call() {
        let deltas = [
            json!({"role": "assistant", "content": null, "reasoning_content": "h"}),
            json!({"reasoning_content": "m", "tool_calls": [{"index": 0, "id": null, "function": {"name": null, "arguments": ""}}]}),
            json!({"tool_calls": [{"index": 0, "id": "a", "type": null, "function": {"name": "run_python"}}]}),
            json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "run_python", "arguments": "{}"}}]}),
        ];
        let expected = json!({"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [
            {"index": 0, "id": "a", "type": "function", "function": {"name": "run_python", "arguments": "{}"}}]});
        assert_eq!(together(&deltas), expected);
    }

    #[test]
    fn the_end_is_a_reason_or_a_mark() {
        let mut body = Value::Null;
        assert!(put(&mut body, " [DONE]").expect("good").ends);
        let last = r#"{"choices": [{"delta": {}, "finish_reason": "stop"}]}"#;
        assert!(put(&mut body, last).expect("good").ends);
        let usage = r#"{"choices": [], "usage": {"prompt_tokens": 1}}"#;
        assert_eq!(put(&mut body, usage).expect("good"), Piece::default());
        assert_eq!(body["usage"]["prompt_tokens"], 1);
        assert!(put(&mut body, "{").is_err());
        assert!(put(&mut body, r#"{"error": {"message": "x"}}"#).is_err());
    }
}
