//! Multipart forms: files are spooled as they come in, all within one budget.

use axum::body::Bytes;
use axum::extract::multipart::{Field, MultipartError};
use axum::extract::{FromRequest, Multipart, Request};
use axum::http::StatusCode;

use super::ApiState;
use super::extract::{is_form, media_type, within};
use super::files::file_path;
use super::problem::Problem;
use crate::runs::spool::NewFile;

/// Parts that one request may have.
const MAX_PARTS: usize = 100;

/// A form, part by part.
pub(super) struct Form<'a> {
    multipart: Multipart,
    state: &'a ApiState,
    parts: usize,
    /// What the files of this request may still have together.
    left: u64,
}

/// One part of a form.
pub(super) enum FormPart {
    /// A part with a file name.
    File(NewFile),
    /// Any other part, as long as a JSON body may be.
    Field { name: String, content: Bytes },
}

impl<'a> Form<'a> {
    pub(super) async fn read(request: Request, state: &'a ApiState) -> Result<Self, Problem> {
        if !is_form(request.headers()) {
            return Err(media_type("multipart/form-data"));
        }
        let multipart = Multipart::from_request(request, state).await;
        let multipart = multipart.map_err(|rejection| broken(rejection.body_text()))?;
        Ok(Self { multipart, state, parts: 0, left: state.limits.file_bytes })
    }

    /// The next part, None after the last one.
    pub(super) async fn next(&mut self) -> Result<Option<FormPart>, Problem> {
        let limit = self.state.limits.transfer_seconds;
        let part = within(limit, self.multipart.next_field()).await?;
        let Some(mut part) = part.map_err(|error| cut(&error))? else { return Ok(None) };
        self.parts += 1;
        if self.parts > MAX_PARTS {
            return Err(broken(format!("there are more than {MAX_PARTS} parts")));
        }
        if let Some(name) = part.file_name().map(str::to_owned) {
            let (file, size) = file(&mut part, name, self.left, self.state).await?;
            self.left -= size;
            return Ok(Some(FormPart::File(file)));
        }
        let name = part.name().unwrap_or_default().to_owned();
        let content = field(&mut part, self.state).await?;
        Ok(Some(FormPart::Field { name, content }))
    }
}

async fn file(
    part: &mut Field<'_>,
    name: String,
    left: u64,
    state: &ApiState,
) -> Result<(NewFile, u64), Problem> {
    let path = file_path(name)?;
    let mut spool = state.runs.spool().await?;
    while let Some(piece) = next_piece(part, state).await? {
        spool.write(&piece).await?;
        if spool.size_bytes() > left {
            return Err(too_large());
        }
    }
    let size = spool.size_bytes();
    Ok((NewFile { path, content: spool.finish().await? }, size))
}

async fn field(part: &mut Field<'_>, state: &ApiState) -> Result<Bytes, Problem> {
    let mut content = Vec::new();
    while let Some(piece) = next_piece(part, state).await? {
        content.extend_from_slice(&piece);
        if content.len() as u64 > state.limits.body_bytes {
            return Err(too_large());
        }
    }
    Ok(content.into())
}

async fn next_piece(part: &mut Field<'_>, state: &ApiState) -> Result<Option<Bytes>, Problem> {
    let piece = within(state.limits.transfer_seconds, part.chunk()).await?;
    piece.map_err(|error| cut(&error))
}

/// A form that is none.
pub(super) fn broken(detail: String) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "malformed_multipart", detail)
}

/// A body over its limit.
pub(super) fn too_large() -> Problem {
    let detail = "the body is larger than its limit";
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", detail)
}

fn cut(error: &MultipartError) -> Problem {
    broken(error.body_text())
}
