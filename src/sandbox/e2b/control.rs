//! E2B's control plane: sandboxes are made, found, kept and ended.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use reqwest::{Method, RequestBuilder, Response};
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout_at};

use super::access::{Access, Door, is_id, send};
use super::error::E2bError;
use super::wire::{Listed, Made, NewSandbox, bears, metadata_filter};

const CALL_LIMIT: Duration = Duration::from_secs(30);
const CHECK_LIMIT: Duration = Duration::from_secs(5);
const RETRIES: u32 = 3;
const MAX_ANSWER_BYTES: usize = 4 << 20;
const MAX_PAGES: usize = 100;
/// A sandbox that was just paused is not there for a moment.
const NOT_THERE_YET: u32 = 3;
const NOT_THERE_PAUSE: Duration = Duration::from_secs(1);

/// The control plane of one account.
pub(super) struct Control {
    pub(super) access: Arc<Access>,
    /// An older deployment, which knows the first version alone.
    is_first_version: AtomicBool,
    creates: Semaphore,
}

/// One call, made again where that is safe.
struct Call<'a> {
    request: &'a (dyn Fn() -> RequestBuilder + Send + Sync),
    limit: Duration,
    /// Asking twice does no more than asking once.
    repeatable: bool,
}

impl Control {
    pub(super) fn new(access: Arc<Access>) -> Self {
        let creates = Semaphore::new(access.entry.concurrent_creates as usize);
        Self { access, is_first_version: AtomicBool::new(false), creates }
    }

    /// Makes a sandbox. The key makes it one and the same however often it is asked for.
    pub(super) async fn create(
        &self,
        key: &str,
        metadata: &BTreeMap<String, String>,
        limit: Duration,
    ) -> Result<Door, E2bError> {
        let _turn = self.creates.acquire().await;
        let entry = &self.access.entry;
        let second = || {
            let request = self.access.api(Method::POST, "/v2/sandboxes");
            request.header("Idempotency-Key", key).json(&NewSandbox::of(entry, metadata))
        };
        let first = || {
            let request = self.access.api(Method::POST, "/sandboxes");
            request.json(&NewSandbox::of(entry, metadata).secured())
        };
        let response = self.either(&second, &first, limit, false).await?;
        let made: Made = self.access.json(response, MAX_ANSWER_BYTES).await?;
        let sandbox_id = made.sandbox_id.clone();
        let door = Door::new(Arc::clone(&self.access), made);
        if matches!(door, Err(E2bError::OtherDomain)) {
            let _ = self.delete(&sandbox_id).await; // not ours to use, but paid for
        }
        door
    }

    /// Finds a sandbox that lives, with its keys; a paused one goes on. Its end is put off.
    pub(super) async fn connect(&self, sandbox_id: &str) -> Result<Door, E2bError> {
        let body = json!({"timeout": self.access.entry.ttl.as_secs()});
        let path = format!("/sandboxes/{sandbox_id}/connect");
        let second = || self.access.api(Method::POST, &format!("/v2{path}")).json(&body);
        let first = || self.access.api(Method::POST, &path).json(&body);
        let mut looked = 0;
        let response = loop {
            match self.connect_once(&second, &first).await {
                Err(error) if error.has_status(&[404]) => {
                    looked += 1;
                    if looked >= NOT_THERE_YET || !self.is_there(sandbox_id).await? {
                        return Err(E2bError::Gone);
                    }
                    sleep(NOT_THERE_PAUSE).await;
                }
                other => break other?,
            }
        };
        let made: Made = self.access.json(response, MAX_ANSWER_BYTES).await?;
        if made.sandbox_id != sandbox_id {
            return Err(E2bError::BadAnswer("it connected to another sandbox"));
        }
        Door::new(Arc::clone(&self.access), made)
    }

    async fn connect_once(
        &self,
        second: &(dyn Fn() -> RequestBuilder + Send + Sync),
        first: &(dyn Fn() -> RequestBuilder + Send + Sync),
    ) -> Result<Response, E2bError> {
        let (limit, repeatable) = (CALL_LIMIT, true);
        match self.call(&Call { request: second, limit, repeatable }).await {
            // the sandbox is not there, or the second version of the call
            Err(error) if error.has_status(&[404, 405]) => {
                self.call(&Call { request: first, limit, repeatable }).await
            }
            other => other,
        }
    }

