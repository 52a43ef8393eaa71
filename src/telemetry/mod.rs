//! Log lines, metrics and spans: never code, file contents, prompts or keys.

mod labels;
pub mod metrics;
mod now;
#[cfg(feature = "otlp")]
mod otlp;
mod process;
pub mod table;
pub mod traces;

use tracing_subscriber::filter::{FilterExt, LevelFilter, ParseError, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry};

use crate::config::{Collector, LogFormat};
pub use now::Now;
use traces::Traces;

/// Spans of this target, and nothing else, are what traces are made of. No log line knows of them.
pub const SPAN_TARGET: &str = "interpreterd_span";

/// Libraries that would log what programs print, and what they are given.
const QUIET: [&str; 8] = [
    "aws_sdk_bedrockagentcore=info",
    "aws_smithy_runtime=info",
    "aws_smithy_http_client=info",
    "aws_runtime=info",
    "aws_sigv4=info",
    "rmcp=off",
    "sqlx::postgres::notice=off",
    "sqlx_postgres::options::pgpass=error",
];

/// Starts logging to standard error, for the whole process, and prepares traces where a collector
/// takes them.
///
/// # Errors
/// When the filter is not in the syntax of `EnvFilter`.
pub fn start(
    format: LogFormat,
    filter: &str,
    collector: Option<&Collector>,
) -> Result<Traces, ParseError> {
    let subscriber = tracing_subscriber::registry().with(lines(format, filter)?);
    let traces = Traces::to(collector);
    // a second start, in tests, changes nothing
    #[cfg(feature = "otlp")]
    if let Some(sending) = &traces.sending {
        let _ = subscriber.with(sending.layer()).try_init();
        return Ok(traces);
    }
    let _ = subscriber.try_init();
    Ok(traces)
}

/// Log lines. Spans of traces do not exist for them.
fn lines(
    format: LogFormat,
    filter: &str,
) -> Result<impl Layer<Registry> + Send + Sync + use<>, ParseError> {
    let mut filter = EnvFilter::builder().parse(filter)?;
    for quiet in QUIET {
        filter = filter.add_directive(quiet.parse()?);
    }
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(false);
    let lines = match format {
        LogFormat::Text => lines.with_ansi(false).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    let is_ours = filter_fn(|metadata| metadata.target() != SPAN_TARGET)
        .with_max_level_hint(LevelFilter::TRACE);
    Ok(lines.with_filter(filter.and(is_ours)))
}

#[cfg(test)]
mod tests {
    use tracing::{Span, info_span};

    use super::*;

    #[test]
    fn spans_of_traces_are_disabled_where_there_is_no_collector_whatever_is_logged() {
        for filter in ["trace", "interpreterd_span=trace", "[request]=trace"] {
            let lines = lines(LogFormat::Json, filter).expect("a good filter");
            let subscriber = tracing_subscriber::registry().with(lines);
            tracing::subscriber::with_default(subscriber, || {
                assert!(info_span!(target: SPAN_TARGET, "request").is_disabled(), "{filter}");
                let _entered = info_span!(target: SPAN_TARGET, "request").entered();
                assert!(Span::current().is_disabled(), "{filter}");
            });
        }
    }
}
