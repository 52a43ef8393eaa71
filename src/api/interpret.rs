//! Interpret: a question to a model that runs code.

use std::collections::BTreeMap;

use axum::extract::{FromRequest, Request, State};
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::ApiState;
use super::execute::{FileRequest, Include};
use super::extract::{Query, Tenant, is_form, is_json, json, media_type, room, within};
use super::multipart::{Form, FormPart, broken, too_large};
use super::problem::{Bodied, Guarded, InSession, Making, Problem};
use super::respond::{Ways, respond};
use super::seconds::Seconds;
use crate::domain::id::{RunId, SessionId};
use crate::domain::package::PackageSet;
use crate::domain::run::Run;
use crate::runs::spool::NewFile;
use crate::runs::{NewInterpret, Order};
use crate::sessions::NewSession;

/// A question, and how it should be answered.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct InterpretRequest {
    /// The question.
    message: String,
    /// Files that lie ready.
    #[serde(default)]
    files: Vec<FileRequest>,
    /// A run whose conversation goes on: the model is told what was said there. Without the session
    /// of that run in `session_id`, its variables and files are not there.
    previous_run_id: Option<RunId>,
    /// The provider entry; the default one when absent.
    provider: Option<String>,
    /// Packages that must be there besides those that `/v1/providers` lists: names, with versions
    /// where they matter, as PEP 508 writes them (`polars`, `duckdb>=1,<2`); 64 at most.
    #[serde(default)]
    #[schema(value_type = Vec<String>, max_items = 64)]
    packages: PackageSet,
    /// Environment of each cell; never stored.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// The model; the default one when absent.
    model: Option<String>,
    /// What the model is told besides.
    instructions: Option<String>,
    /// Turns of the model.
    #[schema(minimum = 1)]
    max_turns: Option<u32>,
    /// Time for the whole, in seconds.
    #[schema(value_type = Option<f64>)]
    timeout_seconds: Option<Seconds>,
    /// What to put into the answer besides.
    #[serde(default)]
    include: Vec<Include>,
    /// What the caller notes.
    #[serde(default)]
    metadata: BTreeMap<String, String>,
}

/// Where to work.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct InterpretQuery {
    /// The session to work in; without one, a sandbox of its own that is ended afterwards.
    session_id: Option<SessionId>,
}

/// The same as multipart: a JSON part `request`, and a part with a file name for each file.
#[derive(ToSchema)]
#[expect(dead_code, reason = "documents the form; parts are read one by one")]
pub(super) struct InterpretForm {
    /// The question.
    request: InterpretRequest,
    /// Files that lie ready.
    #[schema(value_type = Vec<String>, format = Binary)]
    file: Vec<Vec<u8>>,
}

/// A question with its files, however they came.
pub(super) struct Question {
    request: InterpretRequest,
    files: Vec<NewFile>,
}

impl FromRequest<ApiState> for Question {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &ApiState) -> Result<Self, Problem> {
        if is_json(request.headers()) {
            return from_json(request, state).await;
        }
        if !is_form(request.headers()) {
            return Err(media_type("application/json or multipart/form-data"));
        }
        from_multipart(Form::read(request, state).await?).await
    }
}

async fn from_json(request: Request, state: &ApiState) -> Result<Question, Problem> {
    let _room = room(request.headers(), state).await?;
    let most = usize::try_from(state.limits.body_bytes).unwrap_or(usize::MAX);
    let body = axum::body::to_bytes(request.into_body(), most);
    let body = within(state.limits.transfer_seconds, body).await?;
    let body = body.map_err(|_| too_large())?;
    let mut request: InterpretRequest = json(&body)?;
    let files = std::mem::take(&mut request.files).into_iter().map(FileRequest::into_new).collect();
    Ok(Question { request, files })
}

async fn from_multipart(mut form: Form<'_>) -> Result<Question, Problem> {
    let mut request: Option<InterpretRequest> = None;
    let mut files = Vec::new();
    while let Some(part) = form.next().await? {
        match part {
            FormPart::File(file) => files.push(file),
            FormPart::Field { name, content } if name == "request" => {
                request = Some(json(&content)?);
            }
            FormPart::Field { name, .. } => {
                return Err(broken(format!(
                    "the part {name:?} has no file name and is not `request`"
                )));
            }
        }
    }
    let mut request = request.ok_or_else(|| broken("the part `request` is missing".to_owned()))?;
    let inline = std::mem::take(&mut request.files);
    files.extend(inline.into_iter().map(FileRequest::into_new));
    Ok(Question { request, files })
}

impl Question {
    fn into_new(self, session_id: Option<SessionId>) -> NewInterpret {
        let Self { request, files } = self;
        NewInterpret {
            message: request.message,
            files,
            session_id,
            previous_run_id: request.previous_run_id,
            session: NewSession {
                provider: request.provider,
                packages: request.packages,
                ..NewSession::default()
            },
            env: request.env,
            model: request.model,
            instructions: request.instructions,
            max_turns: request.max_turns,
            timeout: request.timeout_seconds.map(|seconds| seconds.0),
            include_content: request.include.contains(&Include::Content),
            metadata: request.metadata,
        }
    }
}

/// Ask a model that writes and runs Python until it answers.
#[utoipa::path(post, path = "/v1/interpret", tag = "runs", params(InterpretQuery),
    request_body(content((InterpretRequest = "application/json"), (InterpretForm = "multipart/form-data"))),
    responses((status = 200, description = "The answer, every execution and the files that were made", body = Run), Guarded, Bodied, InSession, Making, Ways,
        (status = 501, description = "No model is configured; `detail` says how to", body = Problem, content_type = "application/problem+json"),
        (status = 502, description = "The model failed, and `run_id` has what happened until then; or the provider refused", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn interpret(
    State(state): State<ApiState>,
    Tenant(tenant): Tenant,
    Query(query): Query<InterpretQuery>,
    headers: HeaderMap,
    question: Question,
) -> Result<Response, Problem> {
    let new = question.into_new(query.session_id);
    respond(&state, &tenant, &headers, "/v1/interpret", Order::Interpret(Box::new(new))).await
}
