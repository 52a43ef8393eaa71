//! Log lines, metrics and spans: never code, file contents, prompts or keys.

mod labels;
pub mod metrics;
mod now;
mod process;
pub mod table;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::FmtSpan;

use crate::config::LogFormat;
pub use now::Now;

/// The target of spans, which are for traces and not for log lines.
pub const SPAN_TARGET: &str = "interpreterd_span";

/// What is no log line; and libraries that would log what programs print, and what they are given.
const QUIET: [&str; 9] = [
    "interpreterd_span=off",
    "aws_sdk_bedrockagentcore=info",
    "aws_smithy_runtime=info",
    "aws_smithy_http_client=info",
    "aws_runtime=info",
    "aws_sigv4=info",
    "rmcp=off",
    "sqlx::postgres::notice=off",
    "sqlx_postgres::options::pgpass=error",
];

/// Starts logging to standard error, for the whole process.
///
/// # Errors
/// When the filter is not in the syntax of `EnvFilter`.
pub fn start(
    format: LogFormat,
    filter: &str,
) -> Result<(), tracing_subscriber::filter::ParseError> {
    let mut filter = EnvFilter::builder().parse(filter)?;
    for quiet in QUIET {
        filter = filter.add_directive(quiet.parse()?);
    }
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_span_events(FmtSpan::NONE)
        .with_target(false);
    // a second start, in tests, changes nothing
    let _ = match format {
        LogFormat::Text => lines.with_ansi(false).try_init(),
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
    };
    Ok(())
}
