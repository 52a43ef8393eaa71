//! What a cell puts out, gathered from E2B's lines within bounds: pure.

use serde_json::Map;

use super::lines::{Line, Read, Shown};
use crate::domain::event::{Event, OutputSink};
use crate::domain::execution::{ErrorDetail, Execution, Output};
use crate::sandbox::outcome::error_detail;
use crate::sandbox::streams::{MAX_OUTPUTS_BYTES, Stream, Streams};

/// Rich results of one cell.
const MAX_OUTPUTS: usize = 10_000;
/// Lines of one cell; more are a flood that ends it.
const MAX_LINES: u64 = 4_000_000;

/// How the first line of a traceback ends.
const LAST: &str = "(most recent call last)";

/// E2B's names for kinds of data, and theirs in the rest of the world. `data` and `chart` are E2B's
/// own kinds, and bear the names that its kernels give them.
const KINDS: [(&str, &str); 12] = [
    ("text", "text/plain"),
    ("html", "text/html"),
    ("markdown", "text/markdown"),
    ("svg", "image/svg+xml"),
    ("png", "image/png"),
    ("jpeg", "image/jpeg"),
    ("pdf", "application/pdf"),
    ("latex", "text/latex"),
    ("json", "application/json"),
    ("javascript", "application/javascript"),
    ("data", "e2b/data"),
    ("chart", "e2b/chart"),
];

/// What the code interpreter says of itself in the midst of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The kernel's process ended.
    KernelDied,
    /// It lost its kernel: what became of the code is not known.
    LostKernel,
}

/// Gathers one cell.
pub(super) struct Collector {
    streams: Streams,
    outputs: Vec<Output>,
    outputs_bytes: usize,
    dropped: bool,
    lossy: bool,
    pub(super) lines: u64,
    pub(super) count: Option<u32>,
    pub(super) error: Option<ErrorDetail>,
    pub(super) trouble: Option<Trouble>,
    pub(super) is_complete: bool,
}

impl Collector {
    pub(super) fn new(output_cap: usize) -> Self {
        Self {
            streams: Streams::new(output_cap),
            outputs: Vec::new(),
            outputs_bytes: 0,
            dropped: false,
            lossy: false,
            lines: 0,
            count: None,
            error: None,
            trouble: None,
            is_complete: false,
        }
    }

    /// True when there have been more lines than any cell has reason to make.
    pub(super) fn is_flooded(&self) -> bool {
        self.lines > MAX_LINES
    }

    pub(super) fn take(&mut self, read: Read, sink: &OutputSink) {
        self.lines += 1;
        match read {
            Read::Line(line, bytes) => self.line(line, bytes, sink),
            Read::Lossy(line, bytes) => {
                self.lossy = true;
                self.line(line, bytes, sink);
            }
            Read::Dropped => self.dropped = true,
        }
    }

    fn line(&mut self, line: Line, bytes: usize, sink: &OutputSink) {
        match line {
            Line::Stdout { text } => self.streams.push(Stream::Stdout, text.as_bytes(), sink),
            Line::Stderr { text } => self.streams.push(Stream::Stderr, text.as_bytes(), sink),
            Line::Result(shown) => self.show(*shown, bytes, sink),
            Line::Error { name, value, traceback } => self.fail(name, value, traceback),
            Line::NumberOfExecutions { execution_count } => self.count = Some(execution_count),
            Line::EndOfExecution => self.is_complete = true,
            Line::Keepalive | Line::Unknown => {}
        }
    }

    fn show(&mut self, shown: Shown, bytes: usize, sink: &OutputSink) {
        let output = output(shown);
        if sink.is_read() {
            sink.send(Event::Output(output.clone()));
        }
        if self.outputs.len() >= MAX_OUTPUTS || self.outputs_bytes + bytes > MAX_OUTPUTS_BYTES {
            self.dropped = true;
            return;
        }
        self.outputs_bytes += bytes;
        self.outputs.push(output);
    }

    /// An error without a traceback is the code interpreter's own word; code's errors have one.
    fn fail(&mut self, name: String, message: String, traceback: String) {
        let trouble = match name.as_str() {
            "ContextRestarting" => Some(Trouble::KernelDied),
            "WebSocketError" | "UnexpectedEndOfExecution" => Some(Trouble::LostKernel),
            _ => None,
        };
        if let Some(trouble) = trouble.filter(|_| traceback.is_empty()) {
            self.trouble = self.trouble.or(Some(trouble));
            return;
        }
        self.error.get_or_insert_with(|| {
            let traceback = with_lines(&without_colours(&traceback));
            let line = line_in(&traceback);
            error_detail(name, message, traceback, line)
        });
    }

    /// What was printed, where that is all that is wanted.
    pub(super) fn into_stdout(self) -> String {
        self.streams.into_stdout()
    }

    /// Puts what was gathered into the execution: streams, outputs and the code's own error.
    pub(super) fn finish(self, execution: &mut Execution) {
        execution.truncated |= self.dropped;
        execution.lossy |= self.lossy;
        self.streams.finish(execution);
        execution.outputs = self.outputs;
        execution.error_detail = self.error;
        execution.execution_count = self.count;
    }
}

