//! The one HTTP client: no redirects, timeouts, the system's certificates.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::domain::build::VERSION;

const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// How long a connection to AWS may lie unused before a call takes a new one.
#[cfg(feature = "bedrock")]
const AWS_IDLE: Duration = Duration::from_secs(10);

/// Why no client can be made.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The system lacks what TLS needs.
    #[error("the HTTP client cannot be set up: are the system's CA certificates installed?")]
    SetUp(#[source] reqwest::Error),
    /// The file of further certificates cannot be read.
    #[error("cannot read certificates from {}", .0.display())]
    Read(PathBuf, #[source] std::io::Error),
    /// The file of further certificates holds something else.
    #[error("{} does not hold certificates in PEM", .0.display())]
    Pem(PathBuf, #[source] reqwest::Error),
}

/// What a client is for.
#[derive(Debug, Default)]
pub struct ClientPlan<'a> {
    /// The limit for a whole call; none where each part of a call has its own.
    pub limit: Option<Duration>,
    /// The limit for an answer to begin, and then for each next piece of it.
    pub still: Option<Duration>,
    /// How long a connection may lie unused before a call takes a new one; none: the library's default.
    pub idle: Option<Duration>,
    /// Past the proxies that the environment names.
    pub direct: bool,
    /// Certificates that are trusted besides the system's, PEM.
    pub ca_file: Option<&'a Path>,
}

/// Chooses ring for TLS, for the whole process; once, before any client is made.
pub fn install_crypto() {
    // an error means that it was chosen before, which is what is wanted
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// A client that follows no redirect (a key would follow it), with a limit for a whole call.
///
/// # Errors
/// [`ClientError`] when the system has no CA certificates.
pub fn client(limit: Duration) -> Result<reqwest::Client, ClientError> {
    planned(&ClientPlan { limit: Some(limit), ..ClientPlan::default() })
}

/// A client that follows no redirect, as it is planned.
///
/// # Errors
/// [`ClientError`] when the system has no CA certificates, or the file has none.
#[expect(clippy::disallowed_methods, reason = "the one place where clients are made")]
pub fn planned(plan: &ClientPlan<'_>) -> Result<reqwest::Client, ClientError> {
    install_crypto();
    let mut builder = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .http1_only() // object_store brings HTTP/2 into the library, which no call here was made for
        .connect_timeout(CONNECT_LIMIT)
        .user_agent(format!("interpreterd/{VERSION}"));
    if let Some(limit) = plan.limit {
        builder = builder.timeout(limit);
    }
    if plan.direct {
        builder = builder.no_proxy();
    }
    if let Some(still) = plan.still {
        builder = builder.read_timeout(still);
    }
    if let Some(idle) = plan.idle {
        builder = builder.pool_idle_timeout(idle);
        if idle.is_zero() {
            builder = builder.pool_max_idle_per_host(0);
        }
    }
    if let Some(path) = plan.ca_file {
        let pem = std::fs::read(path).map_err(|error| ClientError::Read(path.into(), error))?;
        let certificates = reqwest::Certificate::from_pem_bundle(&pem);
        let certificates = certificates.map_err(|error| ClientError::Pem(path.into(), error))?;
        builder = builder.tls_certs_merge(certificates);
    }
    builder.build().map_err(ClientError::SetUp)
}

/// The HTTP client of AWS's SDK: the same TLS, the system's certificates, no redirects.
#[cfg(feature = "bedrock")]
#[must_use]
pub fn aws_http() -> aws_sdk_bedrockagentcore::config::SharedHttpClient {
    use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};
    // a connection that lies unused may have been closed at its other end: what is sent on it then
    // has an unknown outcome
    aws_smithy_http_client::Builder::new()
        .pool_idle_timeout(AWS_IDLE)
        .tls_provider(Provider::Rustls(CryptoMode::Ring))
        .build_https()
}
