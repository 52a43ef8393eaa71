//! Reads on after a refusal, so that a caller who is still sending gets to see the answer.
//!
//! A connection that is closed while the other side sends is reset, and the answer is lost with it.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::extract::Request;
use axum::http::header;
use axum::middleware::Next;
use axum::response::Response;
use bytes::Bytes;
use futures::{Stream, StreamExt};
use tokio::sync::oneshot;

/// What is read and thrown away at most: a caller who sends more, or more slowly, is cut off.
const MOST_BYTES: usize = 64 << 20;
const LONGEST: Duration = Duration::from_secs(5);

/// Passes the body on and takes back what nobody has read of it.
pub(super) async fn refused_bodies(request: Request, next: Next) -> Response {
    let waits = request.headers().contains_key(header::EXPECT);
    let (parts, body) = request.into_parts();
    let (give_back, rest) = oneshot::channel();
    let lent = Lent {
        content: Some(body.into_data_stream()),
        touched: !waits,
        give_back: Some(give_back),
    };
    let response = next.run(Request::from_parts(parts, Body::from_stream(lent))).await;
    if response.status().is_client_error()
        && let Ok(rest) = rest.await
    {
        let _ = tokio::time::timeout(LONGEST, throw_away(rest)).await;
    }
    response
}

async fn throw_away(mut rest: BodyDataStream) {
    let mut read = 0;
    while let Some(Ok(piece)) = rest.next().await {
        read += piece.len();
        if read > MOST_BYTES {
            return;
        }
    }
}

/// A body that comes back when it is dropped before its end. One that its sender holds back until
/// it is asked for (`Expect: 100-continue`) stays unasked for.
struct Lent {
    content: Option<BodyDataStream>,
    touched: bool,
    give_back: Option<oneshot::Sender<BodyDataStream>>,
}

impl Stream for Lent {
    type Item = Result<Bytes, axum::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.touched = true;
        let Some(content) = &mut self.content else { return Poll::Ready(None) };
        let next = Pin::new(content).poll_next(context);
        if matches!(next, Poll::Ready(None | Some(Err(_)))) {
            self.content = None;
        }
        next
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let (Some(content), Some(give_back), true) =
            (self.content.take(), self.give_back.take(), self.touched)
        {
            let _ = give_back.send(content);
        }
    }
}
