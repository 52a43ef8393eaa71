//! Alive, and ready.

use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use super::ApiState;
use super::problem::Problem;
use crate::domain::build;

/// That the service is well.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Health {
    /// Always `ok`.
    status: &'static str,
    /// The version of the program.
    version: &'static str,
    /// The first twelve digits of the commit that it was built from; null where the build was not told.
    commit: Option<&'static str>,
}

const WELL: Health = Health { status: "ok", version: build::VERSION, commit: build::COMMIT };

/// Whether the process is alive.
#[utoipa::path(get, path = "/healthz", tag = "service", responses((status = 200, description = "It is", body = Health),
    (status = 403, description = "The Host or Origin header is foreign", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn healthz() -> axum::Json<Health> {
    axum::Json(WELL)
}

/// Whether work can be done: the store answers, the default provider makes sandboxes.
#[utoipa::path(get, path = "/readyz", tag = "service", responses((status = 200, description = "It can", body = Health),
    (status = 403, description = "The Host or Origin header is foreign", body = Problem, content_type = "application/problem+json"),
    (status = 500, description = "The store fails", body = Problem, content_type = "application/problem+json"),
    (status = 503, description = "Not now", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn readyz(State(state): State<ApiState>) -> Result<axum::Json<Health>, Problem> {
    state.runs.ready().await?;
    Ok(axum::Json(WELL))
}
