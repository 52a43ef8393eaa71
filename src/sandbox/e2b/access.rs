//! How E2B is reached: its places, its keys, its answers.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use reqwest::header::{ACCEPT, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::{Client, Method, RequestBuilder, Response};
use secrecy::{ExposeSecret, SecretString};
use serde::de::DeserializeOwned;

use super::error::{E2bError, Refusal};
use super::wire::{Made, Refused};
use crate::config::E2bEntry;
use crate::domain::reason::Reason;
use crate::domain::weight::weigh;
use crate::net::{ClientPlan, planned};

/// Domains whose sandboxes share a host, which routes by headers.
const SHARED: [&str; 7] = [
    "e2b.app",
    "e2b.dev",
    "e2b.pro",
    "e2b-staging.dev",
    "e2b-tango.dev",
    "e2b-juliett.dev",
    "foxtrot-2.e2b.dev",
];
/// A connection that lies unused for longer is not used again for a run: one that the other side has
/// closed meanwhile would make its outcome unknown. benches/scenes/e2b.py says what reuse is worth.
const RUN_IDLE: Duration = Duration::from_secs(2);
/// For the body of an answer, however slowly it drips.
const BODY_LIMIT: Duration = Duration::from_secs(30);
const REFUSAL_LIMIT: Duration = Duration::from_secs(5);
/// The longest pause that a service may ask for.
const LONGEST_AFTER: u64 = 3600;
const MAX_REFUSAL_BYTES: usize = 64 << 10;
/// What an answer may become in memory beside its text.
const MAX_PARSED_BYTES: usize = 256 << 20;
const MAX_DEPTH: usize = 64;

/// One account: where it is and what opens it.
pub(super) struct Access {
    pub(super) entry: E2bEntry,
    api: String,
    /// For the control plane, and for what a sandbox offers besides its code interpreter.
    calls: Client,
    /// For runs: a call that is dropped ends its connection.
    runs: Client,
}

impl Access {
    pub(super) fn new(entry: E2bEntry) -> Result<Self, E2bError> {
        let plan =
            |idle| ClientPlan { idle, ca_file: entry.ca_file.as_deref(), ..ClientPlan::default() };
        let calls = planned(&plan(None))?;
        let runs = planned(&plan(Some(RUN_IDLE)))?;
        let of_domain = || format!("https://api.{}", entry.domain);
        let api = entry.api_url.clone().unwrap_or_else(of_domain);
        reqwest::Url::parse(&api).map_err(|_| E2bError::Url)?;
        Ok(Self { api: api.trim_end_matches('/').to_owned(), entry, calls, runs })
    }

    /// A call of the control plane.
    pub(super) fn api(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.calls.request(method, format!("{}{path}", self.api));
        request.header("X-API-Key", sensitive(&self.entry.api_key))
    }

    /// The secret texts that must stand in no error.
    fn secrets(&self) -> Vec<SecretString> {
        vec![self.entry.api_key.clone()]
    }

    /// A successful answer's body, read as JSON.
    pub(super) async fn json<T: DeserializeOwned>(
        &self,
        response: Response,
        most: usize,
    ) -> Result<T, E2bError> {
        let body = whole(self.accepted(response).await?, most);
        let body = tokio::time::timeout(BODY_LIMIT, body).await;
        parsed(&body.map_err(|_| E2bError::TooSlow)??)
    }

    /// The answer when it is one of success; what was said else.
    pub(super) async fn accepted(&self, response: Response) -> Result<Response, E2bError> {
        accepted(response, &self.secrets()).await
    }
}

/// The way to one sandbox.
pub(super) struct Door {
    pub(super) access: Arc<Access>,
    pub(super) sandbox_id: String,
    envd_token: Option<SecretString>,
    traffic_token: Option<SecretString>,
    /// Raw bodies are taken as files; only forms else.
    pub(super) takes_raw_files: bool,
}

/// The two services inside a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Port {
    /// Files and processes.
    Envd,
    /// The code interpreter.
    Code,
}

impl Port {
    const fn number(self) -> u16 {
        match self {
            Self::Envd => 49983,
            Self::Code => 49999,
        }
    }
}

