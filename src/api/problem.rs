//! Errors as callers see them: RFC 9457. The only file that knows HTTP statuses of errors.

use std::any::Any;
use std::error::Error;

use axum::Json;
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::{IntoResponses, ToSchema};

use super::trace;
use crate::domain::coded::{Class, Coded, chain};
use crate::domain::id::RunId;

/// What went wrong, `application/problem+json`.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct Problem {
    /// Always `about:blank`: `code` says which problem it is.
    #[serde(rename = "type")]
    kind: &'static str,
    /// The HTTP status in words.
    title: String,
    /// The HTTP status.
    status: u16,
    /// What happened, for people.
    detail: String,
    /// What happened, for programs: stable.
    code: &'static str,
    /// The id that the service logged it with.
    request_id: String,
    /// The run that recorded what happened.
    #[serde(skip_serializing_if = "Option::is_none")]
    run_id: Option<RunId>,
    /// True when sending the request again cannot run code twice.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_safe: Option<bool>,
    /// Which parts of the request are to blame.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    errors: Vec<FieldError>,
}

/// A part of the request that is to blame.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct FieldError {
    /// JSON pointer (RFC 6901) to it.
    pointer: String,
    /// What is wrong with it.
    detail: String,
}

impl Problem {
    /// A problem that the request itself shows.
    pub(super) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self {
            kind: "about:blank",
            title: status.canonical_reason().unwrap_or("Error").to_owned(),
            status: status.as_u16(),
            detail: detail.into(),
            code,
            request_id: trace::request_id(),
            run_id: None,
            retry_safe: None,
            errors: Vec::new(),
        }
    }

    /// The same, with the part that is to blame.
    pub(super) fn at(mut self, pointer: impl Into<String>) -> Self {
        let detail = self.detail.clone();
        self.errors.push(FieldError { pointer: pointer.into(), detail });
        self
    }

    pub(super) fn no_route(uri: &Uri) -> Self {
        let detail = format!("there is no route {}", uri.path());
        Self::new(StatusCode::NOT_FOUND, "route_not_found", detail)
    }

    pub(super) fn no_method(method: &Method) -> Self {
        let detail = format!("this route does not take {method}");
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", detail)
    }
}

/// The code of the problem that an answer is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Refused(pub(super) &'static str);

/// Every error of ours becomes a problem here, and one that is not the caller's is logged here.
impl<E: Coded + Error + 'static> From<E> for Problem {
    fn from(error: E) -> Self {
        let code = error.code();
        let (status, fixed) = status(code.class);
        let detail = match fixed {
            None => error.to_string(),
            Some(sentence) => {
                tracing::error!(
                    code = code.name,
                    request_id = trace::request_id(),
                    error = chain(&error),
                    "a request failed"
                );
                match (error.run_id(), error.told()) {
                    (Some(id), _) => format!(
                        "{sentence}: GET /v1/runs/{id} says how, and has what was done until then"
                    ),
                    (None, Some(told)) => format!("{sentence}: {told}"),
                    (None, None) => sentence.to_owned(),
                }
            }
        };
        let mut problem = Self::new(status, code.name, detail);
        if let Some(field) = error.field() {
            problem = problem.at(field);
        }
        problem.run_id = error.run_id();
        problem.retry_safe = error.retry_safe();
        problem
    }
}

/// The status of a class, and the fixed sentence where the cause is nobody's business.
fn status(class: Class) -> (StatusCode, Option<&'static str>) {
    match class {
        Class::Malformed => (StatusCode::BAD_REQUEST, None),
        Class::Unauthorized => (StatusCode::UNAUTHORIZED, None),
        Class::Forbidden => (StatusCode::FORBIDDEN, None),
        Class::NotFound => (StatusCode::NOT_FOUND, None),
        Class::Conflict => (StatusCode::CONFLICT, None),
        Class::Gone => (StatusCode::GONE, None),
        Class::Precondition => (StatusCode::PRECONDITION_FAILED, None),
        Class::Range => (StatusCode::RANGE_NOT_SATISFIABLE, None),
        Class::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, None),
        Class::Invalid => (StatusCode::UNPROCESSABLE_ENTITY, None),
        Class::Limited => (StatusCode::TOO_MANY_REQUESTS, None),
        Class::NotConfigured => (StatusCode::NOT_IMPLEMENTED, None),
        Class::Upstream => {
            (StatusCode::BAD_GATEWAY, Some("a service that this one depends on failed"))
        }
        Class::Unavailable => (
            StatusCode::SERVICE_UNAVAILABLE,
            Some("the service cannot do this now; try again later"),
        ),
        Class::UpstreamTimeout => {
            (StatusCode::GATEWAY_TIMEOUT, Some("a service that this one depends on took too long"))
        }
        Class::Internal => {
            (StatusCode::INTERNAL_SERVER_ERROR, Some("the service failed; its log says why"))
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let code = self.code;
        let mut response = (status, Json(self)).into_response();
        response.extensions_mut().insert(Refused(code));
        let headers = response.headers_mut();
        let problem = HeaderValue::from_static("application/problem+json");
        headers.insert(header::CONTENT_TYPE, problem);
        match status {
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        response
    }
}

/// Routes that give a part of a file.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "documents statuses; they are made in download.rs")]
pub(super) enum Parts {
    /// The part that was asked for.
    #[response(status = 206, description = "The part that Range asks for", content_type = "*/*")]
    Part(Vec<u8>),
    /// There is no such part.
    #[response(
        status = 416,
        description = "The file has no such part; Content-Range tells its size",
        content_type = "application/problem+json"
    )]
    NoSuchPart(Problem),
}

