//! Services that fail.

use serde_json::json;

use super::Expect::{Answer, Timeout, Unavailable};
use super::{Fault, always, error, first, http, said, second};
use crate::support::model::{Reply, Shape};

/// Statuses.
pub(super) fn statuses() -> Vec<Fault> {
    let soon =
        || vec![("retry-after", "0".to_owned()), ("content-type", "application/json".to_owned())];
    let json_type = || vec![("content-type", "application/json".to_owned())];
    let limited = error("rate_limit_error", "slow down").to_string();
    let elsewhere = vec![("location", "http://127.0.0.1:1/".to_owned())];
    vec![
        first("limited-once", http(429, soon(), &limited), Answer(1)),
        always("limited-for-ever", http(429, soon(), &limited), Unavailable(0)),
        first("fails-once", http(500, soon(), "boom"), Answer(1)),
        second("fails-once-later", http(503, soon(), ""), Answer(1)),
        first(
            "overloaded-once",
            Reply::Fault(529, error("overloaded_error", "Overloaded")),
            Answer(1),
        ),
        always("fails-for-ever", http(500, soon(), "<html>"), Unavailable(0)),
        first("gateway-timeout-once", http(504, soon(), ""), Answer(1)),
        always(
            "refuses-the-key",
            Reply::Fault(401, error("authentication_error", "no")),
            Unavailable(0),
        ),
        second(
            "refuses-the-request",
            Reply::Fault(400, error("invalid_request_error", "no")),
            Unavailable(1),
        ),
        always("not-there", http(404, json_type(), "{}"), Unavailable(0)),
        always("redirects", http(302, elsewhere, ""), Unavailable(0)),
    ]
}

/// Bodies and connections.
pub(super) fn bodies() -> Vec<Fault> {
    let events = || vec![("content-type", "text/event-stream".to_owned())];
    let hostile = "data: {\"type\": \"message_start\", \"message\": {\"content\": [1, [1], \"x\"]}}\n\n\
        data: {\"type\": \"content_block_delta\", \"delta\": {\"type\": \"text_delta\", \"text\": \"x\"}}\n\n\
        data: {\"type\": \"message_delta\", \"delta\": {\"content\": [1]}, \"usage\": 7}\n\n\
        data: {\"type\": \"content_block_start\", \"content_block\": 5}\n\n\
        data: {\"choices\": [{\"delta\": {\"tool_calls\": {\"a\": 1}, \"content\": {}, \"role\": 3}}]}\n\n\
        data: {\"choices\": [{\"delta\": {\"tool_calls\": [1, [2], null, {\"function\": 3, \"index\": \"x\"}]}}]}\n\n\
        data: {\"choices\": 7, \"usage\": [], \"type\": {}}\n\ndata: [[]]\n\ndata: 5\n\n";
    let json_type = || vec![("content-type", "application/json".to_owned())];
    let long = json!({"error": {"code": "context_length_exceeded", "message": "This model's maximum context length is 8 tokens"}});
    vec![
        first(
            "error-with-200",
            http(200, json_type(), &error("api_error", "x").to_string()),
            Answer(1),
        ),
        always(
            "error-as-text-with-200",
            http(200, json_type(), "{\"error\": \"no\"}"),
            Unavailable(0),
        ),
        always("hostile-events", http(200, events(), hostile), Unavailable(0)),
        always("no-events", http(200, events(), "hello\n\ndata: nothing\n\n"), Unavailable(0)),
        always("not-json", http(200, json_type(), "hello"), Unavailable(0)),
        always("empty-body", http(200, json_type(), ""), Unavailable(0)),
        always("nothing-in-it", http(200, json_type(), "{}"), Unavailable(0)),
        always("a-list", http(200, json_type(), "[]"), Unavailable(0)),
        always(
            "no-message",
            http(200, json_type(), "{\"choices\": [], \"content\": 1}"),
            Unavailable(0),
        ),
        second("too-long-once", Reply::Fault(400, long.clone()), Answer(1)),
        second(
            "too-long-by-its-words",
            Reply::Fault(400, error("invalid_request_error", "prompt is too long: 9 tokens > 8")),
            Answer(1),
        ),
        always("too-long-for-ever", Reply::Fault(400, long), Unavailable(0)),
        first("drops-once", Reply::Drop, Answer(1)),
        always("drops-for-ever", Reply::Drop, Unavailable(0)),
        always("never-answers", Reply::Never, Timeout),
        always(
            "never-ends",
            said().shaped(Shape { endless: true, ..Shape::default() }),
            Unavailable(0),
        ),
    ]
}