fn output(shown: Shown) -> Output {
    let Shown { is_main_result, extra, mut kinds } = shown;
    let mut data = Map::new();
    for (kind, mime) in KINDS {
        if let Some(value) = kinds.remove(kind).filter(|value| !value.is_null()) {
            data.insert(mime.to_owned(), value);
        }
    }
    for (mime, value) in extra {
        data.entry(mime).or_insert(value);
    }
    Output { data, metadata: Map::new(), main: is_main_result }
}

/// A traceback as it was before its parts were joined without the ends of their lines.
fn with_lines(traceback: &str) -> String {
    let text = traceback.trim_start_matches('-');
    let text = if text.len() + 20 < traceback.len() { text } else { traceback };
    text.replacen(LAST, &format!("{LAST}\n"), 1).replacen(
        &format!("{LAST}\n\n"),
        &format!("{LAST}\n"),
        1,
    )
}

/// A traceback without the colours that a program may put in.
fn without_colours(text: &str) -> String {
    let mut parts = text.split("\u{1b}[");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| !(c.is_ascii_digit() || c == ';'));
        match end.filter(|end| part[*end..].starts_with('m')) {
            Some(end) => plain.push_str(&part[end + 1..]),
            None => {
                plain.push_str("\u{1b}[");
                plain.push_str(part);
            }
        }
    }
    plain
}

/// The line of the cell where it arose, as IPython writes it.
fn line_in(traceback: &str) -> Option<u32> {
    let after = traceback.rsplit_once("Cell In[")?.1;
    let after = after.split_once("], line ")?.1;
    let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn gathered(lines: &[Value]) -> Collector {
        let mut collector = Collector::new(1000);
        for line in lines {
            let text = line.to_string();
            let line = serde_json::from_str(&text).expect("a line");
            collector.take(Read::Line(line, text.len()), &OutputSink::discard());
        }
        collector
    }

    #[test]
    fn every_kind_of_data_keeps_its_value_under_its_mime_type() {
        let values = json!({
            "type": "result", "is_main_result": true, "text": "t", "html": "<b>", "markdown": "*m*",
            "svg": "<svg/>", "png": "iV", "jpeg": "/9", "pdf": "JV", "latex": "$x$",
            "json": [1, {"a": null}], "javascript": "1", "data": {"a": [1, null]},
            "chart": {"type": "line", "elements": []},
            "extra": {"application/vnd.plotly.v1+json": {"data": []}}
        });
        let collector = gathered(&[values]);
        let expected = json!({
            "text/plain": "t", "text/html": "<b>", "text/markdown": "*m*", "image/svg+xml": "<svg/>",
            "image/png": "iV", "image/jpeg": "/9", "application/pdf": "JV", "text/latex": "$x$",
            "application/json": [1, {"a": null}], "application/javascript": "1",
            "e2b/data": {"a": [1, null]}, "e2b/chart": {"type": "line", "elements": []},
            "application/vnd.plotly.v1+json": {"data": []}
        });
        let [output] = collector.outputs.as_slice() else { panic!("one") };
        assert_eq!(Value::Object(output.data.clone()), expected);
        assert!(output.main);
    }

    #[test]
    fn the_services_troubles_are_told_from_the_codes_errors() {
        let error = |name: &str, traceback: &str| json!({"type": "error", "name": name, "value": "v", "traceback": traceback});
        assert_eq!(gathered(&[error("ContextRestarting", "")]).trouble, Some(Trouble::KernelDied));
        let both = [error("WebSocketError", ""), error("UnexpectedEndOfExecution", "")];
        assert_eq!(gathered(&both).trouble, Some(Trouble::LostKernel));
        let own = gathered(&[error("ContextRestarting", "Cell In[3], line 2")]);
        assert_eq!((own.trouble, own.error.and_then(|error| error.line)), (None, Some(2)));
        let user = gathered(&[error("ValueError", "x"), error("WebSocketError", "")]);
        assert_eq!(user.trouble, Some(Trouble::LostKernel));
        assert_eq!(user.error.map(|error| error.name), Some("ValueError".to_owned()));
    }

    #[test]
    fn a_traceback_has_its_line_and_no_colours() {
        let plain = without_colours("\u{1b}[0;31mE\u{1b}[0m: \u{1b}[2J x");
        assert_eq!(plain, "E: \u{1b}[2J x");
        assert_eq!(line_in("Cell In[1], line 2, in f()\nCell In[5], line 7\n"), Some(7));
        assert_eq!(line_in("no line"), None);
        let joined =
            format!("{}E Traceback (most recent call last)Cell In[1], line 1", "-".repeat(75));
        assert_eq!(with_lines(&joined), "E Traceback (most recent call last)\nCell In[1], line 1");
        assert_eq!(with_lines("--x (most recent call last)\ny"), "--x (most recent call last)\ny");
    }

    #[test]
    fn outputs_stay_within_their_bounds() {
        let mut collector = Collector::new(1000);
        for _ in 0..MAX_OUTPUTS + 1 {
            let line = serde_json::from_value(json!({"type": "result", "text": "x"}));
            collector.take(Read::Line(line.expect("a line"), 10), &OutputSink::discard());
        }
        assert_eq!((collector.outputs.len(), collector.dropped), (MAX_OUTPUTS, true));
        let line = serde_json::from_value(json!({"type": "result", "text": "x"})).expect("a line");
        let mut collector = Collector::new(1000);
        collector.take(Read::Line(line, MAX_OUTPUTS_BYTES + 1), &OutputSink::discard());
        assert_eq!((collector.outputs.len(), collector.dropped), (0, true));
    }
}
