//! The calls of AgentCore's Code Interpreter, by AWS's own client.

use std::time::Duration;

use aws_config::BehaviorVersion;
use aws_sdk_bedrockagentcore::Client as Sdk;
use aws_sdk_bedrockagentcore::config::interceptors::BeforeDeserializationInterceptorContextMut;
use aws_sdk_bedrockagentcore::config::retry::RetryConfig;
use aws_sdk_bedrockagentcore::config::timeout::TimeoutConfig;
use aws_sdk_bedrockagentcore::config::{
    Builder, Config, ConfigBag, Credentials, Intercept, Region, RuntimeComponents,
};
use aws_sdk_bedrockagentcore::error::BoxError;
use aws_sdk_bedrockagentcore::primitives::SdkBody;
use aws_sdk_bedrockagentcore::types::{
    CodeInterpreterSessionStatus, CodeInterpreterStreamOutput, ToolArguments, ToolName,
};
use http_body_util::Limited;
use secrecy::ExposeSecret;
use time::OffsetDateTime;
use tokio::sync::OnceCell;
use tokio::time::{sleep, timeout};

use super::error::BedrockError;
use super::wire::{Said, failure};
use crate::config::{BedrockCredentials, BedrockEntry};
use crate::net;

const CONNECT_LIMIT: Duration = Duration::from_secs(5);
const CALL_LIMIT: Duration = Duration::from_secs(30);
const CHECK_LIMIT: Duration = Duration::from_secs(5);
/// The longest answer: a slice of a file, or what a cell prints beside its streams.
const MAX_ANSWER_BYTES: usize = 32 << 20;
const MAX_PAGES: usize = 100;
/// A call that was turned away as one too many is made again so often.
const THROTTLED_TRIES: u32 = 4;
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// One code interpreter of one account.
pub(super) struct Client {
    pub(super) entry: BedrockEntry,
    sdk: OnceCell<Sdk>,
}

/// A session of AWS, as it was started or found.
pub(super) struct Started {
    pub(super) id: String,
    /// When AWS ends it.
    pub(super) ends_at: OffsetDateTime,
}

/// Refuses answers that are longer than any should be.
#[derive(Debug)]
struct Bounded;

impl Intercept for Bounded {
    fn name(&self) -> &'static str {
        "Bounded"
    }

    fn modify_before_deserialization(
        &self,
        context: &mut BeforeDeserializationInterceptorContextMut<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let body = context.response_mut().body_mut();
        let whole = std::mem::replace(body, SdkBody::taken());
        *body = SdkBody::from_body_1_x(Limited::new(whole, MAX_ANSWER_BYTES));
        Ok(())
    }
}

impl Client {
    pub(super) fn new(entry: BedrockEntry) -> Self {
        Self { entry, sdk: OnceCell::new() }
    }

    /// Set up with the first call: where credentials come from may have to be read.
    async fn sdk(&self) -> &Sdk {
        self.sdk.get_or_init(|| self.set_up()).await
    }

    async fn set_up(&self) -> Sdk {
        let region = Region::new(self.entry.region.clone());
        let chain = || {
            let loader = aws_config::defaults(BehaviorVersion::latest());
            loader.http_client(net::aws_http()).region(region.clone())
        };
        let config = match &self.entry.credentials {
            BedrockCredentials::Chain => Builder::from(&chain().load().await),
            BedrockCredentials::Profile(name) => {
                Builder::from(&chain().profile_name(name).load().await)
            }
            // nothing is left for AWS's files and variables to say
            BedrockCredentials::Key { id, secret, token } => {
                let token = token.as_ref().map(|token| token.expose_secret().to_owned());
                let key = Credentials::new(id, secret.expose_secret(), token, None, "interpreterd");
                let config = Builder::new().behavior_version(BehaviorVersion::latest());
                config.region(region.clone()).credentials_provider(key)
            }
        };
        let mut config = config
            .http_client(net::aws_http())
            .retry_config(RetryConfig::standard())
            .timeout_config(TimeoutConfig::builder().connect_timeout(CONNECT_LIMIT).build())
            .interceptor(Bounded);
        if let Some(url) = &self.entry.endpoint_url {
            config = config.endpoint_url(url);
        }
        Sdk::from_conf(config.build())
    }

    /// Starts a session. The token makes it one and the same however often it is asked for.
    pub(super) async fn start(
        &self,
        name: &str,
        token: &str,
        lifetime: Duration,
        limit: Duration,
    ) -> Result<Started, BedrockError> {
        let seconds = i32::try_from(lifetime.as_secs()).unwrap_or(i32::MAX);
        let starting = self.sdk().await.start_code_interpreter_session();
        let starting = starting
            .code_interpreter_identifier(&self.entry.interpreter)
            .name(name)
            .client_token(token)
            .session_timeout_seconds(seconds);
        let asked_at = OffsetDateTime::now_utc();
        let started = timeout(limit, starting.send()).await.map_err(|_| BedrockError::TooSlow)?;
        let started = started.map_err(failure)?;
        let id = checked(started.session_id)?;
        // by our clock: the other one may go wrong
        Ok(Started { id, ends_at: asked_at + lifetime })
    }

