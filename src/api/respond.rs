//! Three ways of answering the same work: at once, as events, later.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::{Stream, StreamExt, stream};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::DropGuard;
use utoipa::IntoResponses;

use super::ApiState;
use super::problem::Problem;
use crate::domain::claim::Key;
use crate::domain::event::{COMPLETED, Sent};
use crate::domain::id::Tenant;
use crate::domain::run::Run;
use crate::runs::events::Events;
use crate::runs::{Order, RunError, Streamed};

const HEARTBEAT: Duration = Duration::from_secs(10);
/// How long an error may still become the answer's status, before the stream begins.
const EARLY: Duration = Duration::from_secs(1);
const PREFER: HeaderName = HeaderName::from_static("prefer");
const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const RESPOND_ASYNC: &str = "respond-async";

/// How the caller wants its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    AtOnce,
    AsEvents,
    Later,
}

/// What the other two ways answer.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "documents statuses; they are made below")]
#[expect(clippy::large_enum_variant, reason = "no value of it is ever made")]
pub(super) enum Ways {
    /// Later.
    #[response(
        status = 202,
        description = "Prefer: respond-async was sent: the run, which goes on; read it again, or its events"
    )]
    Accepted(Run),
    /// Too many readers.
    #[response(
        status = 503,
        description = "No sandbox, or no stream, can be had now; trying again is safe",
        content_type = "application/problem+json"
    )]
    Unavailable(Problem),
}

/// Does the work and answers in the way that the headers ask for.
pub(super) async fn respond(
    state: &ApiState,
    tenant: &Tenant,
    headers: &HeaderMap,
    route: &'static str,
    order: Order,
) -> Result<Response, Problem> {
    let key = key(headers, route)?;
    match way(headers) {
        Way::AtOnce => {
            let answer = match key {
                Some(key) => state.runs.answer_once(tenant, order, key).await?,
                None => state.runs.answer(tenant, order).await?,
            };
            Ok(Json(answer).into_response())
        }
        Way::AsEvents => {
            let claim = key.map(|key| state.runs.claim(&order, key));
            let mut before = state.runs.claimed(tenant, claim.as_ref()).await?;
            if before.is_none() {
                let permit = reader(state)?;
                let work = state.runs.stream(tenant, order, claim.clone())?;
                match told(work, permit).await {
                    // another request with this key was quicker
                    Err(error) if error.is_claimed() => {
                        before = state.runs.claimed(tenant, claim.as_ref()).await?;
                    }
                    answer => return Ok(answer?),
                }
            }
            let id = before.ok_or(RunError::KeyInProgress)?;
            events(state, state.runs.events(tenant, id, 0).await?)
        }
        Way::Later => {
            let claim = key.map(|key| state.runs.claim(&order, key));
            let run = match state.runs.claimed(tenant, claim.as_ref()).await? {
                Some(id) => state.runs.get(tenant, id).await?,
                None => state.runs.queue(tenant, order, claim).await?,
            };
            let place = [
                (header::LOCATION, format!("/v1/runs/{}", run.summary.id)),
                (PREFERENCE_APPLIED, RESPOND_ASYNC.to_owned()),
            ];
            Ok((StatusCode::ACCEPTED, place, Json(run)).into_response())
        }
    }
}

/// The caller's Idempotency-Key for a route.
pub(super) fn key(headers: &HeaderMap, route: &'static str) -> Result<Option<Key>, Problem> {
    let Some(value) = headers.get(IDEMPOTENCY_KEY) else { return Ok(None) };
    let key = value.to_str().ok().and_then(|value| Key::new(route, value.trim()));
    key.map(Some).ok_or_else(|| {
        let detail = "an Idempotency-Key is 1 to 255 visible ASCII characters";
        Problem::new(StatusCode::BAD_REQUEST, "malformed_header", detail)
    })
}

/// Events as server-sent events, from a place that the caller has reached before.
pub(super) fn events(state: &ApiState, events: Events) -> Result<Response, Problem> {
    let permit = reader(state)?;
    Ok(server_sent(events.map(move |sent| {
        let _ = &permit;
        sent
    })))
}

fn way(headers: &HeaderMap) -> Way {
    let holds = |name: HeaderName, word: &str| {
        let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        values
            .flat_map(|value| value.split([',', ';']))
            .any(|part| part.trim().eq_ignore_ascii_case(word))
    };
    if holds(PREFER, RESPOND_ASYNC) {
        Way::Later
    } else if holds(header::ACCEPT, "text/event-stream") {
        Way::AsEvents
    } else {
        Way::AtOnce
    }
}

fn reader(state: &ApiState) -> Result<OwnedSemaphorePermit, Problem> {
    Arc::clone(&state.readers).try_acquire_owned().map_err(|_| {
        let detail = "as many streams are read as may; try again later";
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_streams", detail)
    })
}

/// Work as it goes on. What fails before anything has happened is told by its status.
async fn told(work: Streamed, permit: OwnedSemaphorePermit) -> Result<Response, RunError> {
    let Streamed { events, result, guard } = work;
    let mut events = events.peekable();
    let first = tokio::time::timeout(EARLY, std::pin::Pin::new(&mut events).peek()).await;
    if matches!(first, Ok(None)) {
        guard.map(DropGuard::disarm);
        let answer = result.await.map_err(RunError::Panicked)??;
        return Ok(Json(answer).into_response());
    }
    // dropped with the stream: a caller who goes away cancels the work
    let held = (guard, permit);
    let rest = stream::once(result);
    let all = events.map(Ok).chain(rest.map(Err));
    let mut last = 0;
    let mut completed = false;
    let sent = all.filter_map(move |next| {
        let _ = &held;
        let found = match next {
            Ok(sent) => {
                last = sent.id;
                completed |= sent.name == COMPLETED;
                Some(sent)
            }
            // it failed after the stream had begun: the problem is the last event's data
            Err(Ok(Err(error))) if !completed => {
                let data = serde_json::to_string(&Problem::from(error)).unwrap_or_default();
                Some(Sent { id: last + 1, name: COMPLETED.to_owned(), data })
            }
            Err(_) => None,
        };
        std::future::ready(found)
    });
    Ok(server_sent(sent))
}

fn server_sent(events: impl Stream<Item = Sent> + Send + 'static) -> Response {
    let events = events.map(|sent| {
        let event = Event::default().id(sent.id.to_string()).event(sent.name).data(sent.data);
        Ok::<_, Infallible>(event)
    });
    let alive = KeepAlive::new().interval(HEARTBEAT);
    let mut response = Sse::new(events).keep_alive(alive).into_response();
    let no_store = header::HeaderValue::from_static("no-store");
    response.headers_mut().insert(header::CACHE_CONTROL, no_store);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_is_read_from_the_headers() {
        let with = |name: &'static str, value: &'static str| {
            let name = HeaderName::from_static(name);
            way(&HeaderMap::from_iter([(name, header::HeaderValue::from_static(value))]))
        };
        assert_eq!(way(&HeaderMap::new()), Way::AtOnce);
        assert_eq!(with("accept", "*/*"), Way::AtOnce);
        assert_eq!(with("accept", "application/json, text/event-stream;q=1"), Way::AsEvents);
        assert_eq!(with("prefer", "wait=5, respond-async"), Way::Later);
    }
}
