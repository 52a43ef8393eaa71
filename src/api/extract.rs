//! What comes in, with problems instead of axum's plain-text rejections.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use serde::de::DeserializeOwned;
use serde_json::error::Category;
use tokio::sync::OwnedSemaphorePermit;

use super::ApiState;
use super::problem::Problem;
use crate::domain::id;

/// Bodies of this length are read without waiting for room.
const SMALL_BODY_BYTES: u64 = 64 * 1024;

/// Whose things the caller sees.
pub(super) struct Tenant(pub(super) id::Tenant);

/// A JSON body.
pub(super) struct Json<T>(pub(super) T);

/// Parts of the path.
pub(super) struct Path<T>(pub(super) T);

/// The query.
pub(super) struct Query<T>(pub(super) T);

impl FromRequestParts<ApiState> for Tenant {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &ApiState) -> Result<Self, Problem> {
        let tenant = parts.extensions.get::<id::Tenant>().cloned();
        Ok(Self(tenant.ok_or(crate::access::AccessError::Unauthorized)?))
    }
}

impl<T: DeserializeOwned> FromRequest<ApiState> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &ApiState) -> Result<Self, Problem> {
        if !is_json(request.headers()) {
            return Err(media_type("application/json"));
        }
        let _room = room(request.headers(), state).await?;
        let body =
            within(state.limits.transfer_seconds, Bytes::from_request(request, state)).await?;
        json(&body.map_err(|rejection| unread(&rejection))?).map(Self)
    }
}

impl<T: DeserializeOwned + Send> FromRequestParts<ApiState> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, Problem> {
        match axum::extract::Path::from_request_parts(parts, state).await {
            Ok(axum::extract::Path(value)) => Ok(Self(value)),
            Err(rejection) => {
                Err(Problem::new(StatusCode::BAD_REQUEST, "malformed_path", rejection.body_text()))
            }
        }
    }
}

impl<T: DeserializeOwned> FromRequestParts<ApiState> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, Problem> {
        match axum::extract::Query::from_request_parts(parts, state).await {
            Ok(axum::extract::Query(value)) => Ok(Self(value)),
            Err(rejection) => {
                Err(Problem::new(StatusCode::BAD_REQUEST, "malformed_query", rejection.body_text()))
            }
        }
    }
}

/// Reads JSON: 400 when it is none, 422 with a pointer when it is something else than wanted.
pub(super) fn json<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    let mut reader = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut reader);
    let value = value.map_err(|error| {
        let pointer = pointer(error.path());
        refused(error.inner(), Some(pointer))
    })?;
    reader.end().map_err(|error| refused(&error, None))?;
    Ok(value)
}

/// True when the content type is JSON.
pub(super) fn is_json(headers: &HeaderMap) -> bool {
    essence(headers).is_some_and(|mime| mime == "application/json" || mime.ends_with("+json"))
}

/// True when the content type is that of a form with files.
pub(super) fn is_form(headers: &HeaderMap) -> bool {
    essence(headers).as_deref() == Some("multipart/form-data")
}

/// The content type without its parameters, in lower case.
pub(super) fn essence(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    Some(value.split(';').next()?.trim().to_ascii_lowercase())
}

/// The problem of a content type that is not the wanted one.
pub(super) fn media_type(wanted: &str) -> Problem {
    let detail = format!("the Content-Type must be {wanted}");
    Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", detail)
}

/// Room for a body among those that are read now: as much as it says, or may have. A small one needs
/// none, as connections are bounded: nobody can keep everybody waiting with large ones that never come.
pub(super) async fn room(
    headers: &HeaderMap,
    state: &ApiState,
) -> Result<Option<OwnedSemaphorePermit>, Problem> {
    let most = state.limits.body_bytes;
    let length =
        headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    let length = length.unwrap_or(most).clamp(1, most);
    if length <= SMALL_BODY_BYTES {
        return Ok(None);
    }
    let all = ApiState::body_places(state.limits.bodies_bytes);
    let places = ApiState::body_places(length).min(all);
    let places =
        Arc::clone(&state.bodies).acquire_many_owned(u32::try_from(places).unwrap_or(u32::MAX));
    match tokio::time::timeout(state.limits.transfer_seconds, places).await {
        Ok(Ok(places)) => Ok(Some(places)),
        Ok(Err(_)) | Err(_) => {
            let detail = "too many large bodies are read at once; try again later";
            Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_bodies", detail))
        }
    }
}

/// Gives up on a body that does not come.
pub(super) async fn within<F: Future>(limit: Duration, body: F) -> Result<F::Output, Problem> {
    tokio::time::timeout(limit, body).await.map_err(|_| {
        Problem::new(StatusCode::REQUEST_TIMEOUT, "body_too_slow", "the body took too long")
    })
}

fn unread(rejection: &BytesRejection) -> Problem {
    if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
        let detail = "the body is larger than its limit";
        return Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", detail);
    }
    Problem::new(StatusCode::BAD_REQUEST, "body_cut", "the body broke off")
}

fn refused(error: &serde_json::Error, pointer: Option<String>) -> Problem {
    match error.classify() {
        Category::Data => {
            let problem =
                Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", error.to_string());
            pointer.into_iter().fold(problem, Problem::at)
        }
        Category::Syntax | Category::Eof | Category::Io => {
            let detail = format!("the body is not valid JSON: {error}");
            Problem::new(StatusCode::BAD_REQUEST, "malformed_json", detail)
        }
    }
}

/// RFC 6901.
fn pointer(path: &serde_path_to_error::Path) -> String {
    use serde_path_to_error::Segment;
    let part = |segment: &Segment| match segment {
        Segment::Seq { index } => format!("/{index}"),
        Segment::Map { key } => format!("/{}", key.replace('~', "~0").replace('/', "~1")),
        Segment::Enum { .. } | Segment::Unknown => String::new(),
    };
    path.iter().map(part).collect()
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "read by serde alone")]
    struct Wanted {
        a: u32,
        b: Option<Inner>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "read by serde alone")]
    struct Inner {
        c: Vec<u32>,
    }

    fn problem(body: &str) -> (u64, String) {
        let problem = json::<Wanted>(body.as_bytes()).expect_err("a bad body");
        let problem = serde_json::to_value(&problem).expect("JSON");
        let pointer = problem["errors"][0]["pointer"].as_str().unwrap_or("none").to_owned();
        (problem["status"].as_u64().unwrap_or(0), pointer)
    }

    #[test]
    fn what_is_wrong_is_pointed_at() {
        assert_eq!(problem("{"), (400, "none".into()));
        assert_eq!(problem("{\"a\": 1} x"), (400, "none".into()));
        assert_eq!(problem("{\"a\": \"x\"}"), (422, "/a".into()));
        assert_eq!(problem("{\"a\": 1, \"z/~\": 1}"), (422, "/z~1~0".into()));
        assert_eq!(problem("{\"a\": 1, \"b\": {\"c\": [1, -1]}}"), (422, "/b/c/1".into()));
        assert_eq!(problem("{\"a\": 1, \"b\": {\"d\": 1}}"), (422, "/b/d".into()));
        assert_eq!(problem("{}"), (422, String::new()));
    }
}
