//! Sends spans by OTLP: bounded, beside all work, and lost where the collector does not take them.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, mpsc};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::TracerProvider;
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::{HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::resource::{EnvResourceDetector, TelemetryResourceDetector};
use opentelemetry_sdk::trace::{
    BatchConfig, BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracerProvider, Span,
    SpanData, SpanExporter, SpanProcessor,
};
use reqwest::header::{CONTENT_TYPE, HeaderMap};
use tokio::runtime::Runtime;
use tracing::Subscriber;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, filter_fn};
use tracing_subscriber::registry::LookupSpan;

use super::SPAN_TARGET;
use super::traces::TracesError;
use crate::config::Collector;
use crate::domain::build::VERSION;
use crate::domain::coded::chain;
use crate::net::{self, ClientPlan};

/// Spans that may wait.
const QUEUE: usize = 4096;
/// Spans of one request to the collector.
const BATCH: usize = 512;
/// How long a span waits for others.
const EVERY: Duration = Duration::from_secs(2);
/// How long the collector may take.
const LIMIT: Duration = Duration::from_secs(5);
/// How long the end of the process waits for the last spans.
const LAST: Duration = Duration::from_secs(3);
/// How often lost spans are told of.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// The way to one collector.
#[derive(Debug)]
pub(super) struct Sending {
    collector: Collector,
    provider: SdkTracerProvider,
    line: Arc<Line>,
}

/// The spans that wait.
#[derive(Debug, Default)]
struct Line {
    /// Takes spans to the collector, once it has begun.
    batches: OnceLock<BatchSpanProcessor>,
    waiting: AtomicUsize,
    lost: AtomicU64,
    told: Mutex<Told>,
}

/// What was said of lost spans, and what is to be said.
#[derive(Debug, Default)]
struct Told {
    last: Option<Instant>,
    /// Why the collector did not take some.
    fault: Option<String>,
}

/// Where spans stand in line, or are lost at once.
#[derive(Debug)]
struct Entrance(Arc<Line>);

/// Takes batches away, and says when they are lost.
#[derive(Debug)]
struct Exit<E> {
    exporter: E,
    line: Arc<Line>,
}

/// Our one HTTP client, on a runtime of its own: requests to the collector share nothing with others.
#[derive(Debug)]
struct Courier {
    client: reqwest::Client,
    headers: HeaderMap,
    runtime: OnceLock<Runtime>,
    line: Arc<Line>,
}

impl Sending {
    /// Spans are made from now on, and taken once it has begun.
    pub(super) fn new(collector: &Collector) -> Self {
        let line = Arc::new(Line::default());
        let sampler = Sampler::TraceIdRatioBased(collector.ratio);
        let provider = SdkTracerProvider::builder()
            .with_sampler(Sampler::ParentBased(Box::new(sampler)))
            .with_span_processor(Entrance(Arc::clone(&line)))
            .build();
        Self { collector: collector.clone(), provider, line }
    }

    /// Makes spans of those of our target. Log lines are no part of them: more may stand there than
    /// leaves the host.
    pub(super) fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'span> LookupSpan<'span>,
    {
        let ours = filter_fn(|about| about.is_span() && about.target() == SPAN_TARGET);
        tracing_opentelemetry::layer()
            .with_tracer(self.provider.tracer("interpreterd"))
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_tracked_inactivity(false)
            .with_context_activation(false)
            .with_filter(ours.with_max_level_hint(LevelFilter::INFO))
    }

    pub(super) fn begin(&self, replica: &str) -> Result<(), TracesError> {
        // a connection that lies unused is not looked after between two requests
        let idle = Some(Duration::ZERO);
        let plan = ClientPlan { limit: Some(LIMIT), idle, ..ClientPlan::default() };
        let courier = Courier {
            client: net::planned(&plan)?,
            headers: self.collector.headers.clone(),
            runtime: OnceLock::new(),
            line: Arc::clone(&self.line),
        };
        let mut exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .with_http_client(courier)
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(self.collector.url.as_str())
            .with_timeout(LIMIT)
            .build()
            .map_err(|error| TracesError::SetUp(error.into()))?;
        exporter.set_resource(&self.resource(replica));
        let exit = Exit { exporter, line: Arc::clone(&self.line) };
        self.line.batches.get_or_init(|| BatchSpanProcessor::new(exit, config()));
        Ok(())
    }

