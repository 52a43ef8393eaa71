//! Chat completions as the service tells them, and what it refuses.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::reply::{Arguments, Call, End, Index, Said, pieces};

pub fn whole(said: &Said, turn: usize) -> Value {
    let mut message = json!({"role": "assistant", "content": content(said), "refusal": null});
    if let Some(thinking) = &said.thinking {
        message["reasoning_content"] = json!(thinking);
    }
    if !said.calls.is_empty() {
        let calls = said.calls.iter().enumerate();
        let calls: Vec<Value> =
            calls.map(|(number, call)| whole_call(call, turn, number)).collect();
        message["tool_calls"] = json!(calls);
    }
    let mut body = json!({"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "stub",
        "choices": [{"index": 0, "message": message, "finish_reason": reason(said), "logprobs": null}]});
    if !said.uncounted {
        body["usage"] = usage();
    }
    body
}

fn usage() -> Value {
    json!({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15})
}

fn content(said: &Said) -> Value {
    match &said.text {
        text if said.odd => json!([{"type": "text", "text": text}]),
        text if text.is_empty() => Value::Null,
        text => json!(text),
    }
}

fn reason(said: &Said) -> Value {
    let calls = !said.calls.is_empty();
    match said.end {
        End::Natural if calls => json!("tool_calls"),
        End::Wrong if !calls => json!("tool_calls"),
        End::Natural | End::Wrong => json!("stop"),
        End::Cut => json!("length"),
        End::Unknown => json!("new_reason"),
        End::Absent => Value::Null,
    }
}

fn id(call: &Call, turn: usize, number: usize) -> Value {
    match call.id {
        None => json!(format!("call_{turn}_{number}")),
        Some("") => Value::Null,
        Some(id) => json!(id),
    }
}

fn whole_call(call: &Call, turn: usize, number: usize) -> Value {
    let mut function = json!({"name": call.name});
    match &call.arguments {
        Arguments::Text(text) => function["arguments"] = json!(text),
        Arguments::Swapped(value) => function["arguments"] = value.clone(),
        Arguments::Absent => {}
    }
    let mut told = json!({"id": id(call, turn, number), "type": "function", "function": function});
    if call.untyped {
        told.as_object_mut().unwrap().remove("type");
    }
    told
}

/// The data of the events, without the mark at the end.
pub fn events(said: &Said, turn: usize, counted: bool) -> Vec<String> {
    let mut deltas = vec![json!({"role": "assistant", "content": ""})];
    for piece in said.thinking.iter().flat_map(|thinking| pieces(thinking)) {
        deltas.push(json!({"reasoning_content": piece}));
    }
    for piece in pieces(&said.text) {
        let content =
            if said.odd { json!([{"type": "text", "text": piece}]) } else { json!(piece) };
        deltas.push(json!({"content": content, "tool_calls": null}));
    }
    for (number, call) in said.calls.iter().enumerate() {
        call_deltas(said, call, turn, number, &mut deltas);
    }
    let chunk = |delta: Value, reason: Value| {
        json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "stub",
            "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})
    };
    let mut events: Vec<String> =
        deltas.into_iter().map(|delta| chunk(delta, Value::Null).to_string()).collect();
    events.push(chunk(json!({}), reason(said)).to_string());
    if counted && !said.uncounted {
        let last = json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "stub", "choices": [], "usage": usage()});
        events.push(last.to_string());
    }
    events
}

fn call_deltas(said: &Said, call: &Call, turn: usize, number: usize, deltas: &mut Vec<Value>) {
    let mut delta = |mut piece: Value| {
        match said.shape.index {
            Index::Own => piece["index"] = json!(number),
            Index::Same => piece["index"] = json!(0),
            Index::Missing => {}
        }
        deltas.push(json!({"tool_calls": [piece]}));
    };
    let mut first = json!({"id": id(call, turn, number), "type": "function", "function": {"name": call.name, "arguments": ""}});
    if call.untyped {
        first.as_object_mut().unwrap().remove("type");
    }
    if said.shape.late {
        delta(json!({"id": null, "type": null, "function": {"name": null, "arguments": ""}}));
        delta(json!({"id": id(call, turn, number), "function": {"name": call.name}}));
    } else {
        delta(first);
    }
    match &call.arguments {
        Arguments::Text(text) => {
            for piece in pieces(text) {
                delta(json!({"function": {"arguments": piece}}));
            }
        }
        Arguments::Swapped(value) => delta(json!({"function": {"arguments": value}})),
        Arguments::Absent => {}
    }
}

/// What the real service refuses.
pub fn wrong_with(body: &Value) -> Option<String> {
    let messages = body["messages"].as_array().filter(|messages| messages.len() > 1);
    let Some(messages) = messages else { return Some("there are no messages".to_owned()) };
    let mut open: Vec<&str> = Vec::new();
    let mut before = "";
    for (number, message) in messages.iter().enumerate() {
        let role = message["role"].as_str().unwrap_or_default();
        if role == "tool" {
            let id = message["tool_call_id"].as_str().unwrap_or_default();
            let Some(found) = open.iter().position(|open| *open == id) else {
                return Some(format!("messages[{number}]: a result without its call"));
            };
            open.remove(found);
            if !message["content"].is_string() {
                return Some(format!("messages[{number}]: a result is text"));
            }
            before = role;
            continue;
        }
        if !open.is_empty() {
            return Some(format!("messages[{number}]: a call without its result"));
        }
        if (role == "system") != (number == 0) || (role == "user" && before == "user") {
            return Some(format!("messages[{number}]: {role} after {before}"));
        }
        if let Some(wrong) = wrong_calls(message, &mut open) {
            return Some(format!("messages[{number}]: {wrong}"));
        }
        if message["content"].is_null() && open.is_empty() {
            return Some(format!("messages[{number}]: it is empty"));
        }
        before = role;
    }
    (!open.is_empty()).then(|| "a call without its result at the end".to_owned())
}

fn wrong_calls<'a>(message: &'a Value, open: &mut Vec<&'a str>) -> Option<String> {
    let calls = message.get("tool_calls")?;
    let calls = calls.as_array().filter(|calls| !calls.is_empty());
    let Some(calls) = calls else { return Some("an empty list of calls".to_owned()) };
    let mut ids = HashSet::new();
    for call in calls {
        let id = call["id"].as_str().unwrap_or_default();
        if id.is_empty()
            || !ids.insert(id)
            || call["type"] != "function"
            || !call["index"].is_null()
        {
            return Some(format!("not a call: {call}"));
        }
        let name = call["function"]["name"].as_str().unwrap_or_default();
        if !super::is_name(name) {
            return Some(format!("not a name: {call}"));
        }
        let arguments = call["function"]["arguments"].as_str().unwrap_or_default();
        if !serde_json::from_str::<Value>(arguments).is_ok_and(|arguments| arguments.is_object()) {
            return Some(format!("arguments that are no JSON: {call}"));
        }
        open.push(id);
    }
    None
}

/// The first question, which names the script.
pub fn question(body: &Value) -> String {
    let content = &body["messages"][1]["content"];
    content.as_str().map_or_else(|| content.to_string(), str::to_owned)
}
