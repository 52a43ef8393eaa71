//! Files of a session, raw and streamed both ways.

use std::io;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use serde::Serialize;
use utoipa::ToSchema;

use super::ApiState;
use super::conditions;
use super::download::Download;
use super::extract::{Path, Tenant};
use super::multipart::{Form, FormPart, broken};
use super::problem::{
    Addressed, Checked, Conditional, Guarded, InSession, Parts, Problem, Reaching, Uploaded,
};
use crate::domain::file::{FileEntry, FilePath, Part};
use crate::domain::id::SessionId;
use crate::runs::RunError;

/// The files of a session, and the room for them.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct FileList {
    /// All files, sorted by path.
    data: Vec<FileEntry>,
    /// What they take together, in bytes.
    used_bytes: u64,
    /// The room for them and for temporary files, in bytes; null when the provider does not say.
    quota_bytes: Option<u64>,
}

/// A form with files in it: a part with a file name for each.
#[derive(ToSchema)]
#[expect(dead_code, reason = "documents the form; parts are read one by one")]
pub(super) struct FilesForm {
    /// The files; their names are paths relative to the files folder.
    #[schema(value_type = Vec<String>, format = Binary)]
    file: Vec<Vec<u8>>,
}

/// List the files of a session. Works while a cell runs.
#[utoipa::path(get, path = "/v1/sessions/{session_id}/files", tag = "files",
    params(("session_id" = SessionId, Path, description = "The session")),
    responses((status = 200, description = "All files, sorted by path", body = FileList), Guarded, Addressed, InSession, Reaching))]
pub(super) async fn list_files(
    State(state): State<ApiState>,
    Tenant(tenant): Tenant,
    Path(id): Path<SessionId>,
) -> Result<Response, Problem> {
    state.sessions.sandbox(&tenant, id).await?; // who waits for it holds up nobody's listing
    let _turn = state.listings.acquire().await; // in line; it is never closed
    let data = state.sessions.list_files(&tenant, id).await?;
    let quota_bytes = state.sessions.get(&tenant, id).await?.limits.disk_bytes;
    let used_bytes = data.iter().fold(0_u64, |sum, file| sum.saturating_add(file.size_bytes));
    // a long list takes its time: no thread that serves others is held for it
    let list = move || axum::Json(FileList { data, used_bytes, quota_bytes }).into_response();
    Ok(tokio::task::spawn_blocking(list).await.map_err(RunError::Panicked)?)
}

/// Put several files at once; none is written before all have been received.
#[utoipa::path(post, path = "/v1/sessions/{session_id}/files", tag = "files",
    request_body(content = FilesForm, content_type = "multipart/form-data"),
    params(("session_id" = SessionId, Path, description = "The session")),
    responses((status = 200, description = "The files as they are now", body = Vec<FileEntry>), Guarded, Addressed, InSession, Uploaded, Reaching))]
pub(super) async fn post_files(
    State(state): State<ApiState>,
    Tenant(tenant): Tenant,
    Path(id): Path<SessionId>,
    request: Request,
) -> Result<axum::Json<Vec<FileEntry>>, Problem> {
    state.sessions.sandbox(&tenant, id).await?; // an unknown session is told before anything is received
    let mut form = Form::read(request, &state).await?;
    let mut files = Vec::new();
    while let Some(part) = form.next().await? {
        match part {
            FormPart::File(file) => files.push(file),
            FormPart::Field { name, .. } => {
                return Err(broken(format!("the part {name:?} has no file name")));
            }
        }
    }
    Ok(axum::Json(state.runs.put_files(&tenant, id, files).await?))
}

