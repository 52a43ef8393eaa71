//! Chat completions at any base URL.

mod wire;

use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use reqwest::Response;
use reqwest::header::RETRY_AFTER;
use secrecy::{ExposeSecret, SecretString};

use super::{Conversation, LanguageModel, LlmError, Turn};
use crate::config::ModelSettings;

const DEFAULT_BASE_URL: &str = "https://api.openai.com/v1";
const ATTEMPTS: u32 = 3;
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Pauses double from here.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The longest answer that is read.
const MAX_ANSWER_BYTES: usize = 32 << 20;

/// A model behind `POST {base URL}/chat/completions`.
pub(super) struct OpenAi {
    client: reqwest::Client,
    url: String,
    key: Option<SecretString>,
    wire: wire::Dialect,
}

impl OpenAi {
    pub(super) fn new(name: &str, settings: &ModelSettings) -> Result<Self, LlmError> {
        let base = settings.base_url().unwrap_or_else(|| DEFAULT_BASE_URL.to_owned());
        Ok(Self {
            client: crate::net::client(settings.model_seconds)?,
            url: format!("{}/chat/completions", base.trim_end_matches('/')),
            key: settings.api_key(),
            wire: wire::Dialect {
                model: name.to_owned(),
                vision: settings.model_vision,
                max_tokens: settings.model_max_tokens,
            },
        })
    }

    async fn ask(&self, body: &serde_json::Value) -> Result<Turn, LlmError> {
        let mut request = self.client.post(&self.url).json(body);
        if let Some(key) = &self.key {
            request = request.bearer_auth(key.expose_secret());
        }
        let response = request.send().await.map_err(failed)?;
        let status = response.status();
        let after = retry_after(&response);
        let body = read(response).await?;
        if !status.is_success() {
            return Err(wire::refusal(status.as_u16(), after, &body));
        }
        wire::turn(&body)
    }
}

#[async_trait]
impl LanguageModel for OpenAi {
    fn name(&self) -> &str {
        &self.wire.model
    }

    fn vision(&self) -> bool {
        self.wire.vision
    }

    async fn turn(&self, conversation: &Conversation) -> Result<Turn, LlmError> {
        let body = self.wire.request(conversation);
        let mut pause = FIRST_PAUSE;
        for _ in 1..ATTEMPTS {
            match self.ask(&body).await {
                Err(error) if error.is_passing() => {
                    let asked = match &error {
                        LlmError::RateLimited { after } => after.unwrap_or(pause),
                        _ => pause,
                    };
                    tracing::warn!(
                        model = self.wire.model,
                        error = &error as &dyn std::error::Error,
                        "a turn is tried again"
                    );
                    tokio::time::sleep(asked.min(LONGEST_PAUSE)).await;
                    pause *= 2;
                }
                other => return other,
            }
        }
        self.ask(&body).await
    }
}

fn failed(error: reqwest::Error) -> LlmError {
    // the URL may hold what is nobody's business
    if error.is_timeout() { LlmError::Timeout } else { LlmError::Transport(error.without_url()) }
}

/// RFC 9110, section 10.2.3; only the number of seconds is read.
fn retry_after(response: &Response) -> Option<Duration> {
    let seconds = response.headers().get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

async fn read(response: Response) -> Result<Vec<u8>, LlmError> {
    let mut body = Vec::new();
    let mut pieces = response.bytes_stream();
    while let Some(piece) = pieces.next().await {
        body.extend_from_slice(&piece.map_err(failed)?);
        if body.len() > MAX_ANSWER_BYTES {
            return Err(LlmError::BadResponse("the answer has no end"));
        }
    }
    Ok(body)
}
