//! Files of a session, raw and streamed both ways.

use std::io;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};

use super::ApiState;
use super::download::{self, Download};
use super::extract::{Path, Tenant};
use super::problem::{Guarded, InSession, Problem};
use crate::domain::file::{FileEntry, FilePath};
use crate::domain::id::SessionId;

/// Put a file, whole or not at all, in place of what was there. Works while a cell runs.
#[utoipa::path(put, path = "/v1/sessions/{session_id}/files/{*path}", tag = "files",
    request_body(content = Vec<u8>, content_type = "application/octet-stream", description = "The content, as it is"),
    params(("session_id" = SessionId, Path, description = "The session"), ("path" = String, Path, description = "Relative to the files folder")),
    responses((status = 200, description = "The file as it is now", body = FileEntry), Guarded, InSession,
        (status = 400, description = "The path leads outside, or the content broke off", body = Problem, content_type = "application/problem+json"),
        (status = 413, description = "The file is larger than files may be, or the session has no room for it", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn put_file(
    State(state): State<ApiState>,
    Tenant(tenant): Tenant,
    Path((id, path)): Path<(SessionId, String)>,
    headers: HeaderMap,
    body: Body,
) -> Result<axum::Json<FileEntry>, Problem> {
    let path = file_path(path)?;
    let length =
        headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if length.is_some_and(|length: u64| length > state.limits.file_bytes) {
        let detail = format!("the file is larger than {} bytes", state.limits.file_bytes);
        return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "file_too_large", detail));
    }
    let content = with_progress(body, state.limits.transfer_seconds);
    Ok(axum::Json(state.sessions.write_file(&tenant, id, &path, content).await?))
}

/// Get a file as it is now. Works while a cell runs.
#[utoipa::path(get, path = "/v1/sessions/{session_id}/files/{*path}", tag = "files",
    params(("session_id" = SessionId, Path, description = "The session"), ("path" = String, Path, description = "Relative to the files folder")),
    responses((status = 200, description = "The content", body = Vec<u8>, content_type = "application/octet-stream"), Guarded, InSession,
        (status = 400, description = "The path leads outside", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn get_file(
    State(state): State<ApiState>,
    Tenant(tenant): Tenant,
    Path((id, path)): Path<(SessionId, String)>,
) -> Result<Response, Problem> {
    let path = file_path(path)?;
    let (entry, content) = state.sessions.read_file(&tenant, id, &path).await?;
    Ok(download::response(
        Download { name: path.name(), mime: &entry.mime, size_bytes: entry.size_bytes },
        content,
    ))
}

/// A path of a request, or the problem with it.
pub(super) fn file_path(path: String) -> Result<FilePath, Problem> {
    FilePath::new(path)
        .map_err(|error| Problem::new(StatusCode::BAD_REQUEST, "malformed_path", error.to_string()))
}

/// The body as it comes, given up when nothing has come for the limit.
fn with_progress(body: Body, limit: Duration) -> BoxStream<'static, io::Result<Bytes>> {
    let content = body.into_data_stream().map_err(io::Error::other).boxed();
    let next = move |mut content: BoxStream<'static, io::Result<Bytes>>| async move {
        match tokio::time::timeout(limit, content.next()).await {
            Ok(None) => None,
            Ok(Some(piece)) => Some((piece, content)),
            Err(_) => Some((Err(io::ErrorKind::TimedOut.into()), stream::empty().boxed())),
        }
    };
    stream::unfold(content, next).boxed()
}
