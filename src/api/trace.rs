//! An id, a log line, a count and a span for each request.

use std::time::{Duration, Instant};

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use tracing::field::Empty;
use tracing::{Instrument, Span, info_span};

use super::ApiState;
use super::problem::Refused;
use crate::domain::execution::milliseconds;
use crate::domain::id::ExecutionId;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::{SPAN_TARGET, traces};

const HEADER: HeaderName = HeaderName::from_static("x-request-id");
const MAX_CHARACTERS: usize = 64;
/// Of W3C: the trace that the caller is in.
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// Asked again and again, by machines.
const UNTRACED: [&str; 3] = ["/healthz", "/readyz", "/metrics"];
/// What stands for the route of a request that has none.
const NO_ROUTE: &str = "-";
/// What stands for the status of a request whose caller went away, as nginx has it.
const CALLER_GONE: u16 = 499;
/// What stands for a method that no route has.
const OTHER: &str = "other";

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
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let span = span(&request, route.as_deref(), &id);
    let mut asked = Asked {
        id: id.clone(),
        method: request.method().clone(),
        route: route.unwrap_or_else(|| NO_ROUTE.to_owned()),
        started: Instant::now(),
        metrics: state.metrics,
        is_answered: false,
    };
    let answering = REQUEST_ID.scope(id.clone(), next.run(request));
    let mut response = answering.instrument(span.clone()).await;
    note_end(&span, response.status());
    asked.answered(&response);
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(HEADER, value);
    }
    response
}

/// A request that is being answered; dropped before, its caller went away.
struct Asked {
    id: String,
    method: Method,
    route: String,
    started: Instant,
    metrics: Metrics,
    is_answered: bool,
}

impl Asked {
    fn answered(&mut self, response: &Response) {
        self.is_answered = true;
        let status = response.status().as_u16();
        let took = self.counted(status);
        if let Some(Refused(code)) = response.extensions().get() {
            self.metrics.refused(code);
        }
        tracing::info!(
            request_id = self.id,
            method = %self.method,
            route = self.route,
            status,
            duration_ms = milliseconds(took),
            "answered"
        );
    }

    fn counted(&self, status: u16) -> Duration {
        let took = self.started.elapsed();
        self.metrics.answered(word(&self.method), &self.route, status, took);
        took
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if self.is_answered {
            return;
        }
        let took = self.counted(CALLER_GONE);
        tracing::info!(
            request_id = self.id,
            method = %self.method,
            route = self.route,
            status = CALLER_GONE,
            duration_ms = milliseconds(took),
            "its caller went away before there was an answer"
        );
    }
}

/// What a trace knows of a request: nothing that its caller wrote but its id.
fn span(request: &Request, route: Option<&str>, id: &str) -> Span {
    if route.is_some_and(|route| UNTRACED.contains(&route)) {
        return Span::none();
    }
    let method = match word(request.method()) {
        OTHER => "_OTHER",
        word => word,
    };
    // names as in OpenTelemetry's semantic conventions
    let span = info_span!(
        target: SPAN_TARGET,
        "request",
        otel.name = %Named { method, route },
        otel.kind = "server",
        otel.status_code = Empty,
        http.request.method = method,
        http.route = route,
        http.response.status_code = Empty,
        error.type = Empty,
        request.id = id,
        run.id = Empty,
    );
    // there is one such header, or it is none
    let mut given = request.headers().get_all(TRACEPARENT).iter();
    if let (Some(traceparent), None) = (given.next(), given.next())
        && let Ok(traceparent) = traceparent.to_str()
    {
        traces::follow(&span, traceparent);
    }
    span
}

fn note_end(span: &Span, status: StatusCode) {
    span.record("http.response.status_code", traces::number(status.as_u16().into()));
    if status.is_server_error() {
        span.record("otel.status_code", "ERROR");
        span.record("error.type", status.as_str());
    }
}

/// What a request's span is called.
struct Named<'a> {
    method: &'a str,
    route: Option<&'a str>,
}

impl std::fmt::Display for Named<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let method = if self.method == "_OTHER" { "HTTP" } else { self.method };
        match self.route {
            Some(route) => write!(out, "{method} {route}"),
            None => out.write_str(method),
        }
    }
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
        _ => OTHER,
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
