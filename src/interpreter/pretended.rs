//! Text that pretends to be a call. Pure.

use serde_json::{Map, Value};

use super::call;
use crate::llm::conversation::{MAX_CALLS, Said, ToolCall};

/// What models of several families put around a call that they write as text.
const MARKS: [(&str, &str); 6] = [
    ("<tool_call>", "</tool_call>"),
    ("<function_call>", "</function_call>"),
    ("<tool_calls>", "</tool_calls>"),
    ("<|python_tag|>", ""),
    ("[TOOL_CALLS]", ""),
    ("```json", "```"),
];
const FENCE: &str = "```";
/// Where the name of a tool and its arguments stand.
const NAMES: [&str; 3] = ["name", "tool", "function"];
const ARGUMENTS: [&str; 4] = ["arguments", "parameters", "input", "args"];

/// The same, with the calls that its text pretends to be. A text is a call only as a whole.
pub(super) fn read(said: Said) -> Said {
    if !said.calls.is_empty() {
        return said;
    }
    match calls(&said.text) {
        Some(calls) => Said { text: String::new(), calls, raw: None },
        None => said,
    }
}

fn calls(text: &str) -> Option<Vec<ToolCall>> {
    let inner = unmarked(text.trim());
    if !inner.starts_with(['{', '[']) {
        return None;
    }
    let listed = match serde_json::from_str(inner).ok()? {
        Value::Array(listed) => listed,
        one => vec![one],
    };
    let calls: Vec<ToolCall> = listed.iter().map_while(call).collect();
    let whole = !calls.is_empty() && calls.len() == listed.len() && calls.len() <= MAX_CALLS;
    whole.then_some(calls)
}

fn unmarked(text: &str) -> &str {
    let without = |(before, after): &(&str, &str)| {
        text.strip_prefix(before)?.trim_end().strip_suffix(after).map(str::trim)
    };
    let fence = || text.strip_prefix(FENCE)?.strip_suffix(FENCE).map(str::trim);
    MARKS.iter().find_map(without).or_else(fence).unwrap_or(text)
}

/// An object with a tool's name and arguments that hold code.
fn call(value: &Value) -> Option<ToolCall> {
    let object = value.as_object()?;
    let function = object.get("function").and_then(Value::as_object).unwrap_or(object);
    let name = NAMES.iter().find_map(|name| function.get(*name)?.as_str())?;
    let arguments = ARGUMENTS.iter().find_map(|name| function.get(*name))?;
    let arguments: Map<String, Value> = match arguments {
        Value::Object(arguments) => arguments.clone(),
        Value::String(text) => serde_json::from_str(text).ok()?,
        _ => return None,
    };
    if name != call::NAME && !call::holds_code(&arguments) {
        return None;
    }
    Some(ToolCall {
        id: format!("call_{:016x}", fastrand::u64(..)),
        name: call::NAME.to_owned(),
        arguments: Ok(arguments),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Option<Vec<String>> {
        let codes = |calls: Vec<ToolCall>| {
            let code = |call: &ToolCall| call.arguments.as_ref().expect("good")["code"].to_string();
            calls.iter().map(code).collect()
        };
        calls(text).map(codes)
    }

    #[test]
    fn calls_are_found_in_what_surrounds_them() {
        let call = r#"{"name": "execute", "arguments": {"code": "1"}}"#;
        for text in [
            call.to_owned(),
            format!("<tool_call>\n{call}\n</tool_call>"),
            format!("```json\n{call}\n```"),
            format!("```\n{call}\n```"),
            format!("[TOOL_CALLS][{call}]"),
            format!("<|python_tag|>{call}"),
            r#"{"type": "function", "function": {"name": "run_python", "arguments": "{\"code\": \"1\"}"}}"#.to_owned(),
            r#"{"name": "run_python", "parameters": {"code": "1"}}"#.to_owned(),
        ] {
            assert_eq!(found(&text), Some(vec!["\"1\"".to_owned()]), "{text}");
        }
        assert_eq!(found(&format!("[{call}, {call}]")).map(|codes| codes.len()), Some(2));
    }

    #[test]
    fn what_only_looks_like_one_is_an_answer() {
        for text in [
            "The result is 3.",
            r#"{"name": "Ada", "arguments": {"for": "sale"}}"#,
            r#"{"name": "Ada", "age": 36}"#,
            r#"To run it: {"name": "execute", "arguments": {"code": "1"}}"#,
            "```python\nprint(1)\n```",
            "[1, 2, 3]",
            "[]",
            "{",
        ] {
            assert_eq!(found(text), None, "{text}");
        }
    }
}