/// Put a file, whole or not at all, in place of what was there. Works while a cell runs. `If-Match`
/// and `If-None-Match: *` hold at the moment when the file is put in place.
#[utoipa::path(put, path = "/v1/sessions/{session_id}/files/{*path}", tag = "files",
    request_body(content = Vec<u8>, content_type = "application/octet-stream", description = "The content, as it is"),
    params(("session_id" = SessionId, Path, description = "The session"), ("path" = String, Path, description = "Relative to the files folder")),
    responses((status = 200, description = "The file as it is now", body = FileEntry), Guarded, Addressed, InSession, Conditional, Reaching,
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
    let condition = conditions::of_change(&headers);
    Ok(axum::Json(state.sessions.write_file(&tenant, id, &path, content, &condition).await?))
}

/// Get a file, or a part of it, as it is now. Works while a cell runs.
#[utoipa::path(get, path = "/v1/sessions/{session_id}/files/{*path}", tag = "files",
    params(("session_id" = SessionId, Path, description = "The session"), ("path" = String, Path, description = "Relative to the files folder")),
    responses((status = 200, description = "The content", body = Vec<u8>, content_type = "*/*"), Guarded, Addressed, InSession, Reaching, Checked, Parts))]
pub(super) async fn get_file(
    State(state): State<ApiState>,
    Tenant(tenant): Tenant,
    Path((id, path)): Path<(SessionId, String)>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let path = file_path(path)?;
    let (entry, whole) = state.sessions.read_file(&tenant, id, &path, Part::Whole).await?;
    let download = of_entry(&path, &entry);
    let wanted = match download.wanted(&headers) {
        Ok(wanted) => wanted,
        Err(response) => return Ok(response),
    };
    if wanted.part == Part::Whole {
        return Ok(download.response(&wanted, whole));
    }
    let (now, content) = state.sessions.read_file(&tenant, id, &path, wanted.part).await?;
    if now.etag == entry.etag {
        return Ok(download.response(&wanted, content));
    }
    // a cell has changed it between the two looks: everything is judged by the second one
    let download = of_entry(&path, &now);
    match download.wanted(&headers) {
        Ok(again) if again.part == wanted.part => Ok(download.response(&again, content)),
        Ok(again) => {
            let (now, whole) = state.sessions.read_file(&tenant, id, &path, Part::Whole).await?;
            Ok(of_entry(&path, &now).response(&again, whole))
        }
        Err(response) => Ok(response),
    }
}

/// What is told of a file, without its content.
#[utoipa::path(head, path = "/v1/sessions/{session_id}/files/{*path}", tag = "files",
    params(("session_id" = SessionId, Path, description = "The session"), ("path" = String, Path, description = "Relative to the files folder")),
    responses((status = 200, description = "Size, type and entity tag, as headers"), Guarded, Addressed, InSession, Reaching, Checked))]
pub(super) async fn head_file(
    state: State<ApiState>,
    tenant: Tenant,
    path: Path<(SessionId, String)>,
    mut headers: HeaderMap,
) -> Result<Response, Problem> {
    headers.remove(header::RANGE); // RFC 9110: a range is for GET alone
    get_file(state, tenant, path, headers).await // the server sends no body to a HEAD
}

/// Delete a file.
#[utoipa::path(delete, path = "/v1/sessions/{session_id}/files/{*path}", tag = "files",
    params(("session_id" = SessionId, Path, description = "The session"), ("path" = String, Path, description = "Relative to the files folder")),
    responses((status = 204, description = "It is gone"), Guarded, Addressed, InSession, Reaching, Conditional))]
pub(super) async fn delete_file(
    State(state): State<ApiState>,
    Tenant(tenant): Tenant,
    Path((id, path)): Path<(SessionId, String)>,
    headers: HeaderMap,
) -> Result<StatusCode, Problem> {
    let path = file_path(path)?;
    let condition = conditions::of_change(&headers);
    state.sessions.delete_file(&tenant, id, &path, &condition).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn of_entry<'a>(path: &'a FilePath, entry: &'a FileEntry) -> Download<'a> {
    Download {
        name: path.name(),
        mime: &entry.mime,
        size_bytes: entry.size_bytes,
        etag: &entry.etag,
    }
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