/// Routes that give a file, or what is told of it, under conditions.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "documents statuses; they are made in download.rs")]
pub(super) enum Checked {
    /// The caller has it already.
    #[response(status = 304, description = "The caller has it already, as If-None-Match says")]
    NotModified,
    /// The file is another one.
    #[response(
        status = 412,
        description = "The file is not as If-Match says",
        content_type = "application/problem+json"
    )]
    ConditionFailed(Problem),
}

/// A handler that panicked: a fault of ours, told like any other.
pub(super) fn panicked(payload: Box<dyn Any + Send + 'static>) -> Response {
    let said = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let said = said.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default();
    tracing::error!(request_id = trace::request_id(), panic = said, "a handler panicked");
    let (status, sentence) = status(Class::Internal);
    Problem::new(status, "internal", sentence.unwrap_or_default()).into_response()
}

macro_rules! problem_groups {
    ($($(#[$doc:meta])* $name:ident { $($variant:ident = $status:literal, $description:literal;)* })*) => { $(
        $(#[$doc])*
        #[derive(IntoResponses)]
        #[expect(dead_code, reason = "documents statuses; problems are made elsewhere")]
        pub(super) enum $name { $(
            #[doc = $description]
            #[response(status = $status, content_type = "application/problem+json", description = $description)]
            $variant(Problem),
        )* }
    )* };
}

problem_groups! {
    /// Any route behind a key.
    Guarded {
        Unauthorized = 401, "A key is needed, and none or a wrong one came";
        Forbidden = 403, "The Host or Origin header is foreign";
        Failed = 500, "The service failed";
    }
    /// Routes with a path or query that can be wrong.
    Addressed {
        BadAddress = 400, "A part of the path or query cannot be read";
    }
    /// Routes that ask the database and make no sandbox.
    Stored {
        Unavailable = 503, "The database cannot be used now; trying again is safe";
    }
    /// Routes that take a body.
    Bodied {
        Malformed = 400, "The body cannot be read";
        Slow = 408, "The body took too long";
        TooLarge = 413, "The body, or something in it, is larger than its limit";
        MediaType = 415, "The content type is another one";
        Invalid = 422, "The body is well-formed and not acceptable; `errors` says where";
    }
    /// Routes that take files as a form.
    Uploaded {
        Slow = 408, "The body took too long";
        TooLarge = 413, "A file is larger than files may be, or the session has no room for it";
        MediaType = 415, "The content type is another one";
    }
    /// Routes that reach a sandbox, which may be elsewhere.
    Reaching {
        Limited = 429, "The provider allows no more calls now; trying again later is safe";
        Refused = 502, "The provider refused; `detail` has its words";
        Unreachable = 503, "The sandbox cannot be reached, or the host has no memory for the file, now; trying again is safe";
    }
    /// Routes that change a file under a condition.
    Conditional {
        ConditionFailed = 412, "The file is not as If-Match or If-None-Match says";
    }
    /// Routes below one session.
    InSession {
        NoSession = 404, "There is no such session, or no such file in it";
        Conflict = 409, "The session's queue is full, it is still starting, another replica serves it, or it cannot do that";
        Gone = 410, "The session has ended; `detail` says when and why";
    }
    /// Routes that make sandboxes.
    Making {
        Limited = 429, "The provider's plan or rate allows no more now; trying again later is safe";
        Refused = 502, "The provider refused, and no code has run; `detail` has its words";
        Unavailable = 503, "No sandbox can be made, or none be reached, now; trying again is safe";
        ProviderTimeout = 504, "The provider took too long";
    }
}
