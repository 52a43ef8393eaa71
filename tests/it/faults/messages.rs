//! Messages that are not what they should be.

use serde_json::json;

use super::Expect::{Answer, Failure, Unavailable};
use super::{ANSWER, Fault, always, answer_text, first, python, second, swapped};
use crate::support::model::{Arguments, Call, End, Reply, Said, call, run, said_run, text};

const LONG_NAME: &str =
    "a_name_that_is_longer_than_any_service_would_ever_take_back_from_anybody_who_sends_it";

/// What stands where the code should.
pub(super) fn arguments() -> Vec<Fault> {
    let bad = "{\"code\": \"print(1)";
    vec![
        first("no-fault", text(ANSWER), Answer(0)),
        first("empty-arguments", python(""), Answer(1)),
        first("no-arguments", Call { arguments: Arguments::Absent, ..python("") }, Answer(1)),
        first("cut-json", python(bad), Answer(1)),
        first(
            "cut-by-a-limit",
            Said { calls: vec![python(bad)], end: End::Cut, ..Said::default() },
            Answer(1),
        ),
        first("bare-code", python("x = 6\nprint(x * 7)"), Answer(2)),
        first("fenced-code", python("```python\nprint(1)\n```"), Answer(2)),
        first(
            "fenced-inside",
            python(&json!({"code": "```python\nprint(1)\n```"}).to_string()),
            Answer(2),
        ),
        first(
            "encoded-twice",
            python(&json!(json!({"code": "1"}).to_string()).to_string()),
            Answer(2),
        ),
        first("other-name", python("{\"python\": \"1\"}"), Answer(2)),
        first("unknown-name", python("{\"program\": \"1\"}"), Answer(2)),
        first("code-of-another-type", python("{\"code\": [\"1\"]}"), Answer(1)),
        first("blank-code", python("{\"code\": \" \"}"), Answer(1)),
        first("arguments-a-list", python("[\"1\"]"), Answer(1)),
        first("arguments-a-number", python("42"), Answer(2)),
        first("arguments-the-other-way", swapped(json!({"code": "1"})), Answer(2)),
        first("absurd-timeout", python("{\"code\": \"1\", \"timeout\": 1e300}"), Answer(2)),
        first("timeout-as-text", python("{\"code\": \"1\", \"timeout\": \"5\"}"), Answer(2)),
    ]
}

/// What is odd around the calls.
pub(super) fn calls() -> Vec<Fault> {
    let bad = "{\"code\": \"print(1)";
    vec![
        first("dotted-tool", call("functions.run_python", "{\"code\": \"1\"}"), Answer(1)),
        first("tool-with-an-odd-name", call("a tool \u{1f600}", "{}"), Answer(1)),
        first("tool-with-a-long-name", call(LONG_NAME, "{}"), Answer(1)),
        first(
            "cut-before-the-code",
            Said { calls: vec![python("{}")], end: End::Cut, ..Said::default() },
            Answer(1),
        ),
        first(
            "calls-without-end",
            Said { calls: vec![python("{}"); 300], ..Said::default() },
            Unavailable(0),
        ),
        first("unknown-tool", call("browser_search", "{\"q\": \"x\"}"), Answer(1)),
        first("no-tool-name", call("", "{\"code\": \"1\"}"), Answer(1)),
        first("no-id", Call { id: Some(""), ..python("{\"code\": \"1\"}") }, Answer(2)),
        first("no-type", Call { untyped: true, ..python("{\"code\": \"1\"}") }, Answer(2)),
        first(
            "one-id-twice",
            Said {
                calls: vec![
                    Call { id: Some("a"), ..python("{\"code\": \"1\"}") },
                    Call { id: Some("a"), ..python("{\"code\": \"2\"}") },
                ],
                ..Said::default()
            },
            Answer(3),
        ),
        first(
            "good-and-bad-together",
            Said {
                calls: vec![python("{\"code\": \"1\"}"), python(bad), call("x", "{}")],
                ..Said::default()
            },
            Answer(2),
        ),
        first("end-says-text", Said { end: End::Wrong, ..said_run(&["1"]) }, Answer(2)),
        second("end-says-calls", Said { end: End::Wrong, ..answer_text() }, Answer(1)),
        first("unknown-end", Said { end: End::Unknown, ..said_run(&["1"]) }, Answer(2)),
        first(
            "text-and-calls",
            Said { text: "Let me see.".to_owned(), ..said_run(&["1"]) },
            Answer(2),
        ),
        first(
            "thinking",
            Said { thinking: Some("hm é".to_owned()), ..said_run(&["1"]) },
            Answer(2),
        ),
        first(
            "odd-fields",
            Said { text: "So.".to_owned(), odd: true, ..said_run(&["1"]) },
            Answer(2),
        ),
        first("not-counted", Said { uncounted: true, ..said_run(&["1"]) }, Answer(2)),
    ]
}

/// Texts, and what never ends.
pub(super) fn texts() -> Vec<Fault> {
    let pretended = r#"{"name": "execute", "arguments": {"code": "print(1)"}}"#;
    let never_ends: Vec<Reply> = (0..30).map(|number| run(&[&number.to_string()])).collect();
    let fails: Vec<Reply> = (0..30).map(|number| run(&[&format!("1 / 0 # {number}")])).collect();
    vec![
        first("empty", text(""), Answer(1)),
        first("white-space", text(" \n\t"), Answer(1)),
        second("empty-later", text(""), Answer(1)),
        always("always-empty", text(""), Failure("model_empty", 0)),
        first("pretended-call", text(pretended), Answer(2)),
        first(
            "pretended-in-marks",
            text(&format!("<tool_call>\n{pretended}\n</tool_call>")),
            Answer(2),
        ),
        first("pretended-in-a-fence", text(&format!("```json\n{pretended}\n```")), Answer(2)),
        always("same-call-for-ever", run(&["1"]), Failure("max_turns", 3)),
        Fault {
            name: "never-ends",
            script: never_ends,
            expect: Failure("max_turns", 9),
            streamed: None,
        },
        Fault {
            name: "fails-for-ever",
            script: fails,
            expect: Failure("limit", 5),
            streamed: None,
        },
        always("unknown-tool-for-ever", call("x", "{}"), Failure("max_turns", 0)),
        always("cut-json-for-ever", python("{\"code"), Failure("max_turns", 0)),
    ]
}
