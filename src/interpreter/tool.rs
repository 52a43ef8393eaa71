//! The model's one tool: how it is offered, read and answered.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::domain::execution::{Execution, ExecutionStatus};
use crate::domain::session::Session;
use crate::interpreter::Task;
use crate::llm::{Image, Tool, ToolCall};

const NAME: &str = "run_python";
/// Characters of one stream that are fed back, half from its start and half from its end.
const MAX_STREAM: usize = 20_000;
/// Characters of the last expression's value that are fed back.
const MAX_VALUE: usize = 10_000;
const MAX_IMAGES: usize = 4;
const MAX_IMAGE_BASE64: usize = 5 << 20;
const MAX_FILES: usize = 50;
/// Other names that models give the one argument.
const CODE_NAMES: [&str; 5] = ["code", "python", "source", "script", "input"];

/// What a call asks for.
#[derive(Debug, PartialEq)]
pub(super) struct Request {
    pub(super) code: String,
    pub(super) timeout: Option<Duration>,
}

/// The tool as the model is told of it, true to the session.
pub(super) fn definition(task: &Task, session: &Session) -> Tool {
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
        return Err(format!(
            "status: error\nthere is no tool {:?}; the only tool is {NAME}",
            call.name
        ));
    }
    match &call.arguments {
        Ok(arguments) => code_in(arguments),
        Err(_) if cut => {
            Err("status: error\nthe arguments were cut off: write shorter code, in several calls"
                .to_owned())
        }
        // bare code in place of JSON
        Err(bad) if !bad.raw.trim_start().starts_with(['{', '[']) => {
            Ok(Request { code: without_fence(&bad.raw).to_owned(), timeout: None })
        }
        Err(bad) => Err(format!("status: error\nthe arguments are not a JSON object: {}", bad.why)),
    }
}

fn code_in(arguments: &Map<String, Value>) -> Result<Request, String> {
    let named = CODE_NAMES.iter().find_map(|name| arguments.get(*name)?.as_str());
    let only = match arguments.values().collect::<Vec<_>>().as_slice() {
        [Value::String(only)] => Some(only.as_str()),
        _ => None,
    };
    let Some(code) = named.or(only).filter(|code| !code.trim().is_empty()) else {
        return Err("status: error\nthe argument `code` is missing or empty".to_owned());
    };
    let seconds =
        arguments.get("timeout").and_then(Value::as_f64).filter(|seconds| *seconds >= 1.0);
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

/// What the model is told of an execution, in a fixed order.
pub(super) fn told(execution: &Execution) -> String {
    let status = match execution.status {
        ExecutionStatus::Success => "ok",
        ExecutionStatus::Error => "error",
        ExecutionStatus::Timeout => "timeout",
        ExecutionStatus::Unknown => {
            "unknown: the code may or may not have run; do not simply run it again"
        }
    };
    let mut text = format!("status: {status}\n");
    let mut part = |name: &str, content: &str, most: usize| {
        if !content.is_empty() {
            text.push_str(&format!("{name}:\n{}\n", shortened(&plain(content), most)));
        }
    };
    part("result", execution.value().unwrap_or_default(), MAX_VALUE);
    part("stdout", &execution.stdout, MAX_STREAM);
    part("stderr", &execution.stderr, MAX_STREAM);
    part("error", execution.error.as_deref().unwrap_or_default(), MAX_STREAM);
    let images = pictures(execution).count();
    if images > 0 {
        text.push_str(&format!("images shown: {images}\n"));
    }
    if execution.state_lost {
        text.push_str("All variables and imports are lost: the interpreter was started anew.\n");
    }
    if !execution.files.is_empty() {
        text.push_str("files created or changed:\n");
        for file in execution.files.iter().take(MAX_FILES) {
            text.push_str(&format!(
                "- {} ({} bytes)\n",
                Value::from(file.path.as_str()),
                file.size_bytes
            ));
        }
    }
    text
}

/// What the rich results of an execution take, roughly.
pub(super) fn outputs_bytes(execution: &Execution) -> usize {
    let size = |value: &Value| value.as_str().map_or_else(|| value.to_string().len(), str::len);
    execution.outputs.iter().flat_map(|output| output.data.values()).map(size).sum()
}

/// The pictures that the execution showed, for a model that reads them.
pub(super) fn images(execution: &Execution) -> Vec<Image> {
    pictures(execution).take(MAX_IMAGES).collect()
}

fn pictures(execution: &Execution) -> impl Iterator<Item = Image> + '_ {
    execution.outputs.iter().filter_map(|output| {
        ["image/png", "image/jpeg"].iter().find_map(|mime| {
            let base64 = output.data.get(*mime)?.as_str()?.trim();
            let fits = base64.len() <= MAX_IMAGE_BASE64;
            fits.then(|| Image { mime: (*mime).to_owned(), base64: base64.replace('\n', "") })
        })
    })
}

/// Without terminal escapes, and with each line as a carriage return left it.
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '\u{1b}' => {
                if characters.next_if_eq(&'[').is_some() {
                    while characters.next().is_some_and(|c| !('@'..='~').contains(&c)) {}
                }
            }
            '\r' if characters.peek().is_none_or(|next| *next == '\n') => {}
            '\r' => out.truncate(out.rfind('\n').map_or(0, |end| end + 1)),
            other => out.push(other),
        }
    }
    out
}

fn shortened(text: &str, most: usize) -> String {
    let count = text.chars().count();
    if count <= most {
        return text.trim_end_matches('\n').to_owned();
    }
    let head: String = text.chars().take(most / 2).collect();
    let tail: String = text.chars().skip(count - most / 2).collect();
    format!(
        "{head}\n[... {} characters cut ...]\n{}",
        count - most / 2 * 2,
        tail.trim_end_matches('\n')
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llm::BadArguments;

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

    #[test]
    fn the_models_view_is_plain() {
        assert_eq!(plain("a\u{1b}[31mred\u{1b}[0m"), "ared");
        assert_eq!(plain("x\n\r0\r1\r2"), "x\n2");
        assert_eq!(plain("a\r\nb"), "a\nb");
        assert_eq!(shortened("abcdefghij", 4), "ab\n[... 6 characters cut ...]\nij");
    }
}