    /// Ends a session; one that is gone is no fault.
    pub(super) async fn stop(&self, id: &str, limit: Duration) -> Result<(), BedrockError> {
        let stopping = self.sdk().await.stop_code_interpreter_session();
        let stopping = stopping.code_interpreter_identifier(&self.entry.interpreter).session_id(id);
        let stopped = timeout(limit, stopping.send()).await.map_err(|_| BedrockError::TooSlow)?;
        match stopped.map_err(failure) {
            Ok(_) | Err(BedrockError::Gone) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether a session still lives.
    pub(super) async fn lives(&self, id: &str) -> Result<bool, BedrockError> {
        let getting = self.sdk().await.get_code_interpreter_session();
        let getting = getting.code_interpreter_identifier(&self.entry.interpreter).session_id(id);
        let got = timeout(CALL_LIMIT, getting.send()).await.map_err(|_| BedrockError::TooSlow)?;
        match got.map_err(failure) {
            Ok(session) => Ok(session.status == Some(CodeInterpreterSessionStatus::Ready)),
            Err(BedrockError::Gone) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The ids of all living sessions whose name begins so.
    pub(super) async fn list(&self, prefix: &str) -> Result<Vec<String>, BedrockError> {
        let (mut found, mut next) = (Vec::new(), None);
        for _ in 0..MAX_PAGES {
            let listing = self.sdk().await.list_code_interpreter_sessions();
            let listing = listing
                .code_interpreter_identifier(&self.entry.interpreter)
                .status(CodeInterpreterSessionStatus::Ready)
                .max_results(100)
                .set_next_token(next);
            let listed = timeout(CALL_LIMIT, listing.send()).await;
            let listed = listed.map_err(|_| BedrockError::TooSlow)?.map_err(failure)?;
            let ours = listed.items.into_iter().filter(|session| {
                session.name.as_deref().is_some_and(|name| name.starts_with(prefix))
            });
            found.extend(ours.filter_map(|session| checked(session.session_id).ok()));
            next = listed.next_token.filter(|token| !token.is_empty());
            if next.is_none() {
                break;
            }
        }
        Ok(found)
    }

    /// Whether it can be called at all.
    pub(super) async fn check(&self) -> Result<(), BedrockError> {
        let listing = self.sdk().await.list_code_interpreter_sessions();
        let listing = listing.code_interpreter_identifier(&self.entry.interpreter).max_results(1);
        let listed = timeout(CHECK_LIMIT, listing.send()).await;
        listed.map_err(|_| BedrockError::TooSlow)?.map(drop).map_err(failure)
    }

    /// Lets a tool do something in a session, once. The limit holds for all of it: the client's own
    /// limits end with the head of the answer.
    pub(super) async fn invoke(
        &self,
        session_id: &str,
        tool: ToolName,
        arguments: ToolArguments,
        limit: Duration,
    ) -> Result<Said, BedrockError> {
        let mut tries = 1;
        loop {
            // the client's own futures are large
            let once = Box::pin(self.invoke_once(session_id, tool.clone(), arguments.clone()));
            let said = timeout(limit, once).await.unwrap_or(Err(BedrockError::TooSlow));
            match said {
                // it was turned away, so nothing was done
                Err(error) if error.has_status(429) && tries < THROTTLED_TRIES => {
                    let pause = FIRST_PAUSE * 2_u32.pow(tries);
                    sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
                    tries += 1;
                }
                said => return said,
            }
        }
    }

    async fn invoke_once(
        &self,
        session_id: &str,
        tool: ToolName,
        arguments: ToolArguments,
    ) -> Result<Said, BedrockError> {
        let invoking = self.sdk().await.invoke_code_interpreter();
        let invoking = invoking
            .code_interpreter_identifier(&self.entry.interpreter)
            .session_id(session_id)
            .name(tool)
            .arguments(arguments);
        // the client would send it up to three times, and the code would run as often
        let once = Config::builder().retry_config(RetryConfig::disabled());
        let invoked = invoking.customize().config_override(once).send().await;
        let mut stream = invoked.map_err(failure)?.stream;
        let mut said = Said::default();
        loop {
            match stream.recv().await {
                Ok(Some(CodeInterpreterStreamOutput::Result(result))) => said.take(result),
                Ok(Some(_)) => {} // events that are yet to be invented
                Ok(None) => return Ok(said),
                // it had begun, whatever is said of it now
                Err(error) => return Err(super::wire::broken(error)),
            }
        }
    }
}

/// An id becomes a part of addresses.
fn checked(id: String) -> Result<String, BedrockError> {
    let is_id = (1..=40).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if is_id { Ok(id) } else { Err(BedrockError::BadAnswer("the id of a session")) }
}
