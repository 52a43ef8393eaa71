//! Traces: what a request was made of, for a collector where one is named.

use tracing::Span;

#[cfg(feature = "otlp")]
use super::otlp::Sending;
use crate::config::Collector;
use crate::net::ClientError;

/// The way to the collector; none where none is named.
#[derive(Debug, Default)]
pub struct Traces {
    #[cfg(feature = "otlp")]
    pub(super) sending: Option<Sending>,
}

/// Why no traces can be sent.
#[derive(Debug, thiserror::Error)]
pub enum TracesError {
    /// There is no client for the collector.
    #[error("the client of the collector cannot be made")]
    Client(#[from] ClientError),
    /// The library refuses.
    #[error("traces cannot be set up")]
    SetUp(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl Traces {
    pub(super) fn to(collector: Option<&Collector>) -> Self {
        #[cfg(feature = "otlp")]
        return Self { sending: collector.map(Sending::new) };
        #[cfg(not(feature = "otlp"))]
        let _ = collector; // there is none: the settings refuse it
        #[cfg(not(feature = "otlp"))]
        Self {}
    }

    /// Spans that end from now on are sent, as those of this replica. It starts a thread, so it comes
    /// after root was given up.
    ///
    /// # Errors
    /// [`TracesError`] when the system has no CA certificates, or the library refuses.
    pub fn begin(&self, replica: &str) -> Result<(), TracesError> {
        #[cfg(feature = "otlp")]
        if let Some(sending) = &self.sending {
            return sending.begin(replica);
        }
        let _ = replica;
        Ok(())
    }

    /// Sends what waits, for three seconds at most; spans that end later are lost. Not to be called
    /// from async code.
    pub fn close(self) {
        #[cfg(feature = "otlp")]
        if let Some(sending) = self.sending {
            sending.close();
        }
    }
}

/// Makes a span that was not entered yet part of its caller's trace, by the header `traceparent` of
/// W3C. One that is not valid changes nothing.
pub fn follow(span: &Span, traceparent: &str) {
    #[cfg(feature = "otlp")]
    super::otlp::follow(span, traceparent);
    #[cfg(not(feature = "otlp"))]
    let _ = (span, traceparent);
}

/// A count as spans hold it: the layer of traces would make a word of an unsigned number.
#[must_use]
pub fn number(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
