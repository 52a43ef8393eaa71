//! The one HTTP client: no redirects, timeouts, the system's certificates.

use std::time::Duration;

const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// Why no client can be made.
#[derive(Debug, thiserror::Error)]
#[error("the HTTP client cannot be set up: are the system's CA certificates installed?")]
pub struct ClientError(#[source] reqwest::Error);

/// Chooses ring for TLS, for the whole process; once, before any client is made.
pub fn install_crypto() {
    // an error means that it was chosen before, which is what is wanted
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// A client that follows no redirect (a key would follow it), with a limit for a whole call.
///
/// # Errors
/// [`ClientError`] when the system has no CA certificates.
#[expect(clippy::disallowed_methods, reason = "the one place where clients are made")]
pub fn client(limit: Duration) -> Result<reqwest::Client, ClientError> {
    install_crypto();
    reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_LIMIT)
        .timeout(limit)
        .user_agent(concat!("interpreterd/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(ClientError)
}
