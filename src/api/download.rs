//! Files on their way out: never run, never sniffed, shown inline only as pictures.

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use futures::stream::BoxStream;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

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
}

/// The answer with the file in it.
pub(super) fn response(
    file: Download<'_>,
    content: BoxStream<'static, std::io::Result<Bytes>>,
) -> Response {
    let mut response = Response::new(Body::from_stream(content));
    let headers = response.headers_mut();
    let mime = HeaderValue::from_str(file.mime)
        .unwrap_or(HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::CONTENT_TYPE, mime);
    headers.insert(header::CONTENT_LENGTH, file.size_bytes.into());
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    if let Ok(disposition) = HeaderValue::from_str(&disposition(file.name, file.mime)) {
        headers.insert(header::CONTENT_DISPOSITION, disposition);
    }
    response
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
