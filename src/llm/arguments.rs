//! The arguments of a call, however a service writes them. Pure.

use serde_json::{Map, Value};

use super::conversation::BadArguments;
use crate::domain::weight::{Weight, weigh};

/// Arguments of a call are a few texts and numbers.
const MAX_DEPTH: usize = 32;
const MAX_PARSED_BYTES: usize = 1 << 20;

/// A JSON text or the object itself; none when empty; a text inside a text is read once more.
pub(super) fn read(value: &Value) -> Result<Map<String, Value>, BadArguments> {
    let raw = match value {
        Value::Object(object) => return Ok(object.clone()),
        Value::Null => return Ok(Map::new()),
        Value::String(raw) if raw.trim().is_empty() => return Ok(Map::new()),
        Value::String(raw) => raw,
        other => return Err(bad(&other.to_string(), "not an object")),
    };
    let Weight { parsed_bytes, depth } = weigh(raw.as_bytes());
    if depth > MAX_DEPTH || parsed_bytes > MAX_PARSED_BYTES {
        return Err(bad("", "nested too deep, or of too many parts"));
    }
    match serde_json::from_str(raw) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(Value::Null) => Ok(Map::new()),
        Ok(Value::String(inner)) if weigh(inner.as_bytes()).depth > MAX_DEPTH => {
            Err(bad("", "nested too deep"))
        }
        Ok(Value::String(inner)) => match serde_json::from_str(&inner) {
            Ok(Value::Object(object)) => Ok(object),
            _ => Err(bad(&inner, "not an object")),
        },
        Ok(_) => Err(bad(raw, "not an object")),
        Err(error) => Err(bad(raw, &error.to_string())),
    }
}

fn bad(raw: &str, why: &str) -> BadArguments {
    BadArguments { raw: raw.to_owned(), why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn arguments_are_read_as_servers_send_them() {
        let code = Map::from_iter([("code".to_owned(), json!("1"))]);
        for arguments in
            [json!("{\"code\":\"1\"}"), json!({"code": "1"}), json!("\"{\\\"code\\\":\\\"1\\\"}\"")]
        {
            assert_eq!(read(&arguments), Ok(code.clone()), "{arguments}");
        }
        for arguments in [json!(""), json!(null), json!("null")] {
            assert_eq!(read(&arguments), Ok(Map::new()));
        }
        for arguments in [json!("{\"code\": \"print(1)"), json!("[1]"), json!([1]), json!("1 + 1")]
        {
            assert!(read(&arguments).is_err(), "{arguments}");
        }
        let deep =
            json!(format!("{{\"code\": \"1\", \"x\": {}1{}}}", "[".repeat(40), "]".repeat(40)));
        assert_eq!(read(&deep).expect_err("deep").raw, "", "what is not read is not kept");
    }
}
