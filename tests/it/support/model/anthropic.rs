//! The Messages API as the service tells it, and what it refuses.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::reply::{Arguments, Call, End, Index, Said, pieces};

pub const SIGNATURE: &str = "Eq+/sig==";

pub fn whole(said: &Said, turn: usize) -> Value {
    let mut message = json!({"id": "msg_1", "type": "message", "role": "assistant", "model": "stub",
        "content": blocks(said, turn), "stop_reason": reason(said), "stop_sequence": null});
    if !said.uncounted {
        message["usage"] = json!({"input_tokens": 10, "output_tokens": 5});
    }
    message
}

fn blocks(said: &Said, turn: usize) -> Vec<Value> {
    let mut blocks = Vec::new();
    if let Some(thinking) = &said.thinking {
        blocks.push(json!({"type": "thinking", "thinking": thinking, "signature": SIGNATURE}));
        blocks.push(json!({"type": "redacted_thinking", "data": "RED+/=="}));
    }
    if !said.text.is_empty() {
        blocks.push(json!({"type": "text", "text": said.text}));
    }
    if said.odd {
        blocks.push(json!({"type": "block_of_tomorrow", "value": [1]}));
    }
    let calls = said.calls.iter().enumerate();
    blocks.extend(calls.map(|(number, call)| block(call, turn, number)));
    blocks
}

fn block(call: &Call, turn: usize, number: usize) -> Value {
    let mut block =
        json!({"type": "tool_use", "id": format!("toolu_{turn}_{number}"), "name": call.name});
    match call.id {
        None => {}
        Some("") => block["id"] = Value::Null,
        Some(id) => block["id"] = json!(id),
    }
    match &call.arguments {
        Arguments::Text(text) => block["input"] = input(text),
        Arguments::Swapped(value) => block["input"] = json!(value.to_string()),
        Arguments::Absent => {}
    }
    block
}

/// What the text says, or the text itself where that is no object.
fn input(text: &str) -> Value {
    match serde_json::from_str(text) {
        Ok(Value::Object(object)) => Value::Object(object),
        _ => json!(text),
    }
}

fn reason(said: &Said) -> Value {
    let calls = !said.calls.is_empty();
    match said.end {
        End::Natural if calls => json!("tool_use"),
        End::Wrong if !calls => json!("tool_use"),
        End::Natural | End::Wrong => json!("end_turn"),
        End::Cut => json!("max_tokens"),
        End::Unknown => json!("new_reason"),
        End::Absent => Value::Null,
    }
}

/// The data of the events.
pub fn events(said: &Said, turn: usize) -> Vec<String> {
    let mut start = whole(&Said { calls: Vec::new(), ..said.clone() }, turn);
    start["content"] = json!([]);
    start["stop_reason"] = Value::Null;
    if !said.uncounted {
        start["usage"] = json!({"input_tokens": 10, "output_tokens": 1});
    }
    let mut events = vec![json!({"type": "message_start", "message": start})];
    let calls = blocks(said, turn).len() - said.calls.len();
    for (number, block) in blocks(said, turn).iter().enumerate() {
        let call = number.checked_sub(calls).map(|number| &said.calls[number]);
        let mut tell = |mut event: Value| {
            match said.shape.index {
                Index::Own => event["index"] = json!(number),
                Index::Same => event["index"] = json!(0),
                Index::Missing => {}
            }
            events.push(event);
        };
        block_events(block, call, &mut tell);
    }
    let mut last = json!({"type": "message_delta", "delta": {"stop_reason": reason(said), "stop_sequence": null}});
    if !said.uncounted {
        last["usage"] = json!({"output_tokens": 5});
    }
    events.push(last);
    if !said.shape.no_done {
        events.push(json!({"type": "message_stop"}));
    }
    events.iter().map(Value::to_string).collect()
}

