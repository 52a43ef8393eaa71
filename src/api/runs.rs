//! Runs: list, read, and the files that they made.

use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::Response;
use serde::Deserialize;
use time::OffsetDateTime;
use utoipa::IntoParams;
use uuid::Uuid;

use super::ApiState;
use super::download::Download;
use super::extract::{Path, Query, Tenant};
use super::files::file_path;
use super::list::{List, Order, PageQuery};
use super::problem::{Addressed, Checked, Guarded, Parts, Problem, Stored};
use super::respond;
use crate::domain::file::Part;
use crate::domain::id::{RunId, SessionId};
use crate::domain::list::RunFilter;
use crate::domain::run::{Run, RunKind, RunStatus, RunSummary};

/// Which runs, and which page of them.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct RunsQuery {
    /// Of this kind.
    kind: Option<RunKind>,
    /// With this status.
    status: Option<RunStatus>,
    /// In this session.
    session_id: Option<SessionId>,
    /// Of this provider entry.
    provider: Option<String>,
    /// Asked for at this time or later, RFC 3339.
    #[serde(default, with = "time::serde::rfc3339::option")]
    since: Option<OffsetDateTime>,
    /// Asked for before this time, RFC 3339.
    #[serde(default, with = "time::serde::rfc3339::option")]
    until: Option<OffsetDateTime>,
    /// How many at most, 20 when absent.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    after: Option<Uuid>,
    /// The newest first when absent.
    #[param(inline)]
    order: Option<Order>,
}

/// List runs without what they put out.
#[utoipa::path(get, path = "/v1/runs", tag = "runs", params(RunsQuery),
    responses((status = 200, description = "One page", body = List<RunSummary>), Guarded, Addressed, Stored,
        (status = 422, description = "A part of the query is out of its range", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list_runs(
    State(state): State<ApiState>,
    Tenant(tenant): Tenant,
    Query(query): Query<RunsQuery>,
) -> Result<axum::Json<List<RunSummary>>, Problem> {
    let page = PageQuery::new(query.limit, query.after, query.order).page()?;
    let filter = RunFilter {
        kind: query.kind,
        status: query.status,
        session_id: query.session_id,
        provider: query.provider,
        since: query.since,
        until: query.until,
    };
    let runs = state.runs.list(&tenant, &filter, page).await?;
    Ok(axum::Json(List::of(runs, page, |run| run.id.uuid())))
}

/// Read a run whole; it outlives its session.
#[utoipa::path(get, path = "/v1/runs/{run_id}", tag = "runs", params(("run_id" = RunId, Path, description = "The run")),
    responses((status = 200, description = "The run", body = Run), Guarded, Addressed, Stored,
        (status = 404, description = "There is no such run", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn get_run(
    State(state): State<ApiState>,
    Tenant(tenant): Tenant,
    Path(id): Path<RunId>,
) -> Result<axum::Json<Run>, Problem> {
    Ok(axum::Json(state.runs.get(&tenant, id).await?))
}

/// Cancel a run. What it has done until then is recorded.
#[utoipa::path(post, path = "/v1/runs/{run_id}/cancel", tag = "runs", params(("run_id" = RunId, Path, description = "The run")),
    responses((status = 202, description = "It has been told to end; the run as it is now", body = Run), Guarded, Addressed, Stored,
        (status = 404, description = "There is no such run", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "It has ended, or another replica works on it", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn cancel_run(
    State(state): State<ApiState>,
    Tenant(tenant): Tenant,
    Path(id): Path<RunId>,
) -> Result<(StatusCode, axum::Json<Run>), Problem> {
    Ok((StatusCode::ACCEPTED, axum::Json(state.runs.cancel(&tenant, id).await?)))
}

/// The events of a run: as they come while it goes on, again when it has ended. `Last-Event-ID`
/// names the last one that the caller has; the last of all is `run.completed` with the whole answer.
#[utoipa::path(get, path = "/v1/runs/{run_id}/events", tag = "runs",
    params(("run_id" = RunId, Path, description = "The run"), ("Last-Event-ID" = Option<u64>, Header, description = "Only events after this one")),
    responses((status = 200, description = "Server-sent events", body = String, content_type = "text/event-stream"), Guarded, Addressed,
        (status = 404, description = "There is no such run", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "As many streams are read as may, or the database cannot be used, now; trying again is safe", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn run_events(
    State(state): State<ApiState>,
    Tenant(tenant): Tenant,
    Path(id): Path<RunId>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let last = headers.get("last-event-id").map(|value| value.to_str().ok()?.trim().parse().ok());
    let Some(after) = last.unwrap_or(Some(0)) else {
        let detail = "Last-Event-ID must be a number";
        return Err(Problem::new(StatusCode::BAD_REQUEST, "malformed_header", detail));
    };
    respond::events(&state, state.runs.events(&tenant, id, after).await?)
}

/// Get a file that a run made; it outlives its session.
#[utoipa::path(get, path = "/v1/runs/{run_id}/files/{*path}", tag = "runs",
    params(("run_id" = RunId, Path, description = "The run"), ("path" = String, Path, description = "Relative to the files folder")),
    responses((status = 200, description = "The content", body = Vec<u8>, content_type = "*/*"), Guarded, Addressed, Stored, Checked, Parts,
        (status = 404, description = "There is no such run, or no such file of it", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn get_run_file(
    State(state): State<ApiState>,
    Tenant(tenant): Tenant,
    Path((id, path)): Path<(RunId, String)>,
    method: Method,
    mut headers: HeaderMap,
) -> Result<Response, Problem> {
    let path = file_path(path)?;
    if method == Method::HEAD {
        headers.remove(header::RANGE); // RFC 9110: a range is for GET alone
    }
    let (file, whole) = state.runs.file(&tenant, id, path.as_str(), Part::Whole).await?;
    let (mime, size_bytes, etag) = (&file.mime, file.size_bytes, &file.sha256);
    let download = Download { name: path.name(), mime, size_bytes, etag };
    let wanted = match download.wanted(&headers) {
        Ok(wanted) => wanted,
        Err(response) => return Ok(response),
    };
    let content = match wanted.part {
        Part::Whole => whole,
        part => state.runs.file(&tenant, id, path.as_str(), part).await?.1,
    };
    Ok(download.response(&wanted, content))
}