    async fn is_there(&self, sandbox_id: &str) -> Result<bool, E2bError> {
        let request = || self.access.api(Method::GET, &format!("/sandboxes/{sandbox_id}"));
        match self.call(&Call { request: &request, limit: CALL_LIMIT, repeatable: true }).await {
            Ok(_) => Ok(true),
            Err(error) if error.has_status(&[404]) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Sets how long a sandbox lives from now on, unless something puts that off again.
    pub(super) async fn set_timeout(
        &self,
        sandbox_id: &str,
        ttl: Duration,
    ) -> Result<(), E2bError> {
        let body = json!({"timeout": ttl.as_secs()});
        let request = || {
            self.access.api(Method::POST, &format!("/sandboxes/{sandbox_id}/timeout")).json(&body)
        };
        match self.call(&Call { request: &request, limit: CALL_LIMIT, repeatable: true }).await {
            Ok(_) => Ok(()),
            // a page of somebody between us is no word of E2B's
            Err(error) if error.has_status(&[404]) && !self.is_there(sandbox_id).await? => {
                Err(E2bError::Gone)
            }
            Err(error) => Err(error),
        }
    }

    /// Ends a sandbox; one that is gone is no fault.
    pub(super) async fn delete(&self, sandbox_id: &str) -> Result<(), E2bError> {
        let request = || self.access.api(Method::DELETE, &format!("/sandboxes/{sandbox_id}"));
        match self.call(&Call { request: &request, limit: CALL_LIMIT, repeatable: true }).await {
            Ok(_) => Ok(()),
            Err(error) if error.has_status(&[404]) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The ids of all sandboxes that bear this metadata.
    pub(super) async fn list(
        &self,
        metadata: &BTreeMap<String, String>,
    ) -> Result<Vec<String>, E2bError> {
        let filter = metadata_filter(metadata);
        let (mut found, mut next) = (Vec::new(), None::<String>);
        for _ in 0..MAX_PAGES {
            let mut pages = vec![("state", "running,paused"), ("limit", "100")];
            pages.extend(next.as_deref().map(|next| ("nextToken", next)));
            let filter = [("metadata", filter.as_str())];
            let second = || {
                let request = self.access.api(Method::GET, "/v2/sandboxes");
                request.query(&filter).query(&pages)
            };
            let first = || self.access.api(Method::GET, "/sandboxes").query(&filter);
            let response = self.either(&second, &first, CALL_LIMIT, true).await?;
            let token = response.headers().get("x-next-token").cloned();
            let listed: Vec<Listed> = self.access.json(response, MAX_ANSWER_BYTES).await?;
            let is_ours = |listed: &Listed| is_id(&listed.sandbox_id) && bears(listed, metadata);
            let ours = listed.into_iter().filter(is_ours);
            found.extend(ours.map(|listed| listed.sandbox_id));
            next = token.and_then(|token| token.to_str().ok().map(str::to_owned));
            if next.as_ref().is_none_or(String::is_empty) {
                return Ok(found);
            }
        }
        Ok(found)
    }

    /// Whether the key opens anything.
    pub(super) async fn check(&self) -> Result<(), E2bError> {
        let second = || self.access.api(Method::GET, "/v2/sandboxes?limit=1");
        let first = || self.access.api(Method::GET, "/sandboxes");
        let checking = self.either(&second, &first, CHECK_LIMIT, true);
        let checked = tokio::time::timeout(CHECK_LIMIT, checking).await;
        checked.map_err(|_| E2bError::TooSlow)?.map(drop)
    }

    /// A call by the second version of the API, and by the first where the second is not there.
    async fn either(
        &self,
        second: &(dyn Fn() -> RequestBuilder + Send + Sync),
        first: &(dyn Fn() -> RequestBuilder + Send + Sync),
        limit: Duration,
        learns: bool,
    ) -> Result<Response, E2bError> {
        if !self.is_first_version.load(Ordering::Relaxed) {
            match self.call(&Call { request: second, limit, repeatable: true }).await {
                Err(error) if error.has_status(&[404, 405]) => {}
                other => return other,
            }
        }
        // a first version has no key that makes a second create the same as the first
        let made = self.call(&Call { request: first, limit, repeatable: false }).await;
        // a create may be refused by 404 for other reasons, a list is always there
        if learns && made.is_ok() {
            self.is_first_version.store(true, Ordering::Relaxed);
        }
        made
    }

    async fn call(&self, call: &Call<'_>) -> Result<Response, E2bError> {
        let deadline = Instant::now() + call.limit;
        let mut attempt = 0;
        loop {
            let once = async {
                let response = send((call.request)(), call.limit).await?;
                self.access.accepted(response).await
            };
            let answered = timeout_at(deadline, once).await;
            let error = match answered.unwrap_or(Err(E2bError::TooSlow)) {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            let pause = error.pause(attempt, call.repeatable);
            attempt += 1;
            match pause {
                Some(pause) if attempt <= RETRIES && Instant::now() + pause < deadline => {
                    sleep(pause).await;
                }
                _ => return Err(error),
            }
        }
    }
}
