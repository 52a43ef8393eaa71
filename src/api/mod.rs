//! The HTTP face: every route and layer on one screen.

mod conditions;
mod download;
mod drain;
mod exec;
mod execute;
mod extract;
mod files;
mod guard;
mod health;
mod interpret;
mod list;
mod metrics;
mod multipart;
mod openapi;
mod problem;
mod providers;
mod respond;
mod runs;
mod seconds;
mod sessions;
mod state;
mod trace;

use axum::extract::DefaultBodyLimit;
use axum::http::{Method, Uri};
use axum::{Router, middleware};
use tower_http::catch_panic::CatchPanicLayer;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub use state::ApiState;

use problem::Problem;

/// All routes with their documentation.
fn documented() -> OpenApiRouter<ApiState> {
    let json = OpenApiRouter::new()
        .routes(routes!(sessions::create_session, sessions::list_sessions))
        .routes(routes!(sessions::get_session, sessions::change_session, sessions::delete_session))
        .routes(routes!(sessions::interrupt))
        .routes(routes!(exec::exec))
        .routes(routes!(exec::shell))
        .routes(routes!(execute::execute))
        .routes(routes!(runs::list_runs))
        .routes(routes!(runs::get_run))
        .routes(routes!(runs::cancel_run))
        .routes(routes!(runs::run_events))
        .routes(routes!(runs::get_run_file))
        .routes(routes!(providers::list_providers))
        .routes(routes!(providers::list_models))
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz))
        .routes(routes!(metrics::metrics));
    let streamed = OpenApiRouter::new()
        .routes(routes!(files::list_files, files::post_files))
        .routes(routes!(files::put_file, files::get_file, files::head_file, files::delete_file))
        .routes(routes!(interpret::interpret))
        .layer(DefaultBodyLimit::disable());
    OpenApiRouter::with_openapi(openapi::Document::openapi()).merge(json).merge(streamed)
}

/// The OpenAPI document as JSON text.
#[must_use]
pub fn document() -> String {
    let document = openapi::tidy(documented().split_for_parts().1);
    let mut text = document.to_pretty_json().expect("the document has string keys");
    text.push('\n');
    text
}

/// The router with its layers; the first one named is the innermost.
pub fn router(state: ApiState) -> Router {
    let body_limit = usize::try_from(state.limits.body_bytes).unwrap_or(usize::MAX);
    let (routes, document) = documented().split_for_parts();
    routes
        .layer(DefaultBodyLimit::max(body_limit))
        .layer(middleware::from_fn_with_state(state.clone(), guard::admit))
        .merge(openapi::pages(openapi::tidy(document)))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(middleware::from_fn_with_state(state.clone(), guard::browsers))
        .layer(middleware::from_fn(drain::refused_bodies))
        .layer(CatchPanicLayer::custom(problem::panicked))
        .layer(middleware::from_fn_with_state(state.clone(), trace::request))
        .with_state(state)
}

async fn no_route(uri: Uri) -> Problem {
    Problem::no_route(&uri)
}

async fn no_method(method: Method) -> Problem {
    Problem::no_method(&method)
}
