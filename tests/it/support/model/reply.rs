//! What a scripted model says, in neutral words, and what goes wrong with it.

use serde_json::{Value, json};

/// What the stub answers to one request.
#[derive(Clone)]
pub enum Reply {
    /// A message.
    Said(Said),
    /// A status with a JSON body.
    Fault(u16, Value),
    /// Anything else that can come over HTTP.
    Http { status: u16, headers: Vec<(&'static str, String)>, body: String },
    /// No answer until the caller goes away.
    Never,
    /// The connection ends without an answer.
    Drop,
}

/// A message, and how it is told.
#[derive(Clone, Default)]
pub struct Said {
    pub text: String,
    pub calls: Vec<Call>,
    pub thinking: Option<String>,
    pub end: End,
    pub shape: Shape,
    /// No count of tokens comes with it.
    pub uncounted: bool,
    /// Text is a list of parts, and there are fields that nobody knows.
    pub odd: bool,
}

/// One call.
#[derive(Clone)]
pub struct Call {
    /// The stub's own when None, absent when empty.
    pub id: Option<&'static str>,
    pub name: &'static str,
    pub arguments: Arguments,
    pub untyped: bool,
}

/// How the arguments are written.
#[derive(Clone)]
pub enum Arguments {
    /// As this text, where the wire writes them as text; as what the text says, where it does not.
    Text(String),
    /// The other way than the wire does.
    Swapped(Value),
    Absent,
}

/// What is told of the end.
#[derive(Clone, Copy, Default, PartialEq)]
pub enum End {
    #[default]
    Natural,
    Cut,
    /// A call's end with a text, a text's with calls.
    Wrong,
    Unknown,
    Absent,
}

/// How a message is told as a stream.
#[derive(Clone, Default)]
pub struct Shape {
    pub index: Index,
    /// The mark at the end is missing.
    pub no_done: bool,
    /// It breaks off after so many events; a whole one in the middle.
    pub cut_after: Option<usize>,
    /// It ends without breaking after so many events.
    pub short_after: Option<usize>,
    /// An error comes after so many events; a whole one is nothing but the error.
    pub error_after: Option<usize>,
    /// Comments, pings and events that nobody knows stand between.
    pub noise: bool,
    pub crlf: bool,
    /// A few bytes at a time, characters torn apart.
    pub torn: bool,
    /// Names and ids of calls come late.
    pub late: bool,
    /// It is told whole, whatever was asked for.
    pub whole: bool,
    /// The connection stays open after the end.
    pub stays_open: bool,
    /// It goes on for ever.
    pub endless: bool,
}

#[derive(Clone, Copy, Default, PartialEq)]
pub enum Index {
    #[default]
    Own,
    Missing,
    Same,
}

/// A text as the answer.
pub fn text(text: &str) -> Reply {
    Reply::Said(Said { text: text.to_owned(), ..Said::default() })
}

/// Calls of the tool with these codes.
pub fn run(codes: &[&str]) -> Reply {
    said_run(codes).into()
}

pub fn said_run(codes: &[&str]) -> Said {
    let call = |code: &&str| call("run_python", &json!({"code": code}).to_string());
    Said { calls: codes.iter().map(call).collect(), ..Said::default() }
}

/// A call with these arguments, as they are written.
pub fn call(name: &'static str, arguments: &str) -> Call {
    Call { id: None, name, arguments: Arguments::Text(arguments.to_owned()), untyped: false }
}

impl From<Said> for Reply {
    fn from(said: Said) -> Self {
        Self::Said(said)
    }
}

impl From<Call> for Reply {
    fn from(call: Call) -> Self {
        Said { calls: vec![call], ..Said::default() }.into()
    }
}

impl Said {
    pub fn shaped(self, shape: Shape) -> Reply {
        Reply::Said(Self { shape, ..self })
    }
}

/// Nearly equal parts of a text.
pub fn pieces(text: &str) -> Vec<String> {
    let characters: Vec<char> = text.chars().collect();
    let size = characters.len().div_ceil(3).max(1);
    characters.chunks(size).map(|piece| piece.iter().collect()).collect()
}
