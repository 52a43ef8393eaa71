//! What is configured: providers and models.

use axum::extract::State;

use super::ApiState;
use super::extract::Tenant;
use super::list::List;
use super::problem::{Guarded, Problem};
use crate::domain::provider::{ModelInfo, ProviderInfo};

/// List the providers: what they can do, how their sandboxes are kept apart, ready or why not.
#[utoipa::path(get, path = "/v1/providers", tag = "service",
    responses((status = 200, description = "All of them", body = List<ProviderInfo>), Guarded))]
pub(super) async fn list_providers(
    State(state): State<ApiState>,
    _tenant: Tenant,
) -> Result<axum::Json<List<ProviderInfo>>, Problem> {
    Ok(axum::Json(List::whole(state.runs.providers())))
}

/// List the models that interpret can ask.
#[utoipa::path(get, path = "/v1/models", tag = "service",
    responses((status = 200, description = "All of them", body = List<ModelInfo>), Guarded))]
pub(super) async fn list_models(
    State(state): State<ApiState>,
    _tenant: Tenant,
) -> Result<axum::Json<List<ModelInfo>>, Problem> {
    Ok(axum::Json(List::whole(state.runs.models())))
}
