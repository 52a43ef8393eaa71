//! A streamed message, put together to what the whole one would be. Pure.
//!
//! <https://docs.claude.com/en/docs/build-with-claude/streaming>

use serde_json::{Value, json};

use crate::llm::LlmError;
use crate::llm::remote::{Piece, check};

const MAX_CITATIONS: usize = 256;
/// Blocks of one message that are put together.
const MAX_BLOCKS: usize = 512;

pub(super) fn put(body: &mut Value, event: &str) -> Result<Piece, LlmError> {
    let event: Value = serde_json::from_str(event)
        .map_err(|_| LlmError::BadResponse("a piece of the stream is not JSON"))?;
    check(&event)?;
    if !body.is_object() {
        *body = json!({});
    }
    let mut piece = Piece::default();
    match event["type"].as_str().unwrap_or_default() {
        "message_start" if event["message"].is_object() => {
            *body = event["message"].clone();
            // its blocks come one by one
            body["content"] = json!([]);
        }
        "content_block_start" => start(body, &event)?,
        "content_block_delta" => piece.text = more(body, &event),
        "message_delta" => {
            if event["delta"]["stop_reason"].is_string() {
                body["stop_reason"] = event["delta"]["stop_reason"].clone();
            }
            count(&mut body["usage"], &event["usage"]);
            piece.ends = body["stop_reason"].is_string();
        }
        "message_stop" => piece = Piece { ends: true, closes: true, ..piece },
        // ping, content_block_stop, and what may be added
        _ => {}
    }
    Ok(piece)
}

fn start(body: &mut Value, event: &Value) -> Result<(), LlmError> {
    if !body["content"].is_array() {
        body["content"] = json!([]);
    }
    let blocks = body["content"].as_array_mut().expect("it is one now");
    if blocks.len() >= MAX_BLOCKS {
        return Err(LlmError::BadResponse("its message has no end"));
    }
    let mut block = event["content_block"].clone();
    if block.is_object() {
        block["index"] = event["index"].clone();
        blocks.push(block);
    }
    Ok(())
}

/// Puts a delta to the last block with its index; gives the text in it.
fn more(body: &mut Value, event: &Value) -> String {
    // objects, all of them: `start` takes no others
    let Some(blocks) = body["content"].as_array_mut() else { return String::new() };
    let place = blocks.iter().rposition(|block| block["index"] == event["index"]);
    let Some(block) = place.or(blocks.len().checked_sub(1)).and_then(|at| blocks.get_mut(at))
    else {
        return String::new();
    };
    let delta = &event["delta"];
    let piece = |name: &str| delta[name].as_str().unwrap_or_default();
    match delta["type"].as_str().unwrap_or_default() {
        "text_delta" => {
            append(&mut block["text"], piece("text"));
            return piece("text").to_owned();
        }
        "thinking_delta" => append(&mut block["thinking"], piece("thinking")),
        "signature_delta" => append(&mut block["signature"], piece("signature")),
        // the text takes the place of the empty object that the block began with
        "input_json_delta" if piece("partial_json").is_empty() => {}
        "input_json_delta" => append(&mut block["input"], piece("partial_json")),
        "citations_delta" => match &mut block["citations"] {
            Value::Array(list) if list.len() >= MAX_CITATIONS => {}
            Value::Array(list) => list.push(delta["citation"].clone()),
            other => *other = json!([delta["citation"]]),
        },
        _ => {}
    }
    String::new()
}

fn append(place: &mut Value, more: &str) {
    match place {
        Value::String(text) => text.push_str(more),
        other => *other = Value::from(more),
    }
}

/// Later counts replace earlier ones.
fn count(usage: &mut Value, later: &Value) {
    if !usage.is_object() {
        *usage = json!({});
    }
    for (name, value) in later.as_object().into_iter().flatten() {
        if !value.is_null() {
            usage[name] = value.clone();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn together(events: &[Value]) -> (Value, String, bool) {
        let (mut body, mut text, mut ends) = (Value::Null, String::new(), false);
        for event in events {
            let piece = put(&mut body, &event.to_string()).expect("a good piece");
            text.push_str(&piece.text);
            ends |= piece.ends;
        }
        (body, text, ends)
    }

    fn delta(index: u32, kind: &str, name: &str, value: &str) -> Value {
        json!({"type": "content_block_delta", "index": index, "delta": {"type": kind, name: value}})
    }

    fn begin(index: u32, block: &Value) -> Value {
        json!({"type": "content_block_start", "index": index, "content_block": block})
    }

    #[test]
    fn blocks_are_put_together_to_the_last_byte() {
        let (body, text, ends) = together(&[
            json!({"type": "message_start", "message": {"role": "assistant", "content": [], "usage": {"input_tokens": 7, "output_tokens": 1}}}),
            json!({"type": "ping"}),
            begin(0, &json!({"type": "thinking", "thinking": "", "signature": ""})),
            delta(0, "thinking_delta", "thinking", "h\u{e9}"),
            delta(0, "signature_delta", "signature", "SIG=="),
            json!({"type": "content_block_stop", "index": 0}),
            begin(1, &json!({"type": "text", "text": ""})),
            delta(1, "text_delta", "text", "let "),
            delta(1, "text_delta", "text", "me"),
            begin(2, &json!({"type": "tool_use", "id": "a", "name": "run_python", "input": {}})),
            delta(2, "input_json_delta", "partial_json", ""),
            delta(2, "input_json_delta", "partial_json", "{\"code\":"),
            delta(2, "input_json_delta", "partial_json", "\"1\"}"),
            json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 5}}),
            json!({"type": "message_stop"}),
        ]);
        assert_eq!((text.as_str(), ends), ("let me", true));
        let expected = json!([
            {"index": 0, "type": "thinking", "thinking": "h\u{e9}", "signature": "SIG=="},
            {"index": 1, "type": "text", "text": "let me"},
            {"index": 2, "type": "tool_use", "id": "a", "name": "run_python", "input": "{\"code\":\"1\"}"},
        ]);
        assert_eq!(body["content"], expected);
        assert_eq!(body["usage"], json!({"input_tokens": 7, "output_tokens": 5}));
    }

    #[test]
    fn two_blocks_with_one_index_and_one_without_are_told_apart() {
        let call = |id: &str| json!({"type": "tool_use", "id": id, "name": "f", "input": {}});
        let (body, _, ends) = together(&[
            begin(0, &call("a")),
            delta(0, "input_json_delta", "partial_json", "1"),
            begin(0, &call("b")),
            delta(0, "input_json_delta", "partial_json", "2"),
            json!({"type": "content_block_start", "content_block": call("c")}),
            json!({"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": "3"}}),
        ]);
        let inputs: Vec<_> = body["content"]
            .as_array()
            .expect("blocks")
            .iter()
            .map(|block| &block["input"])
            .collect();
        assert_eq!(inputs, ["1", "2", "3"]);
        assert!(!ends, "its end was not told");
    }

    #[test]
    fn an_error_in_the_stream_is_one() {
        let event = json!({"type": "error", "error": {"type": "overloaded_error", "message": "x"}});
        let error = put(&mut Value::Null, &event.to_string()).expect_err("an error");
        assert!(matches!(error, LlmError::Overloaded { .. }));
        assert!(put(&mut Value::Null, "[DONE]").is_err());
        assert!(put(&mut Value::Null, "[1]").is_ok(), "what is not known is passed over");
    }
}
