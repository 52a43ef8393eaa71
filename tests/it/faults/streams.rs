//! Streams that are not told as they should be.

use super::Expect::{Answer, Unavailable};
use super::{Fault, answer_text, first, second};
use crate::support::model::{End, Index, Said, Shape, said_run};

/// Streams; the same as a whole is told in whole.
pub(super) fn all() -> Vec<Fault> {
    let shape = Shape::default;
    let two = || said_run(&["print(1)", "print(2)"]);
    let texted = || Said { text: "Let me see what is there.".to_owned(), ..two() };
    let index = |index| Shape { index, ..shape() };
    let cut = |after| Shape { cut_after: Some(after), ..shape() };
    let short = |after| Shape { short_after: Some(after), ..shape() };
    let failing = |after| Shape { error_after: Some(after), ..shape() };
    vec![
        first("stays-open", two().shaped(Shape { stays_open: true, ..shape() }), Answer(3)),
        second(
            "text-stays-open",
            answer_text().shaped(Shape { stays_open: true, ..shape() }),
            Answer(1),
        ),
        first("breaks-after-its-end", two().shaped(cut(99)), Answer(1)).streamed(Answer(3)),
        second("text-breaks-after-its-end", answer_text().shaped(cut(99)), Answer(1)),
        first("no-index", two().shaped(index(Index::Missing)), Answer(3)),
        first("same-index", two().shaped(index(Index::Same)), Answer(3)),
        first("no-done", two().shaped(Shape { no_done: true, ..shape() }), Answer(3)),
        second("no-done-text", answer_text().shaped(Shape { no_done: true, ..shape() }), Answer(1)),
        second("no-end-but-done", Said { end: End::Absent, ..answer_text() }, Answer(1)),
        first("late-fields", two().shaped(Shape { late: true, ..shape() }), Answer(3)),
        first("noise", two().shaped(Shape { noise: true, ..shape() }), Answer(3)),
        second("noise-in-text", answer_text().shaped(Shape { noise: true, ..shape() }), Answer(1)),
        first("crlf", two().shaped(Shape { crlf: true, ..shape() }), Answer(3)),
        second("torn-characters", answer_text().shaped(Shape { torn: true, ..shape() }), Answer(1)),
        first("told-whole", two().shaped(Shape { whole: true, ..shape() }), Answer(3)),
        first("cut-at-once", two().shaped(cut(0)), Answer(1)),
        first("cut-in-a-call", two().shaped(cut(3)), Answer(1)),
        first("short-in-a-call", two().shaped(short(3)), Answer(1)),
        first("cut-after-text", texted().shaped(cut(3)), Answer(1)).streamed(Unavailable(0)),
        first("short-after-text", texted().shaped(short(3)), Answer(1)).streamed(Unavailable(0)),
        second("cut-in-the-answer", answer_text().shaped(cut(3)), Answer(1))
            .streamed(Unavailable(1)),
        first("error-at-once", two().shaped(failing(0)), Answer(1)),
        first("error-in-a-call", two().shaped(failing(3)), Answer(1)),
        first("error-after-text", texted().shaped(failing(3)), Answer(1)).streamed(Unavailable(0)),
    ]
}
