//! Accepts connections within bounds: how many, how slow, how long.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::CancellationToken;

/// The longest head of a request, in bytes.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// How long to wait when no connection can be accepted, as when descriptors are used up.
const BREATH: Duration = Duration::from_millis(100);

/// What bounds a connection.
pub(super) struct Bounds {
    /// Connections at once; more wait until one ends.
    pub(super) connections: usize,
    /// Time for the head of a request, and for the next one to come.
    pub(super) head: Duration,
    /// Time without progress after which a reader is given up.
    pub(super) write: Duration,
}

/// Serves until told to stop, then lets what goes on come to its end.
pub(super) async fn serve(
    listener: TcpListener,
    router: Router,
    bounds: Bounds,
    stop: CancellationToken,
) {
    let places = Arc::new(Semaphore::new(bounds.connections));
    let graceful = GracefulShutdown::new();
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(bounds.head)
        .max_buf_size(MAX_HEAD_BYTES);
    loop {
        let next = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            () = stop.cancelled() => break,
            next = next => next,
        };
        let connection = match accepted {
            Ok((connection, _)) => connection,
            Err(error) => {
                tracing::warn!(%error, "a connection was not accepted");
                tokio::time::sleep(BREATH).await;
                continue;
            }
        };
        if let Err(error) = connection.set_nodelay(true) {
            tracing::debug!(%error, "a connection keeps its delay");
        }
        let connection = TokioIo::new(Patient::new(connection, bounds.write));
        let service = TowerToHyperService::new(router.clone());
        let served = builder.serve_connection(connection, service).into_owned();
        let served = graceful.watch(served);
        tokio::spawn(async move {
            // a connection that breaks is its caller's business
            let _ = served.await;
            drop(place);
        });
    }
    drop(listener);
    graceful.shutdown().await;
}

/// A connection whose writes must get on.
struct Patient {
    connection: TcpStream,
    limit: Duration,
    /// Runs while a write waits.
    stuck: Option<Pin<Box<Sleep>>>,
}

impl Patient {
    fn new(connection: TcpStream, limit: Duration) -> Self {
        Self { connection, limit, stuck: None }
    }

    /// Passes on what a write gave; one that has waited too long has failed.
    fn watch<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stuck = None;
            return written;
        }
        let limit = self.limit;
        let stuck = self
            .stuck
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + limit)));
        ready!(stuck.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_read(context, buffer)
    }
}

impl AsyncWrite for Patient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.connection).poll_write(context, bytes);
        self.watch(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.connection).poll_write_vectored(context, slices);
        self.watch(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.connection).poll_flush(context);
        self.watch(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(context)
    }
}
