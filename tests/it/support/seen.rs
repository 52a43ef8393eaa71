//! Notes what the tests have seen of the API, for `scripts/api-coverage`.

use std::fs::File;
use std::io::Write;
use std::sync::{Mutex, OnceLock};

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

/// Longer bodies tell no new fields.
const MAX_BODY_BYTES: usize = 256 * 1024;

/// Notes an answer in the file that the environment names, if it names one.
pub fn note(method: &Method, path: &str, status: StatusCode, body: Option<&Value>) {
    static SEEN: OnceLock<Option<Mutex<File>>> = OnceLock::new();
    let open = || {
        let path = std::env::var_os("INTERPRETERD_TEST_SEEN")?;
        Some(Mutex::new(File::options().append(true).create(true).open(path).unwrap()))
    };
    let Some(file) = SEEN.get_or_init(open) else { return };
    let body = body.filter(|body| body.to_string().len() < MAX_BODY_BYTES);
    let line =
        json!({"method": method.as_str(), "path": path, "status": status.as_u16(), "body": body});
    let mut file = file.lock().unwrap();
    writeln!(file, "{line}").unwrap();
}
