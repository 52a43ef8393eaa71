//! The model's one tool: how it is offered, and how a call of it is read. Pure.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::Task;
use crate::domain::session::Session;
use crate::llm::conversation::{self, Tool, ToolCall};

/// The tool's name.
pub(super) const NAME: &str = "run_python";
/// Other names that models give the one argument.
const CODE_NAMES: [&str; 5] = ["code", "python", "source", "script", "input"];

const CUT_OFF: &str = "the arguments were cut off: write shorter code, in several calls";

/// What a call asks for.
#[derive(Debug, PartialEq)]
pub(super) struct Request {
    pub(super) code: String,
    pub(super) timeout: Option<Duration>,
}

/// The tool as the model is told of it, true to the session.
pub(super) fn tool(task: &Task, session: &Session) -> Tool {
    let state = if session.capabilities.state {
        "State is kept between calls."
    } else {
        "Each call starts fresh."
    };
    Tool {
        name: NAME,
        description: format!(
            "Runs Python code and returns what it prints, the value of its last expression and the files it made. {state} \
             Save files into {}.",
            session.folder()
        ),
        parameters: json!({
            "type": "object",
            "properties": {
                "code": {"type": "string", "description": "The Python code to run"},
                "timeout": {
                    "type": "integer", "minimum": 1, "maximum": task.cell_timeout_max.as_secs(),
                    "description": "Seconds the code may run",
                },
            },
            "required": ["code"],
            "additionalProperties": false,
        }),
    }
}

/// Reads a call, repaired where it is clear what was meant, or gives what to tell the model.
pub(super) fn read(call: &ToolCall, cut: bool) -> Result<Request, String> {
    if call.name != NAME {
        let name = conversation::tool_name(&call.name);
        return Err(format!("there is no tool {name:?}; the only tool is {NAME}"));
    }
    match &call.arguments {
        Ok(arguments) => {
            code_in(arguments).map_err(|why| if cut { CUT_OFF.to_owned() } else { why })
        }
        Err(_) if cut => Err(CUT_OFF.to_owned()),
        // bare code in place of JSON
        Err(bad) if !bad.raw.trim().is_empty() && !bad.raw.trim_start().starts_with(['{', '[']) => {
            Ok(Request { code: without_fence(&bad.raw).to_owned(), timeout: None })
        }
        Err(bad) => Err(format!("the arguments are not a JSON object: {}", bad.why)),
    }
}

/// True when the arguments hold code by one of the names that models use for it.
pub(super) fn holds_code(arguments: &Map<String, Value>) -> bool {
    CODE_NAMES.iter().any(|name| arguments.get(*name).is_some_and(Value::is_string))
}

fn code_in(arguments: &Map<String, Value>) -> Result<Request, String> {
    let named = CODE_NAMES.iter().find_map(|name| arguments.get(*name)?.as_str());
    let only = match arguments.values().collect::<Vec<_>>().as_slice() {
        [Value::String(only)] => Some(only.as_str()),
        _ => None,
    };
    let Some(code) = named.or(only).filter(|code| !code.trim().is_empty()) else {
        return Err("the argument `code` is missing or empty".to_owned());
    };
    let seconds = match arguments.get("timeout") {
        Some(Value::String(text)) => text.parse().ok(),
        Some(number) => number.as_f64(),
        None => None,
    };
    let seconds = seconds.filter(|seconds| *seconds >= 1.0);
    let timeout = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    Ok(Request { code: without_fence(code).to_owned(), timeout })
}

/// Code inside a Markdown fence is that code.
fn without_fence(code: &str) -> &str {
    let trimmed = code.trim();
    let Some(rest) = trimmed.strip_prefix("```") else { return code };
    let Some(body) = rest.strip_suffix("```") else { return code };
    match body.split_once('\n') {
        Some((language, body)) if !language.contains(char::is_whitespace) => body,
        _ => body,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llm::conversation::BadArguments;

    fn call(arguments: Result<Value, &str>) -> ToolCall {
        ToolCall {
            id: "a".to_owned(),
            name: NAME.to_owned(),
            arguments: match arguments {
                Ok(value) => Ok(value.as_object().expect("an object").clone()),
                Err(raw) => Err(BadArguments { raw: raw.to_owned(), why: "bad".to_owned() }),
            },
        }
    }

    #[test]
    fn code_is_found_where_models_put_it() {
        let cases = [
            (Ok(json!({"code": "print(1)"})), "print(1)"),
            (Ok(json!({"code": "```python\nprint(1)\n```"})), "print(1)\n"),
            (Ok(json!({"python": "print(1)"})), "print(1)"),
            (Ok(json!({"program": "print(1)"})), "print(1)"),
            (Err("import os\nprint(1)"), "import os\nprint(1)"),
            (Err("```py\nprint(1)\n```"), "print(1)\n"),
        ];
        for (arguments, code) in cases {
            let request = read(&call(arguments.clone()), false);
            assert_eq!(
                request,
                Ok(Request { code: code.to_owned(), timeout: None }),
                "{arguments:?}"
            );
        }
    }

    #[test]
    fn a_time_limit_is_read_as_number_or_text() {
        for (timeout, seconds) in
            [(json!(5), Some(5)), (json!("7"), Some(7)), (json!(0), None), (json!({}), None)]
        {
            let request = read(&call(Ok(json!({"code": "1", "timeout": timeout}))), false);
            let timeout = request.expect("a request").timeout;
            assert_eq!(timeout, seconds.map(Duration::from_secs));
        }
    }

    #[test]
    fn what_cannot_be_read_is_told_to_the_model() {
        for (arguments, cut) in [
            (Ok(json!({})), false),
            (Ok(json!({"code": " "})), false),
            (Err("{\"code\": \"pri"), true),
            (Err("{\"code\": "), false),
        ] {
            assert!(read(&call(arguments), cut).is_err());
        }
        let unknown = ToolCall { name: "browser_search".to_owned(), ..call(Ok(json!({}))) };
        assert!(read(&unknown, false).expect_err("unknown").contains("run_python"));
    }
}
