//! Who is let in: keys, and no foreign web pages.

use std::net::IpAddr;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;

use super::ApiState;
use super::problem::Problem;

/// Routes that anybody may ask: they tell nothing.
const OPEN: [&str; 2] = ["/healthz", "/readyz"];

/// Lets a caller with a key in and notes whose things it sees.
pub(super) async fn admit(
    State(state): State<ApiState>,
    mut request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let header = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    match state.access.admit(header) {
        Ok(tenant) => {
            request.extensions_mut().insert(tenant);
        }
        Err(_) if OPEN.contains(&request.uri().path()) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(next.run(request).await)
}

/// Turns away what a web page of another site makes a browser send, DNS rebinding included.
pub(super) async fn browsers(
    State(state): State<ApiState>,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let authority = request.uri().authority().map(ToString::to_string);
    match refusal(authority.as_deref(), request.headers(), &state.allowed_hosts) {
        None => Ok(next.run(request).await),
        Some((code, detail)) => Err(Problem::new(StatusCode::FORBIDDEN, code, detail)),
    }
}

fn refusal(
    authority: Option<&str>,
    headers: &HeaderMap,
    allowed: &[String],
) -> Option<(&'static str, &'static str)> {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or("\0"));
    let host = authority.or_else(|| text(header::HOST)).unwrap_or_default();
    if !is_ours(host, allowed) {
        return Some(("foreign_host", "the Host header names another place: see --allowed-hosts"));
    }
    if text(header::ORIGIN).is_some_and(|origin| !is_same_place(origin, host)) {
        return Some(("foreign_origin", "pages of other sites may not call this service"));
    }
    let site = headers.get("sec-fetch-site").map(|value| value.to_str().unwrap_or("\0"));
    if site.is_some_and(|site| !matches!(site, "same-origin" | "none")) {
        return Some(("foreign_origin", "pages of other sites may not call this service"));
    }
    None
}

/// A name can be made to point here by anybody; an address cannot.
fn is_ours(host: &str, allowed: &[String]) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port))
            if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.is_empty() =>
        {
            name
        }
        _ => host,
    };
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || bare.parse::<IpAddr>().is_ok()
        || allowed.iter().any(|allowed| allowed.eq_ignore_ascii_case(name))
}

fn is_same_place(origin: &str, host: &str) -> bool {
    let place = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    place.is_some_and(|place| place.eq_ignore_ascii_case(host))
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    fn check(headers: &[(&'static str, &'static str)]) -> Option<&'static str> {
        let map = headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        refusal(None, &map.collect(), &["api.example.org".to_owned()]).map(|(code, _)| code)
    }

    #[test]
    fn our_own_names_and_addresses_are_let_in() {
        for host in [
            "localhost",
            "localhost:8080",
            "127.0.0.1:8080",
            "[::1]:8080",
            "10.1.2.3",
            "api.example.org",
            "API.example.org:443",
        ] {
            assert_eq!(check(&[("host", host)]), None, "{host}");
        }
        assert_eq!(
            check(&[
                ("host", "localhost:8080"),
                ("origin", "http://localhost:8080"),
                ("sec-fetch-site", "same-origin")
            ]),
            None
        );
    }

    #[test]
    fn foreign_pages_are_turned_away() {
        for host in ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", ""] {
            assert_eq!(check(&[("host", host)]), Some("foreign_host"), "{host}");
        }
        for origin in
            ["null", "http://evil.example", "http://localhost:9999", "file://localhost:8080"]
        {
            assert_eq!(
                check(&[("host", "localhost:8080"), ("origin", origin)]),
                Some("foreign_origin"),
                "{origin}"
            );
        }
        for site in ["cross-site", "same-site"] {
            assert_eq!(
                check(&[("host", "localhost"), ("sec-fetch-site", site)]),
                Some("foreign_origin")
            );
        }
    }
}
