//! Programs of our own that run in a sandbox elsewhere, and their answers. Pure.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::domain::file::MAX_PATH_BYTES;

const MAX_WORD_BYTES: usize = 256;

/// A text that no program knows before.
pub(super) fn mark() -> String {
    format!("{:032x}:", fastrand::u128(..))
}

/// A program of Python as one line. It runs in a namespace of its own, and what it is told comes to it
/// as data that it decodes, never as code.
pub(super) fn one_line(program: &str, told: &Value) -> String {
    let encoded = |text: &str| STANDARD.encode(text);
    let told = format!(
        "__import__('json').loads(__import__('base64').b64decode('{}'))",
        encoded(&told.to_string())
    );
    format!(
        "__import__('builtins').exec(__import__('base64').b64decode('{}').decode(), {{'told': {told}}})",
        encoded(program)
    )
}

/// Whether a sandbox's word is an absolute path.
pub(super) fn is_path(path: &str) -> bool {
    path.starts_with('/') && path.len() <= MAX_PATH_BYTES && !path.chars().any(char::is_control)
}

/// Whether a sandbox's word is one: ASCII letters, digits, and these besides.
pub(super) fn is_word(text: &str, besides: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || besides.contains(c);
    !text.is_empty() && text.len() <= MAX_WORD_BYTES && text.chars().all(fits)
}

/// Packages that a sandbox is asked for by name; to list all would take its time in each.
pub(super) const NOTABLE: [&str; 20] = [
    "beautifulsoup4",
    "ipython",
    "matplotlib",
    "nltk",
    "numpy",
    "opencv-python",
    "openpyxl",
    "pandas",
    "pillow",
    "plotly",
    "python-docx",
    "requests",
    "scikit-image",
    "scikit-learn",
    "scipy",
    "seaborn",
    "spacy",
    "sympy",
    "torch",
    "xarray",
];