fn block_events(block: &Value, call: Option<&Call>, tell: &mut impl FnMut(Value)) {
    let text = |name: &str| block[name].as_str().unwrap_or_default();
    let mut first = block.clone();
    let mut deltas = Vec::new();
    let mut delta = |kind: &str, name: &str, value: &str| {
        deltas.push(json!({"type": kind, name: value}));
    };
    match block["type"].as_str().unwrap() {
        "thinking" => {
            first["thinking"] = json!("");
            first["signature"] = json!("");
            for piece in pieces(text("thinking")) {
                delta("thinking_delta", "thinking", &piece);
            }
            delta("signature_delta", "signature", text("signature"));
        }
        "text" => {
            first["text"] = json!("");
            for piece in pieces(text("text")) {
                delta("text_delta", "text", &piece);
            }
        }
        "tool_use" => {
            first["input"] = json!({});
            delta("input_json_delta", "partial_json", "");
            let written = match &call.unwrap().arguments {
                Arguments::Text(text) => text.clone(),
                Arguments::Swapped(value) => json!(value.to_string()).to_string(),
                Arguments::Absent => String::new(),
            };
            for piece in pieces(&written) {
                delta("input_json_delta", "partial_json", &piece);
            }
        }
        _ => {}
    }
    tell(json!({"type": "content_block_start", "content_block": first}));
    for delta in deltas {
        tell(json!({"type": "content_block_delta", "delta": delta}));
    }
    tell(json!({"type": "content_block_stop"}));
}

/// What the real service refuses.
pub fn wrong_with(body: &Value) -> Option<String> {
    if !body["max_tokens"].is_u64() {
        return Some("max_tokens: field required".to_owned());
    }
    for gone in ["temperature", "top_p", "top_k"] {
        if body.get(gone).is_some() {
            return Some(format!("{gone}: Extra inputs are not permitted"));
        }
    }
    let messages = body["messages"].as_array().filter(|messages| !messages.is_empty());
    let Some(messages) = messages else { return Some("there are no messages".to_owned()) };
    let mut open: HashSet<&str> = HashSet::new();
    let mut seen: HashSet<&str> = HashSet::new();
    for (number, message) in messages.iter().enumerate() {
        let expected = if number % 2 == 0 { "user" } else { "assistant" };
        if message["role"] != expected {
            return Some(format!("messages.{number}: roles must alternate"));
        }
        let Some(blocks) = message["content"].as_array().filter(|blocks| !blocks.is_empty()) else {
            return Some(format!("messages.{number}: content must not be empty"));
        };
        let mut results = true;
        for block in blocks {
            let id = |name: &str| block[name].as_str().unwrap_or_default();
            let wrong = match block["type"].as_str().unwrap_or_default() {
                "tool_result" => {
                    !results
                        || !open.remove(id("tool_use_id"))
                        || !is_content(&block["content"], block["is_error"] == true)
                }
                kind => {
                    results = false;
                    match kind {
                        "text" => id("text").trim().is_empty(),
                        "tool_use" => {
                            open.insert(id("id"));
                            !super::is_name(id("name"))
                                || !is_id(id("id"))
                                || !seen.insert(id("id"))
                                || !block["input"].is_object()
                        }
                        "thinking" => id("signature") != SIGNATURE,
                        "redacted_thinking" | "image" | "block_of_tomorrow" => false,
                        _ => true,
                    }
                }
            };
            if wrong || !block["index"].is_null() {
                return Some(format!("messages.{number}: not a block that goes here: {block}"));
            }
        }
        if expected == "user" && !open.is_empty() {
            return Some(format!("messages.{number}: tool_use ids without tool_result: {open:?}"));
        }
    }
    None
}

fn is_content(content: &Value, is_error: bool) -> bool {
    let good = |block: &Value| match block["type"].as_str() {
        Some("text") => block["text"].as_str().is_some_and(|text| !text.trim().is_empty()),
        // a result that is an error is text alone
        Some("image") => !is_error && block["source"]["media_type"].is_string(),
        _ => false,
    };
    content.as_array().is_some_and(|blocks| blocks.iter().all(good))
}

fn is_id(id: &str) -> bool {
    !id.is_empty() && id.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
}

/// The first question, which names the script.
pub fn question(body: &Value) -> String {
    body["messages"][0]["content"][0]["text"].as_str().unwrap_or_default().to_owned()
}
