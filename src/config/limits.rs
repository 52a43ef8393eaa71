//! Limits: the defaults, and the most that a request may ask for.

use std::time::Duration;

use clap::Args;

use super::seconds;

/// Defaults of what a request may leave open, and the most that it may ask for.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Limits")]
pub struct LimitSettings {
    /// Time for a cell, in seconds
    #[arg(long, env = "INTERPRETERD_CELL_SECONDS", default_value = "30", value_parser = seconds)]
    pub cell_seconds: Duration,
    /// Most time that a request may ask for a cell, in seconds
    #[arg(long, env = "INTERPRETERD_CELL_SECONDS_MAX", default_value = "600", value_parser = seconds)]
    pub cell_seconds_max: Duration,
    /// Time for an interpret as a whole, in seconds
    #[arg(long, env = "INTERPRETERD_INTERPRET_SECONDS", default_value = "300", value_parser = seconds)]
    pub interpret_seconds: Duration,
    /// Most time that a request may ask for an interpret, in seconds
    #[arg(long, env = "INTERPRETERD_INTERPRET_SECONDS_MAX", default_value = "3600", value_parser = seconds)]
    pub interpret_seconds_max: Duration,
    /// Lifetime of a session, in seconds
    #[arg(long, env = "INTERPRETERD_LIFETIME_SECONDS", default_value = "600", value_parser = seconds)]
    pub lifetime_seconds: Duration,
    /// Longest lifetime that a request may ask for, in seconds
    #[arg(long, env = "INTERPRETERD_LIFETIME_SECONDS_MAX", default_value = "86400", value_parser = seconds)]
    pub lifetime_seconds_max: Duration,
    /// Time after which an unused session ends, in seconds
    #[arg(long, env = "INTERPRETERD_IDLE_SECONDS", default_value = "900", value_parser = seconds)]
    pub idle_seconds: Duration,
    /// Time for the making of a sandbox, in seconds
    #[arg(long, env = "INTERPRETERD_CREATE_SECONDS", default_value = "60", value_parser = seconds)]
    pub create_seconds: Duration,
    /// Time for the installing of packages, in seconds
    #[arg(long, env = "INTERPRETERD_INSTALL_SECONDS", default_value = "300", value_parser = seconds)]
    pub install_seconds: Duration,
    /// Time for the end of a sandbox, in seconds
    #[arg(long, env = "INTERPRETERD_TEARDOWN_SECONDS", default_value = "10", value_parser = seconds)]
    pub teardown_seconds: Duration,
    /// Time without progress after which an upload or download is given up, in seconds
    #[arg(long, env = "INTERPRETERD_TRANSFER_SECONDS", default_value = "30", value_parser = seconds)]
    pub transfer_seconds: Duration,
    /// Bytes of stdout and of stderr that are kept of a cell, each
    #[arg(long, env = "INTERPRETERD_OUTPUT_BYTES", default_value_t = 1 << 20, value_parser = clap::value_parser!(u64).range(1024..=16 << 20))]
    pub output_bytes: u64,
    /// Longest code, in bytes
    #[arg(long, env = "INTERPRETERD_CODE_BYTES", default_value_t = 1 << 20)]
    pub code_bytes: u64,
    /// Largest JSON body, in bytes
    #[arg(long, env = "INTERPRETERD_BODY_BYTES", default_value_t = 16 << 20)]
    pub body_bytes: u64,
    /// How long runs, their files and events, and ended sessions are kept, in seconds
    #[arg(long, env = "INTERPRETERD_RETENTION_SECONDS", default_value = "2592000", value_parser = seconds)]
    pub retention_seconds: Duration,
    /// Ended runs that are kept of each tenant, the newest, with their files and events; 0: as many as there are
    #[arg(long, env = "INTERPRETERD_RETENTION_RUNS", default_value_t = 0)]
    pub retention_runs: u64,
    /// Ended sessions that are kept of each tenant, the newest; 0: as many as there are
    #[arg(long, env = "INTERPRETERD_RETENTION_SESSIONS", default_value_t = 0)]
    pub retention_sessions: u64,
    /// Bytes of JSON bodies that are read at once, all callers together
    #[arg(long, env = "INTERPRETERD_BODIES_BYTES", default_value_t = 256 << 20)]
    pub bodies_bytes: u64,
    /// Connections at once; more wait until one ends
    #[arg(long, env = "INTERPRETERD_MAX_CONNECTIONS", default_value_t = 1024)]
    pub max_connections: u32,
    /// Time for the head of a request, and for the next one to come on a kept connection, in seconds
    #[arg(long, env = "INTERPRETERD_HEAD_SECONDS", default_value = "30", value_parser = seconds)]
    pub head_seconds: Duration,
    /// Largest file, in bytes
    #[arg(long, env = "INTERPRETERD_FILE_BYTES", default_value_t = 512 << 20)]
    pub file_bytes: u64,
    /// Bytes of files that are kept of one run
    #[arg(long, env = "INTERPRETERD_KEPT_BYTES", default_value_t = 512 << 20)]
    pub kept_bytes: u64,
    /// Calls that may wait for one session
    #[arg(long, env = "INTERPRETERD_SESSION_QUEUE", default_value_t = 32)]
    pub session_queue: u32,
    /// Sessions that may live at once
    #[arg(long, env = "INTERPRETERD_MAX_SESSIONS", default_value_t = 1000)]
    pub max_sessions: u32,
    /// Streams of events that may be read at once
    #[arg(long, env = "INTERPRETERD_MAX_STREAMS", default_value_t = 256)]
    pub max_streams: u32,
    /// Turns of a model in an interpret
    #[arg(long, env = "INTERPRETERD_TURNS", default_value_t = 10)]
    pub turns: u32,
    /// Most turns that a request may ask for
    #[arg(long, env = "INTERPRETERD_TURNS_MAX", default_value_t = 25)]
    pub turns_max: u32,
    /// Tokens that a model may read and write together in an interpret, as its service counts them; then it must answer
    #[arg(long, env = "INTERPRETERD_INTERPRET_TOKENS", default_value_t = 1_000_000)]
    pub interpret_tokens: u64,
}
