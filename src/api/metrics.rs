//! What operators read of the service.

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use super::ApiState;
use super::problem::Guarded;
use crate::telemetry::metrics::MEDIA_TYPE;

/// What the service counts and times, and how it stands: text of OpenMetrics 1.0, for Prometheus and the
/// like. The names, their labels and what they say are in docs/operations.md.
#[utoipa::path(get, path = "/metrics", tag = "service", responses(
    (status = 200, description = "The text", body = String, content_type = "application/openmetrics-text"),
    Guarded))]
pub(super) async fn metrics(State(state): State<ApiState>) -> Response {
    let now = state.runs.now().await;
    // what the kernel says of the process is read from files
    let text = tokio::task::spawn_blocking(move || state.metrics.text(&now)).await;
    let text = text.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()));
    ([(header::CONTENT_TYPE, MEDIA_TYPE)], text).into_response()
}