    /// Who sends. What the operator says of the service by OTEL_RESOURCE_ATTRIBUTES wins.
    fn resource(&self, replica: &str) -> Resource {
        let own = Resource::builder_empty().with_attributes([
            KeyValue::new("service.name", "interpreterd"),
            KeyValue::new("service.version", VERSION),
            KeyValue::new("service.instance.id", replica.to_owned()),
        ]);
        let resource = own
            .with_detector(Box::new(TelemetryResourceDetector))
            .with_detector(Box::new(EnvResourceDetector::new()));
        match &self.collector.service {
            Some(name) => resource.with_service_name(name.clone()).build(),
            None => resource.build(),
        }
    }

    pub(super) fn close(self) {
        let (ended, end) = mpsc::channel();
        let provider = self.provider;
        // the library joins its thread, which may hang: nobody waits for this one for longer
        std::thread::spawn(move || {
            let _ = provider.shutdown_with_timeout(LAST);
            let _ = ended.send(());
        });
        let _ = end.recv_timeout(LAST);
        let waiting = self.line.waiting.load(Ordering::SeqCst) as u64;
        self.line.lost.fetch_add(waiting, Ordering::SeqCst);
        self.line.tell(None);
    }
}

fn config() -> BatchConfig {
    BatchConfigBuilder::default()
        .with_max_queue_size(QUEUE)
        .with_max_export_batch_size(BATCH)
        .with_scheduled_delay(EVERY)
        .build()
}

impl SpanProcessor for Entrance {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        if !span.span_context.is_sampled() {
            return;
        }
        let Some(batches) = self.0.batches.get() else { return };
        // so the line within, which would lose spans in silence, is never full
        if self.0.waiting.fetch_add(1, Ordering::SeqCst) >= QUEUE {
            self.0.waiting.fetch_sub(1, Ordering::SeqCst);
            self.0.lost.fetch_add(1, Ordering::SeqCst);
            return;
        }
        batches.on_end(span);
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.0.batches.get().map_or(Ok(()), SpanProcessor::force_flush)
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.0.batches.get().map_or(Ok(()), |batches| batches.shutdown_with_timeout(timeout))
    }
}

impl<E: SpanExporter> SpanExporter for Exit<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let count = batch.len();
        let taken = self.exporter.export(batch).await;
        self.line.waiting.fetch_sub(count, Ordering::SeqCst);
        if taken.is_err() {
            self.line.lost.fetch_add(count as u64, Ordering::SeqCst);
        }
        self.line.tell(Some(TOLD_EVERY));
        taken
    }
}

impl Line {
    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().expect("no panic while it is held")
    }

    /// Says how many spans were lost since the last time, if that was long enough ago.
    fn tell(&self, every: Option<Duration>) {
        let mut told = self.told();
        let is_early =
            every.is_some_and(|every| told.last.is_some_and(|last| last.elapsed() < every));
        if is_early || self.lost.load(Ordering::SeqCst) == 0 {
            return;
        }
        told.last = Some(Instant::now());
        let lost = self.lost.swap(0, Ordering::SeqCst);
        let fault = told.fault.take();
        let fault = fault.as_deref().unwrap_or("more ended than it takes");
        tracing::warn!(
            spans = lost,
            error = fault,
            "the collector did not take spans: they are lost"
        );
    }
}

#[async_trait]
impl HttpClient for Courier {
    /// Called on the thread of the batches alone, which may wait.
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let sent = self.send(request);
        let fault = match &sent {
            Ok(answer) if answer.status().is_success() => None,
            Ok(answer) => Some(format!("it answered {}", answer.status())),
            Err(error) => Some(chain(error.as_ref())),
        };
        if fault.is_some() {
            self.line.told().fault = fault;
        }
        sent
    }
}

