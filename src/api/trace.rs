//! An id, a log line and a count for each request.

use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::Response;

use super::ApiState;
use super::problem::Refused;
use crate::domain::execution::milliseconds;
use crate::domain::id::ExecutionId;

const HEADER: HeaderName = HeaderName::from_static("x-request-id");
const MAX_CHARACTERS: usize = 64;

/// What stands for the route of a request that has none.
const NO_ROUTE: &str = "-";

tokio::task_local! {
    static REQUEST_ID: String;
}

/// The id of the request that is being answered; empty outside of one.
pub(super) fn request_id() -> String {
    REQUEST_ID.try_with(Clone::clone).unwrap_or_default()
}

/// Takes the caller's id where it is safe to repeat, else makes one; returns and logs it.
pub(super) async fn request(
    State(state): State<ApiState>,
    request: Request,
    next: Next,
) -> Response {
    let given = request.headers().get(&HEADER).and_then(|value| value.to_str().ok());
    let id = given
        .filter(|id| is_safe(id))
        .map_or_else(|| ExecutionId::new().to_string(), str::to_owned);
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let started = Instant::now();
    let mut response = REQUEST_ID.scope(id.clone(), next.run(request)).await;
    let took = started.elapsed();
    let place = route.as_deref().unwrap_or(NO_ROUTE);
    state.metrics.answered(word(&method), place, response.status().as_u16(), took);
    if let Some(Refused(code)) = response.extensions().get() {
        state.metrics.refused(code);
    }
    tracing::info!(
        request_id = id,
        %method,
        route = place,
        status = response.status().as_u16(),
        duration_ms = milliseconds(took),
        "answered"
    );
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(HEADER, value);
    }
    response
}

/// The method as a label: callers may send any word.
fn word(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}

fn is_safe(id: &str) -> bool {
    let safe = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=MAX_CHARACTERS).contains(&id.len()) && id.bytes().all(safe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ids_that_are_safe_to_repeat_are_taken() {
        assert!(is_safe("a-B_3.x"));
        for id in ["", "a b", "a\n", "é", &"x".repeat(65)] {
            assert!(!is_safe(id), "{id:?}");
        }
    }
}
