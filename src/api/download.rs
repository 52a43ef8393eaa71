//! Files on their way out: never run, never sniffed, shown inline only as pictures.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::stream::BoxStream;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::conditions::{self, Read};
use super::problem::Problem;
use crate::domain::file::Part;

/// Pictures that a browser may show in place.
const INLINE: [&str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];
const POLICY: &str = "default-src 'none'; sandbox";
/// RFC 8187, attr-char.
const ATTR_CHAR: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'!')
    .remove(b'#')
    .remove(b'$')
    .remove(b'&')
    .remove(b'+')
    .remove(b'-')
    .remove(b'.')
    .remove(b'^')
    .remove(b'_')
    .remove(b'`')
    .remove(b'|')
    .remove(b'~');

/// What is told of a file.
pub(super) struct Download<'a> {
    pub(super) name: &'a str,
    pub(super) mime: &'a str,
    pub(super) size_bytes: u64,
    pub(super) etag: &'a str,
}

impl Download<'_> {
    /// Says before any content is opened whether, and which part of it, is given.
    pub(super) fn wanted(&self, headers: &HeaderMap) -> Result<Wanted, Response> {
        match conditions::of_read(headers, self.etag) {
            Read::Given => {}
            Read::NotModified => {
                let mut response = StatusCode::NOT_MODIFIED.into_response();
                self.tag(response.headers_mut());
                return Err(response);
            }
            Read::Refused => {
                let detail = "the file is not as If-Match says";
                let problem =
                    Problem::new(StatusCode::PRECONDITION_FAILED, "condition_failed", detail);
                return Err(problem.into_response());
            }
        }
        let part = conditions::part(headers, self.etag);
        let size = self.size_bytes;
        match (part, part.within(size)) {
            (Part::Whole, _) => Ok(Wanted { part, range: None }),
            (_, Some(range)) => Ok(Wanted { part, range: Some(range) }),
            (_, None) => {
                let detail = format!("the file has {size} bytes and no such part");
                let problem = Problem::new(
                    StatusCode::RANGE_NOT_SATISFIABLE,
                    "range_not_satisfiable",
                    detail,
                );
                Err(([(header::CONTENT_RANGE, format!("bytes */{size}"))], problem).into_response())
            }
        }
    }

    /// The answer with the content in it.
    pub(super) fn response(
        &self,
        wanted: &Wanted,
        content: BoxStream<'static, std::io::Result<Bytes>>,
    ) -> Response {
        let mut response = Response::new(Body::from_stream(content));
        let mut length = self.size_bytes;
        if let Some((first, part)) = wanted.range {
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
            let range = format!("bytes {first}-{}/{}", first + part - 1, self.size_bytes);
            if let Ok(range) = HeaderValue::from_str(&range) {
                response.headers_mut().insert(header::CONTENT_RANGE, range);
            }
            length = part;
        }
        let headers = response.headers_mut();
        let mime = HeaderValue::from_str(self.mime)
            .unwrap_or(HeaderValue::from_static("application/octet-stream"));
        headers.insert(header::CONTENT_TYPE, mime);
        headers.insert(header::CONTENT_LENGTH, length.into());
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
        if let Ok(disposition) = HeaderValue::from_str(&disposition(self.name, self.mime)) {
            headers.insert(header::CONTENT_DISPOSITION, disposition);
        }
        self.tag(headers);
        response
    }

    fn tag(&self, headers: &mut HeaderMap) {
        headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
        if let Ok(etag) = HeaderValue::from_str(&format!("\"{}\"", self.etag)) {
            headers.insert(header::ETAG, etag);
        }
    }
}

/// Which part is given.
pub(super) struct Wanted {
    pub(super) part: Part,
    /// First byte and length, where it is not the whole.
    range: Option<(u64, u64)>,
}

/// RFC 6266 with RFC 8187 for names that are not plain ASCII.
fn disposition(name: &str, mime: &str) -> String {
    let kind = if INLINE.contains(&mime) { "inline" } else { "attachment" };
    let plain: String = name
        .chars()
        .map(|c| {
            if c.is_ascii_graphic() && !matches!(c, '"' | '\\' | '%') || c == ' ' { c } else { '_' }
        })
        .collect();
    if plain == name {
        return format!("{kind}; filename=\"{plain}\"");
    }
    format!(
        "{kind}; filename=\"{plain}\"; filename*=UTF-8''{}",
        utf8_percent_encode(name, ATTR_CHAR)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_any_script_are_told_as_the_standard_has_it() {
        assert_eq!(disposition("a b.csv", "text/csv"), "attachment; filename=\"a b.csv\"");
        assert_eq!(
            disposition("é\".png", "image/png"),
            "inline; filename=\"__.png\"; filename*=UTF-8''%C3%A9%22.png"
        );
        assert_eq!(disposition("x.svg", "image/svg+xml"), "attachment; filename=\"x.svg\"");
        assert_eq!(
            disposition("a\r\nb", "text/plain"),
            "attachment; filename=\"a__b\"; filename*=UTF-8''a%0D%0Ab"
        );
    }
}