impl Courier {
    fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let mut request = reqwest::Request::try_from(request)?;
        // ours alone: the library adds those of the vendor's variables, which we may not want
        let kind = request.headers_mut().remove(CONTENT_TYPE);
        request.headers_mut().clone_from(&self.headers);
        request.headers_mut().extend(kind.map(|kind| (CONTENT_TYPE, kind)));
        let answered = self.runtime()?.block_on(async { self.client.execute(request).await });
        // the address may hold a key; what the answer says is nobody's
        let answered = answered.map_err(reqwest::Error::without_url)?;
        let mut response = Response::new(Bytes::new());
        *response.status_mut() = answered.status();
        response.headers_mut().clone_from(answered.headers());
        Ok(response)
    }

    /// Made where it is used: a runtime must not end in async code.
    fn runtime(&self) -> std::io::Result<&Runtime> {
        if self.runtime.get().is_none() {
            let made = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let _ = self.runtime.set(made);
        }
        Ok(self.runtime.get().expect("it was just set"))
    }
}

/// The header of a caller.
struct Traceparent<'a>(&'a str);

impl Extractor for Traceparent<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        (key == "traceparent").then_some(self.0)
    }

    fn keys(&self) -> Vec<&str> {
        vec!["traceparent"]
    }
}

pub(super) fn follow(span: &tracing::Span, traceparent: &str) {
    let caller = TraceContextPropagator::new()
        .extract_with_context(&Context::new(), &Traceparent(traceparent));
    // an error means that the span is not traced
    let _ = span.set_parent(caller);
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::{Span as _, Tracer as _};
    use opentelemetry_sdk::error::OTelSdkError;

    use super::*;

    /// Takes nothing until its other end is gone.
    #[derive(Debug)]
    struct Stuck(Mutex<mpsc::Receiver<()>>);

    impl SpanExporter for Stuck {
        async fn export(&self, _: Vec<SpanData>) -> OTelSdkResult {
            let _ = self.0.lock().expect("no panic before").recv();
            Err(OTelSdkError::InternalFailure("it was stuck".to_owned()))
        }
    }

    #[test]
    fn what_ends_while_the_line_is_full_is_lost_and_counted_and_nobody_waits() {
        let line = Arc::new(Line::default());
        let (release, held) = mpsc::channel::<()>();
        let exit = Exit { exporter: Stuck(Mutex::new(held)), line: Arc::clone(&line) };
        line.batches.get_or_init(|| BatchSpanProcessor::new(exit, config()));
        let entrance = Entrance(Arc::clone(&line));
        let provider = SdkTracerProvider::builder().with_span_processor(entrance).build();
        let tracer = provider.tracer("tests");
        for _ in 0..QUEUE + 10 {
            tracer.start("a span").end();
        }
        assert_eq!(line.lost.load(Ordering::SeqCst), 10);
        drop(release);
        provider.shutdown().expect("it ends");
        line.tell(None);
        assert_eq!(line.waiting.load(Ordering::SeqCst), 0);
        assert_eq!(line.lost.load(Ordering::SeqCst), 0, "all that was lost was told of");
    }

    #[test]
    fn lost_spans_are_told_of_seldom_and_none_is_forgotten() {
        let line = Line::default();
        let left = |lost: u64, every: Option<Duration>| {
            line.lost.fetch_add(lost, Ordering::SeqCst);
            line.tell(every);
            line.lost.load(Ordering::SeqCst)
        };
        assert_eq!(left(3, Some(TOLD_EVERY)), 0, "the first at once");
        assert_eq!(left(2, Some(TOLD_EVERY)), 2, "the next ones wait");
        assert_eq!(left(1, Some(Duration::ZERO)), 0, "and are told of together");
        assert_eq!(left(4, None), 0, "at the end whatever is left");
    }
}