impl Door {
    /// The way to a sandbox that E2B has told of. What it says of hosts must be what is configured.
    pub(super) fn new(access: Arc<Access>, made: Made) -> Result<Self, E2bError> {
        if !is_id(&made.sandbox_id) {
            return Err(E2bError::BadAnswer("the id of a sandbox"));
        }
        if made.domain.as_ref().is_some_and(|domain| *domain != access.entry.domain) {
            return Err(E2bError::OtherDomain);
        }
        Ok(Self {
            sandbox_id: made.sandbox_id,
            envd_token: made.envd_access_token.map(Into::into),
            traffic_token: made.traffic_access_token.map(Into::into),
            takes_raw_files: made.envd_version.is_some_and(|version| takes_raw_files(&version)),
            access,
        })
    }

    /// A call to one of the sandbox's services.
    pub(super) fn request(&self, method: Method, port: Port, path: &str) -> RequestBuilder {
        let entry = &self.access.entry;
        let base = match &entry.sandbox_url {
            Some(url) => url.trim_end_matches('/').to_owned(),
            None if SHARED.contains(&entry.domain.as_str()) => {
                format!("https://sandbox.{}", entry.domain)
            }
            None => format!("https://{}-{}.{}", port.number(), self.sandbox_id, entry.domain),
        };
        let client = match port {
            Port::Envd => &self.access.calls,
            Port::Code => &self.access.runs,
        };
        let mut request = client
            .request(method, format!("{base}{path}"))
            .header("E2b-Sandbox-Id", &self.sandbox_id)
            .header("E2b-Sandbox-Port", port.number())
            // a browser would be told in HTML
            .header(ACCEPT, "application/json, */*");
        if let Some(token) = &self.envd_token {
            request = request.header("X-Access-Token", sensitive(token));
        }
        if let Some(token) = &self.traffic_token {
            request = request.header("E2B-Traffic-Access-Token", sensitive(token));
        }
        request
    }

    /// The answer when it is one of success; what was said else.
    pub(super) async fn accepted(&self, response: Response) -> Result<Response, E2bError> {
        let mut secrets = self.access.secrets();
        secrets.extend(self.envd_token.iter().chain(&self.traffic_token).cloned());
        accepted(response, &secrets).await
    }
}

/// Whether a text can be the id of a sandbox: it becomes a part of URLs and of host names.
pub(super) fn is_id(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=64).contains(&text.len()) && text.chars().all(fits) && !text.starts_with('-')
}

fn sensitive(secret: &SecretString) -> HeaderValue {
    let mut value = HeaderValue::from_str(secret.expose_secret())
        .unwrap_or_else(|_| HeaderValue::from_static("unusable"));
    value.set_sensitive(true);
    value
}

/// Raw bodies are taken since envd 0.5.7.
fn takes_raw_files(version: &str) -> bool {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let mut next = || parts.next().unwrap_or(0);
    (next(), next(), next()) >= (0, 5, 7)
}

/// Sends a call and waits for the head of its answer.
pub(super) async fn send(request: RequestBuilder, limit: Duration) -> Result<Response, E2bError> {
    let sent = tokio::time::timeout(limit, request.send()).await;
    sent.map_err(|_| E2bError::TooSlow)?.map_err(failed)
}

/// A failure of the transport, without the URL: ids stand in it.
pub(super) fn failed(error: reqwest::Error) -> E2bError {
    let error = error.without_url();
    if error.is_connect() || error.is_builder() {
        E2bError::Unreachable(error)
    } else if error.is_timeout() {
        E2bError::TooSlow
    } else {
        E2bError::Broken(error)
    }
}

/// A body of no more than this.
pub(super) async fn whole(mut response: Response, most: usize) -> Result<Bytes, E2bError> {
    let mut body = BytesMut::new();
    while let Some(piece) = response.chunk().await.map_err(failed)? {
        if body.len() + piece.len() > most {
            return Err(E2bError::BadAnswer("its body is too long"));
        }
        body.extend_from_slice(&piece);
    }
    Ok(body.freeze())
}

/// JSON from elsewhere, weighed first.
pub(super) fn parsed<T: DeserializeOwned>(body: &[u8]) -> Result<T, E2bError> {
    let weight = weigh(body);
    if weight.parsed_bytes > MAX_PARSED_BYTES || weight.depth > MAX_DEPTH {
        return Err(E2bError::BadAnswer("its body is too deep or of too many parts"));
    }
    serde_json::from_slice(body).map_err(|_| E2bError::BadAnswer("its body is not as documented"))
}

async fn accepted(response: Response, secrets: &[SecretString]) -> Result<Response, E2bError> {
    if response.status().is_success() {
        return Ok(response);
    }
    let status = response.status().as_u16();
    let headers = response.headers().clone();
    let reading = tokio::time::timeout(REFUSAL_LIMIT, whole(response, MAX_REFUSAL_BYTES));
    let body = reading.await.ok().and_then(Result::ok).unwrap_or_default();
    Err(refusal(status, &headers, &body, secrets))
}

