//! A collector of traces: takes spans as OTLP's protobuf over HTTP, or does not.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::trace::v1 as otlp;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode as Code;
use prost::Message;
use serde_json::{Value, json};

/// What it does with spans.
#[derive(Clone, Copy, PartialEq)]
pub enum Manner {
    Takes,
    Fails,
    Hangs,
}

pub struct Collector {
    pub url: String,
    inside: Arc<Inside>,
}

struct Inside {
    manner: Manner,
    requests: Mutex<Vec<(HeaderMap, Bytes)>>,
}

/// A span as it came.
#[derive(Debug, Clone)]
pub struct Span {
    pub name: String,
    pub trace_id: String,
    pub id: String,
    /// Empty where it has none.
    pub parent: String,
    pub kind: i32,
    pub attributes: BTreeMap<String, Value>,
    pub resource: BTreeMap<String, Value>,
    pub failed: bool,
    pub events: usize,
    pub start: u64,
    pub end: u64,
}

impl Collector {
    pub fn start(manner: Manner) -> Self {
        let inside = Arc::new(Inside { manner, requests: Mutex::default() });
        let app = Router::new().route("/v1/traces", post(take)).with_state(Arc::clone(&inside));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                axum::serve(listener, app).await.unwrap();
            });
        });
        Self { url, inside }
    }

    /// Heads and bodies of all that came.
    pub fn requests(&self) -> Vec<(HeaderMap, Bytes)> {
        self.inside.requests.lock().unwrap().clone()
    }

    /// All spans that came, in the order in which they began.
    pub fn spans(&self) -> Vec<Span> {
        let mut spans: Vec<Span> =
            self.requests().iter().flat_map(|(_, body)| read(body.clone())).collect();
        spans.sort_by_key(|span| span.start);
        spans
    }
}

async fn take(State(inside): State<Arc<Inside>>, headers: HeaderMap, body: Bytes) -> StatusCode {
    inside.requests.lock().unwrap().push((headers, body));
    match inside.manner {
        Manner::Takes => StatusCode::OK,
        Manner::Fails => StatusCode::INTERNAL_SERVER_ERROR,
        Manner::Hangs => std::future::pending().await,
    }
}

fn read(body: Bytes) -> Vec<Span> {
    let request = ExportTraceServiceRequest::decode(body).expect("what comes is OTLP");
    let mut spans = Vec::new();
    for from in request.resource_spans {
        let resource = values(from.resource.unwrap_or_default().attributes);
        for span in from.scope_spans.into_iter().flat_map(|scope| scope.spans) {
            spans.push(Span::of(span, resource.clone()));
        }
    }
    spans
}

impl Span {
    fn of(span: otlp::Span, resource: BTreeMap<String, Value>) -> Self {
        Self {
            name: span.name,
            trace_id: hex(&span.trace_id),
            id: hex(&span.span_id),
            parent: hex(&span.parent_span_id),
            kind: span.kind,
            attributes: values(span.attributes),
            resource,
            failed: span.status.is_some_and(|status| status.code == Code::Error as i32),
            events: span.events.len(),
            start: span.start_time_unix_nano,
            end: span.end_time_unix_nano,
        }
    }
}

fn values(pairs: Vec<KeyValue>) -> BTreeMap<String, Value> {
    let value = |pair: KeyValue| match pair.value.and_then(|value| value.value) {
        Some(Any::StringValue(text)) => (pair.key, json!(text)),
        Some(Any::BoolValue(flag)) => (pair.key, json!(flag)),
        Some(Any::IntValue(number)) => (pair.key, json!(number)),
        Some(Any::DoubleValue(number)) => (pair.key, json!(number)),
        other => panic!("an attribute of ours is a plain value: {}: {other:?}", pair.key),
    };
    pairs.into_iter().map(value).collect()
}

fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}
