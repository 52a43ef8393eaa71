//! Interpret: a question to a model that runs code.

use std::collections::BTreeMap;

use axum::body::Bytes;
use axum::extract::multipart::{Field, MultipartError};
use axum::extract::{FromRequest, Multipart, Request, State};
use axum::http::StatusCode;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::ApiState;
use super::execute::{FileRequest, Include};
use super::extract::{Query, Tenant, essence, is_json, json, media_type, within};
use super::problem::{Bodied, Guarded, InSession, Making, Problem};
use super::seconds::Seconds;
use crate::domain::file::FilePath;
use crate::domain::id::SessionId;
use crate::domain::run::Run;
use crate::runs::NewInterpret;
use crate::runs::spool::NewFile;
use crate::sessions::NewSession;

/// Parts that one request may have.
const MAX_PARTS: usize = 100;

/// A question, and how it should be answered.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct InterpretRequest {
    /// The question.
    message: String,
    /// Files that lie ready.
    #[serde(default)]
    files: Vec<FileRequest>,
    /// The provider entry; the default one when absent.
    provider: Option<String>,
    /// Packages that must be there.
    #[serde(default)]
    packages: Vec<String>,
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
        if essence(request.headers()).as_deref() != Some("multipart/form-data") {
            return Err(media_type("application/json or multipart/form-data"));
        }
        let multipart = Multipart::from_request(request, state).await;
        let multipart = multipart.map_err(|rejection| broken(rejection.body_text()))?;
        from_multipart(multipart, state).await
    }
}

async fn from_json(request: Request, state: &ApiState) -> Result<Question, Problem> {
    let most = usize::try_from(state.limits.body_bytes).unwrap_or(usize::MAX);
    let body = axum::body::to_bytes(request.into_body(), most);
    let body = within(state.limits.transfer_seconds, body).await?;
    let body = body.map_err(|_| too_large())?;
    let mut request: InterpretRequest = json(&body)?;
    let files = std::mem::take(&mut request.files).into_iter().map(FileRequest::into_new).collect();
    Ok(Question { request, files })
}

async fn from_multipart(mut multipart: Multipart, state: &ApiState) -> Result<Question, Problem> {
    let mut request: Option<InterpretRequest> = None;
    let mut files = Vec::new();
    let mut left = state.limits.file_bytes;
    for _ in 0..MAX_PARTS {
        let part = within(state.limits.transfer_seconds, multipart.next_field()).await?;
        let Some(part) = part.map_err(|error| cut(&error))? else {
            let Some(mut request) = request else {
                return Err(broken("the part `request` is missing".to_owned()));
            };
            let inline = std::mem::take(&mut request.files);
            files.extend(inline.into_iter().map(FileRequest::into_new));
            return Ok(Question { request, files });
        };
        match part.file_name().map(str::to_owned) {
            Some(name) => files.push(file(part, name, &mut left, state).await?),
            None if part.name() == Some("request") => {
                request = Some(json(&small(part, state).await?)?);
            }
            None => {
                let detail = format!(
                    "the part {:?} has no file name and is not `request`",
                    part.name().unwrap_or("")
                );
                return Err(broken(detail));
            }
        }
    }
    Err(broken(format!("there are more than {MAX_PARTS} parts")))
}

/// The JSON part, as long as a JSON body may be.
async fn small(mut part: Field<'_>, state: &ApiState) -> Result<Bytes, Problem> {
    let mut body = Vec::new();
    while let Some(piece) = next_piece(&mut part, state).await? {
        body.extend_from_slice(&piece);
        if body.len() as u64 > state.limits.body_bytes {
            return Err(too_large());
        }
    }
    Ok(body.into())
}

/// A file part, spooled to disk. `left`: what the files of this request may still have together.
async fn file(
    mut part: Field<'_>,
    name: String,
    left: &mut u64,
    state: &ApiState,
) -> Result<NewFile, Problem> {
    let path = FilePath::new(name).map_err(|error| {
        Problem::new(StatusCode::BAD_REQUEST, "malformed_path", error.to_string())
    })?;
    let mut spool = state.runs.spool().await?;
    while let Some(piece) = next_piece(&mut part, state).await? {
        spool.write(&piece).await?;
        if spool.size_bytes() > *left {
            return Err(too_large());
        }
    }
    *left -= spool.size_bytes();
    Ok(NewFile { path, content: spool.finish().await? })
}

async fn next_piece(part: &mut Field<'_>, state: &ApiState) -> Result<Option<Bytes>, Problem> {
    let piece = within(state.limits.transfer_seconds, part.chunk()).await?;
    piece.map_err(|error| cut(&error))
}

fn broken(detail: String) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "malformed_multipart", detail)
}

fn cut(error: &MultipartError) -> Problem {
    broken(error.body_text())
}

fn too_large() -> Problem {
    let detail = "the body is larger than its limit";
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", detail)
}

impl Question {
    fn into_new(self, session_id: Option<SessionId>) -> NewInterpret {
        let Self { request, files } = self;
        NewInterpret {
            message: request.message,
            files,
            session_id,
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
    responses((status = 200, description = "The answer, every execution and the files that were made", body = Run), Guarded, Bodied, InSession, Making,
        (status = 501, description = "No model is configured; `detail` says how to", body = Problem, content_type = "application/problem+json"),
        (status = 502, description = "The model failed; `run_id` has what happened until then", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn interpret(
    State(state): State<ApiState>,
    Tenant(tenant): Tenant,
    Query(query): Query<InterpretQuery>,
    question: Question,
) -> Result<axum::Json<Run>, Problem> {
    let run = state.runs.interpret(&tenant, question.into_new(query.session_id)).await?;
    Ok(axum::Json(run))
}