/// What a refusal says: E2B's control plane, its proxies and the services inside each in their way.
fn refusal(status: u16, headers: &HeaderMap, body: &[u8], secrets: &[SecretString]) -> E2bError {
    let told = serde_json::from_slice::<Refused>(body).unwrap_or_default();
    let text = String::from_utf8_lossy(body);
    // a page of a load balancer says nothing that helps
    let plain = if text.trim_start().starts_with('<') { "" } else { text.as_ref() };
    let message = told.message.as_deref().unwrap_or(plain);
    if status == 502 && told.message.is_some() && message.contains("was not found") {
        return E2bError::Gone;
    }
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let seconds = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let reason = Reason::without_secrets(message, secrets);
    let is_code = |c: char| c.is_ascii_alphanumeric() || c == '_';
    E2bError::Refused(Refusal {
        status,
        code: told.error_code.filter(|code| {
            let tells = secrets.iter().any(|secret| code.contains(secret.expose_secret()));
            code.len() <= 64 && code.chars().all(is_code) && !tells
        }),
        reason,
        after: seconds.map(|seconds: u64| Duration::from_secs(seconds.min(LONGEST_AFTER))),
        again: header("should-retry").and_then(|value| value.parse().ok()),
        is_quota: Refusal::is_quota(status, message),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(status: u16, body: &str) -> String {
        let secrets = ["sesame".into()];
        refusal(status, &HeaderMap::new(), body.as_bytes(), &secrets).to_string()
    }

    #[test]
    fn a_sandbox_is_gone_only_where_the_proxy_says_so() {
        let gone = r#"{"sandboxId":"i1","message":"The sandbox was not found","code":502}"#;
        assert_eq!(told(502, gone), "the sandbox is gone");
        for (status, body) in [
            (502, r#"{"message":"The sandbox is running but port is not open","code":502}"#),
            (502, "<html>502 was not found</html>"),
            (502, "was not found"),
            (404, gone),
        ] {
            assert!(told(status, body).starts_with("E2B refused (HTTP"), "{body}");
        }
    }

    #[test]
    fn refusals_are_told_shortly_and_without_keys() {
        assert_eq!(
            told(401, r#"{"code":401,"message":"Invalid API key sesame"}"#),
            "E2B refused (HTTP 401): Invalid API key [key]"
        );
        assert_eq!(told(404, "Context x not found"), "E2B refused (HTTP 404): Context x not found");
        assert_eq!(told(502, "<html>bad</html>"), "E2B refused (HTTP 502)");
        let placed =
            r#"{"code":500,"message":"Failed to place","error_code":"sandbox_create_failed"}"#;
        assert_eq!(
            told(500, placed),
            "E2B refused (HTTP 500, sandbox_create_failed): Failed to place"
        );
    }

    #[test]
    fn no_part_of_a_key_is_told_however_it_is_put() {
        let long = format!("{}sesame", "m".repeat(295));
        let body = serde_json::json!({"message": long, "error_code": "sesame"}).to_string();
        let told = told(429, &body);
        assert!(told.ends_with("m[key]") && !told.contains("ses"), "{told}");
    }

    #[test]
    fn an_id_can_become_no_other_path() {
        for id in ["i5f2az8cvj78ft3np5vgy", "abc-def"] {
            assert!(is_id(id), "{id}");
        }
        for id in ["", "../x", "a/b", "a?x=", "A", "a.b", "-a", "é", &"x".repeat(65)] {
            assert!(!is_id(id), "{id}");
        }
    }

    #[test]
    fn a_wait_of_centuries_is_none() {
        let after = [(RETRY_AFTER, HeaderValue::from_static("18446744073709551615"))];
        let E2bError::Refused(refusal) = refusal(503, &HeaderMap::from_iter(after), b"", &[])
        else {
            panic!("a refusal")
        };
        assert_eq!(refusal.after, Some(Duration::from_secs(LONGEST_AFTER)));
    }

    #[test]
    fn raw_files_are_sent_to_those_who_take_them() {
        for (version, raw) in
            [("0.5.7", true), ("0.6.13", true), ("1.0", true), ("0.5.6", false), ("", false)]
        {
            assert_eq!(takes_raw_files(version), raw, "{version}");
        }
    }
}
