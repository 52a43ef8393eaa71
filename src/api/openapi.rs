//! The OpenAPI document and the pages that show it.

use axum::Router;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::{Modify, OpenApi};
use utoipa_swagger_ui::SwaggerUi;

use super::ApiState;

/// What stands at the head of the document.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "interpreterd",
        description = "A code interpreter for language models: a question and files in, an answer, every execution and the files that were made out. \
            Errors are application/problem+json (RFC 9457). Times are RFC 3339 in UTC, ids are UUIDs, durations are seconds."
    ),
    tags(
        (name = "sessions", description = "Sandboxes with state"),
        (name = "files", description = "Files of a session"),
        (name = "runs", description = "One-shot work, questions to models, and what is recorded of all work"),
        (name = "service", description = "What is configured, and whether it is well")
    ),
    security((), ("key" = [])),
    modifiers(&Keys)
)]
pub(super) struct Document;

struct Keys;

impl Modify for Keys {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let bearer = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        document.components.get_or_insert_default().add_security_scheme("key", bearer);
    }
}

/// The document in the words of OpenAPI, which has no wildcards: `{*path}` is `{path}`.
pub(super) fn tidy(mut document: utoipa::openapi::OpenApi) -> utoipa::openapi::OpenApi {
    let paths = std::mem::take(&mut document.paths.paths);
    document.paths.paths =
        paths.into_iter().map(|(path, item)| (path.replace("{*", "{"), item)).collect();
    document
}

/// `/openapi.json`, and `/docs` with all that it needs.
pub(super) fn pages(document: utoipa::openapi::OpenApi) -> Router<ApiState> {
    SwaggerUi::new("/docs").url("/openapi.json", document).into()
}
