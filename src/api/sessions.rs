//! Sessions: create, list, read, end.

use std::collections::BTreeMap;

use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use serde::Deserialize;
use utoipa::ToSchema;

use super::ApiState;
use super::extract::{Json, Path, Query, Tenant};
use super::list::{List, PageQuery};
use super::problem::{Addressed, Bodied, Guarded, InSession, Making, Problem, Stored};
use super::respond::key;
use super::seconds::Seconds;
use crate::domain::id::SessionId;
use crate::domain::limits::LimitsRequest;
use crate::domain::package::PackageSet;
use crate::domain::session::Session;
use crate::sessions::{NewSession, SessionChange};
use axum::extract::State;

/// What a session should be; all is optional.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateSessionRequest {
    /// The provider entry; the default one when absent.
    provider: Option<String>,
    /// Packages that must be there besides those that `/v1/providers` lists: names, with versions
    /// where they matter, as PEP 508 writes them (`polars`, `duckdb>=1,<2`); 64 at most.
    #[serde(default)]
    #[schema(value_type = Vec<String>, max_items = 64)]
    packages: PackageSet,
    /// Environment of all its cells; kept in memory only.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Lower limits than the configured ones.
    #[serde(default)]
    limits: LimitsRequest,
    /// How long it lives, in seconds.
    #[schema(value_type = Option<f64>)]
    lifetime_seconds: Option<Seconds>,
    /// How long it may lie unused, in seconds.
    #[schema(value_type = Option<f64>)]
    idle_seconds: Option<Seconds>,
    /// What the caller notes.
    #[serde(default)]
    metadata: BTreeMap<String, String>,
}

impl CreateSessionRequest {
    fn into_new(self) -> NewSession {
        NewSession {
            id: None,
            provider: self.provider,
            packages: self.packages,
            env: self.env,
            limits: self.limits,
            lifetime: self.lifetime_seconds.map(|seconds| seconds.0),
            idle: self.idle_seconds.map(|seconds| seconds.0),
            metadata: self.metadata,
            one_shot: false,
            claim: None,
        }
    }
}

/// What to change of a session; what is absent stays.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ChangeSessionRequest {
    /// How long it lives from now on, in seconds.
    #[schema(value_type = Option<f64>)]
    lifetime_seconds: Option<Seconds>,
    /// How long it may lie unused, in seconds.
    #[schema(value_type = Option<f64>)]
    idle_seconds: Option<Seconds>,
    /// What the caller notes, in place of what was noted.
    metadata: Option<BTreeMap<String, String>>,
}

impl ChangeSessionRequest {
    fn into_change(self) -> SessionChange {
        SessionChange {
            lifetime: self.lifetime_seconds.map(|seconds| seconds.0),
            idle: self.idle_seconds.map(|seconds| seconds.0),
            metadata: self.metadata,
        }
    }
}

/// Create a session: a sandbox with files and state.
#[utoipa::path(post, path = "/v1/sessions", tag = "sessions", request_body = CreateSessionRequest,
    responses((status = 201, description = "The session, ready for its first cell; `starting` while packages are being installed: then cells and files wait", body = Session, headers(("Location" = String, description = "Where the session is"))), Guarded, Bodied, Making,
        (status = 409, description = "The provider cannot do what was asked", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn create_session(
    State(state): State<ApiState>,
    Tenant(tenant): Tenant,
    headers: HeaderMap,
    Json(request): Json<CreateSessionRequest>,
) -> Result<(StatusCode, [(HeaderName, String); 1], axum::Json<Session>), Problem> {
    let session = match key(&headers, "/v1/sessions")? {
        Some(key) => state.runs.create_session_once(&tenant, request.into_new(), key).await?,
        None => state.runs.create_session(&tenant, request.into_new()).await?,
    };
    let location = format!("/v1/sessions/{}", session.id);
    Ok((StatusCode::CREATED, [(header::LOCATION, location)], axum::Json(session)))
}

/// List sessions, ended ones included.
#[utoipa::path(get, path = "/v1/sessions", tag = "sessions", params(PageQuery),
    responses((status = 200, description = "One page", body = List<Session>), Guarded, Addressed, Stored,
        (status = 422, description = "A part of the query is out of its range", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list_sessions(
    State(state): State<ApiState>,
    Tenant(tenant): Tenant,
    Query(query): Query<PageQuery>,
) -> Result<axum::Json<List<Session>>, Problem> {
    let page = query.page()?;
    let sessions = state.sessions.list(&tenant, page).await?;
    Ok(axum::Json(List::of(sessions, page, |session| session.id.uuid())))
}

/// Read a session, also one that has ended.
#[utoipa::path(get, path = "/v1/sessions/{session_id}", tag = "sessions", params(("session_id" = SessionId, Path, description = "The session")),
    responses((status = 200, description = "The session", body = Session), Guarded, Addressed, Stored,
        (status = 404, description = "There is no such session", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn get_session(
    State(state): State<ApiState>,
    Tenant(tenant): Tenant,
    Path(id): Path<SessionId>,
) -> Result<axum::Json<Session>, Problem> {
    Ok(axum::Json(state.sessions.get(&tenant, id).await?))
}

/// Change a session: its lifetime counts from now.
#[utoipa::path(patch, path = "/v1/sessions/{session_id}", tag = "sessions", request_body = ChangeSessionRequest,
    params(("session_id" = SessionId, Path, description = "The session")),
    responses((status = 200, description = "The session as it is now", body = Session), Guarded, Bodied, InSession, Stored))]
pub(super) async fn change_session(
    State(state): State<ApiState>,
    Tenant(tenant): Tenant,
    Path(id): Path<SessionId>,
    Json(request): Json<ChangeSessionRequest>,
) -> Result<axum::Json<Session>, Problem> {
    Ok(axum::Json(state.runs.change_session(&tenant, id, request.into_change()).await?))
}

/// Stop the running cell, its state kept where the provider can. Does nothing when none runs.
#[utoipa::path(post, path = "/v1/sessions/{session_id}/interrupt", tag = "sessions",
    params(("session_id" = SessionId, Path, description = "The session")),
    responses((status = 204, description = "It has been told to stop"), Guarded, Addressed, Stored,
        (status = 409, description = "Another replica serves it", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "There is no such session", body = Problem, content_type = "application/problem+json"),
        (status = 410, description = "The session has ended; `detail` says when and why", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn interrupt(
    State(state): State<ApiState>,
    Tenant(tenant): Tenant,
    Path(id): Path<SessionId>,
) -> Result<StatusCode, Problem> {
    state.sessions.interrupt(&tenant, id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// End a session at once, busy or not. Ending it again changes nothing.
#[utoipa::path(delete, path = "/v1/sessions/{session_id}", tag = "sessions", params(("session_id" = SessionId, Path, description = "The session")),
    responses((status = 204, description = "It has ended"), Guarded, Addressed, Stored,
        (status = 409, description = "Another replica serves it", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "There is no such session", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn delete_session(
    State(state): State<ApiState>,
    Tenant(tenant): Tenant,
    Path(id): Path<SessionId>,
) -> Result<StatusCode, Problem> {
    state.runs.end_session(&tenant, id).await?;
    Ok(StatusCode::NO_CONTENT)
}
