//! Exec: a cell in a session.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Deserialize;
use utoipa::ToSchema;

use super::ApiState;
use super::extract::{Json, Path, Tenant};
use super::problem::{Bodied, Guarded, InSession, Making, Problem};
use super::respond::{Ways, respond};
use super::seconds::Seconds;
use crate::domain::execution::{Execution, Language};
use crate::domain::id::SessionId;
use crate::runs::{NewCell, Order};

/// Python code to run once.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ExecRequest {
    /// Python code, 1 MiB at most.
    code: String,
    /// How long it may run, in seconds.
    #[schema(value_type = Option<f64>)]
    timeout_seconds: Option<Seconds>,
    /// Environment for this cell alone; never stored.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Standard input for this cell alone; never stored.
    stdin: Option<String>,
    /// Keep the files that it makes beyond the session.
    #[serde(default)]
    keep_files: bool,
}

impl ExecRequest {
    fn into_cell(self) -> NewCell {
        NewCell {
            code: self.code,
            language: Language::Python,
            timeout: self.timeout_seconds.map(|seconds| seconds.0),
            env: self.env,
            stdin: self.stdin,
            keep_files: self.keep_files,
        }
    }
}

/// A command line to run once.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ShellRequest {
    /// What `bash -c` is given, 1 MiB at most.
    command: String,
    /// How long it may run, in seconds.
    #[schema(value_type = Option<f64>)]
    timeout_seconds: Option<Seconds>,
    /// Environment for this command alone; never stored.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Standard input for this command alone; never stored.
    stdin: Option<String>,
    /// Keep the files that it makes beyond the session.
    #[serde(default)]
    keep_files: bool,
}

impl ShellRequest {
    fn into_cell(self) -> NewCell {
        NewCell {
            code: self.command,
            language: Language::Shell,
            timeout: self.timeout_seconds.map(|seconds| seconds.0),
            env: self.env,
            stdin: self.stdin,
            keep_files: self.keep_files,
        }
    }
}

/// Run Python in a session, when its turn has come. Variables stay for the next cell.
#[utoipa::path(post, path = "/v1/sessions/{session_id}/exec", tag = "sessions", request_body = ExecRequest,
    params(("session_id" = SessionId, Path, description = "The session")),
    responses((status = 200, description = "What came of it, also when the code failed or ran out of time", body = Execution), Guarded, Bodied, InSession, Making, Ways))]
pub(super) async fn exec(
    State(state): State<ApiState>,
    Tenant(tenant): Tenant,
    Path(id): Path<SessionId>,
    headers: HeaderMap,
    Json(request): Json<ExecRequest>,
) -> Result<Response, Problem> {
    respond(
        &state,
        &tenant,
        &headers,
        "/v1/sessions/{id}/exec",
        Order::Exec(id, request.into_cell()),
    )
    .await
}

/// Run a command line in a session, when its turn has come. It starts where the last cell was.
#[utoipa::path(post, path = "/v1/sessions/{session_id}/shell", tag = "sessions", request_body = ShellRequest,
    params(("session_id" = SessionId, Path, description = "The session")),
    responses((status = 200, description = "What came of it, also when the command failed or ran out of time", body = Execution), Guarded, Bodied, InSession, Making, Ways))]
pub(super) async fn shell(
    State(state): State<ApiState>,
    Tenant(tenant): Tenant,
    Path(id): Path<SessionId>,
    headers: HeaderMap,
    Json(request): Json<ShellRequest>,
) -> Result<Response, Problem> {
    respond(
        &state,
        &tenant,
        &headers,
        "/v1/sessions/{id}/shell",
        Order::Exec(id, request.into_cell()),
    )
    .await
}
