//! Runs as a busy service writes them down.

use std::collections::BTreeMap;

use interpreterd::domain::claim::{Claim, Key};
use interpreterd::domain::execution::{Execution, ExecutionStatus, Failure, FailureKind};
use interpreterd::domain::file::OutputFile;
use interpreterd::domain::id::{ExecutionId, RunId, SessionId};
use interpreterd::domain::limits::Limits;
use interpreterd::domain::provider::Capabilities;
use interpreterd::domain::run::{
    CodeExecResult, ResultPart, Run, RunKind, RunStatus, RunSummary, Usage,
};
use interpreterd::domain::session::{EndReason, Session, SessionState};
use interpreterd::store::StoredFile;
use serde_json::json;
use time::{Duration, OffsetDateTime};
use uuid::Builder;

/// The entry that most sandboxes come from.
pub const USUAL_PROVIDER: &str = "local";
/// The one that some come from.
pub const RARE_PROVIDER: &str = "e2b";
/// Each run with such a number has an output file, and came with a key.
pub const KEYED: u64 = 50;

const ROUTE: &str = "/v1/sessions/{session_id}/exec";
const WORDS: [&str; 16] = [
    "total", "mean", "frame", "column", "rows", "value", "index", "month", "price", "region",
    "count", "sum", "ratio", "year", "name", "result",
];

/// A run from its begin to its end.
pub struct Story {
    /// As it is when it begins.
    pub begun: RunSummary,
    /// As it has ended.
    pub ended: Run,
    /// The files that it made.
    pub files: Vec<StoredFile>,
    /// What was said in it, as JSON.
    pub conversation: Option<String>,
    /// The key that it came with.
    pub claim: Option<Claim>,
}

/// The run with this number, asked for at that time, or now. The number gives its contents.
pub fn story(number: u64, session_id: SessionId, at: Option<OffsetDateTime>) -> Story {
    let mut dice = fastrand::Rng::with_seed(number);
    let begun = begun(&mut dice, session_id, at);
    let mut summary = begun.clone();
    end(&mut dice, &mut summary);
    let conversation = (summary.kind == RunKind::Interpret)
        .then(|| json!([{"role": "user", "content": text(&mut dice, 2000)}]).to_string());
    let file = number.is_multiple_of(KEYED).then(|| file_of(&mut dice, begun.id));
    let ended = whole(&mut dice, summary, file.as_ref());
    let claim = number.is_multiple_of(KEYED).then(|| claim(&key_of(number), &mut dice));
    Story { begun, ended, files: file.into_iter().collect(), conversation, claim }
}

/// The key that the run with this number came with.
pub fn key_of(number: u64) -> Key {
    Key::new(ROUTE, &format!("run-{number:08}")).expect("it is short and visible ASCII")
}

/// A key for the hash of a request.
pub fn claim(key: &Key, dice: &mut fastrand::Rng) -> Claim {
    Claim { key: key.clone(), request_hash: hex(dice) }
}

/// A session that has ended.
pub fn session(id: SessionId) -> Session {
    let now = OffsetDateTime::now_utc();
    let capabilities = Capabilities {
        state: true,
        state_after_timeout: true,
        upload: true,
        download: true,
        shell: true,
        packages: true,
        network: false,
        absolute_files_dir: true,
        streaming: true,
    };
    Session {
        id,
        provider: USUAL_PROVIDER.to_owned(),
        sandbox_id: Some(id.to_string()),
        state: SessionState::Ended,
        isolation: None,
        capabilities,
        limits: Limits { memory_bytes: Some(512 << 20), ..Limits::default() },
        files_dir: Some("/files".to_owned()),
        progress: None,
        failure: None,
        packages: Vec::new(),
        created_at: now,
        last_used_at: now,
        expires_at: now + Duration::minutes(10),
        ended_at: Some(now),
        end_reason: Some(EndReason::Deleted),
        one_shot: false,
        metadata: BTreeMap::new(),
    }
}

/// The id that a run would have got then: RFC 9562, 5.7.
fn id_of(at: OffsetDateTime, dice: &mut fastrand::Rng) -> RunId {
    let milliseconds = (at.unix_timestamp_nanos() / 1_000_000) as u64;
    let mut random = [0; 10];
    dice.fill(&mut random);
    RunId::from_uuid(Builder::from_unix_timestamp_millis(milliseconds, &random).into_uuid())
}

/// Exec 80, shell 10, execute 7, interpret 3 of 100; the rare provider 5 of 100.
fn begun(
    dice: &mut fastrand::Rng,
    session_id: SessionId,
    at: Option<OffsetDateTime>,
) -> RunSummary {
    let kind = match dice.u32(0..100) {
        0..80 => RunKind::Exec,
        80..90 => RunKind::Shell,
        90..97 => RunKind::Execute,
        _ => RunKind::Interpret,
    };
    let provider = if dice.u32(0..100) < 5 { RARE_PROVIDER } else { USUAL_PROVIDER };
    let asks = kind == RunKind::Interpret;
    let id = at.map_or_else(RunId::new, |at| id_of(at, dice));
    let at = at.unwrap_or_else(OffsetDateTime::now_utc);
    RunSummary {
        id,
        kind,
        session_id,
        provider: provider.to_owned(),
        model: asks.then(|| "claude".to_owned()),
        status: RunStatus::Running,
        message: asks.then(|| text(dice, 200)),
        previous_run_id: None,
        error: None,
        failure: None,
        usage: Usage::default(),
        turns: 0,
        created_at: at,
        started_at: Some(at),
        finished_at: None,
        duration_ms: None,
        metadata: BTreeMap::from([("user".to_owned(), format!("u-{}", dice.u32(0..5000)))]),
    }
}

/// Success 900, error 70, timeout 20, unknown 9, cancelled 1 of 1,000.
fn end(dice: &mut fastrand::Rng, run: &mut RunSummary) {
    run.status = match dice.u32(0..1000) {
        0..900 => RunStatus::Success,
        900..970 => RunStatus::Error,
        970..990 => RunStatus::Timeout,
        990..999 => RunStatus::Unknown,
        _ => RunStatus::Cancelled,
    };
    let took = dice.f64() * 200.0;
    run.duration_ms = Some(took);
    run.finished_at = Some(run.created_at + Duration::milliseconds(took as i64));
    if run.kind == RunKind::Interpret {
        run.turns = dice.u32(1..6);
        run.usage = Usage { input_tokens: dice.u64(500..9000), output_tokens: dice.u64(50..900) };
    }
    match run.status {
        RunStatus::Error => run.error = Some(format!("ValueError: {}", text(dice, 60))),
        RunStatus::Timeout => run.error = Some("it ran out of time after 30 s".to_owned()),
        RunStatus::Unknown | RunStatus::Cancelled => {
            let message = text(dice, 60);
            let failure = Failure {
                kind: FailureKind::Interrupted,
                retry_safe: false,
                message: message.clone(),
            };
            run.error = Some(message);
            run.failure = Some(failure);
        }
        RunStatus::Queued | RunStatus::Running | RunStatus::Success => {}
    }
}

/// With half a KiB to four KiB of code and output, which the service writes down as often as here.
fn whole(dice: &mut fastrand::Rng, summary: RunSummary, file: Option<&StoredFile>) -> Run {
    let code_bytes = dice.usize(60..500);
    let printed_bytes = dice.usize(20..650);
    let (code, printed) = (text(dice, code_bytes), text(dice, printed_bytes));
    let execution = Execution {
        id: ExecutionId::new(),
        run_id: summary.id,
        session_id: summary.session_id,
        status: status_of(summary.status),
        code: code.clone(),
        stdout: printed.clone(),
        stderr: String::new(),
        text: printed.clone(),
        error: summary.error.clone(),
        error_detail: None,
        exit_code: Some(i32::from(summary.status != RunStatus::Success)),
        duration_ms: summary.duration_ms,
        execution_count: Some(dice.u32(1..20)),
        outputs: Vec::new(),
        files: Vec::new(),
        output_files: None,
        stdout_bytes: printed.len() as u64,
        stderr_bytes: 0,
        truncated: false,
        lossy: false,
        late_output: None,
        state_lost: false,
        files_lost: false,
        failure: summary.failure.clone(),
    };
    let result = CodeExecResult {
        id: execution.id.to_string(),
        code,
        output: vec![ResultPart::Text(printed.clone())],
        execution,
    };
    let output_files = file.map(|file| shown(summary.id, file)).into_iter().collect();
    Run { text: printed, code_exec_results: vec![result], output_files, ..Run::empty(summary) }
}

fn status_of(status: RunStatus) -> ExecutionStatus {
    match status {
        RunStatus::Success => ExecutionStatus::Success,
        RunStatus::Timeout => ExecutionStatus::Timeout,
        RunStatus::Unknown => ExecutionStatus::Unknown,
        RunStatus::Error | RunStatus::Cancelled | RunStatus::Queued | RunStatus::Running => {
            ExecutionStatus::Error
        }
    }
}

fn file_of(dice: &mut fastrand::Rng, run: RunId) -> StoredFile {
    StoredFile {
        path: "report.csv".to_owned(),
        blob: format!("00/{run}"),
        size_bytes: dice.u64(100..1_000_000),
        mime: "text/csv".to_owned(),
        sha256: hex(dice),
    }
}

fn shown(run: RunId, file: &StoredFile) -> OutputFile {
    OutputFile {
        path: file.path.clone(),
        name: file.path.clone(),
        url: format!("/v1/runs/{run}/files/{}", file.path),
        size_bytes: file.size_bytes,
        mime: file.mime.clone(),
        sha256: file.sha256.clone(),
        linked: false,
        content_base64: None,
    }
}

/// Words and numbers: no database makes much less of them than of a program's real output.
fn text(dice: &mut fastrand::Rng, bytes: usize) -> String {
    let mut text = String::with_capacity(bytes + 24);
    while text.len() < bytes {
        text.push_str(WORDS[dice.usize(0..WORDS.len())]);
        text.push_str(if dice.bool() { " = " } else { "\n" });
        text.push_str(&dice.u32(..).to_string());
        text.push(' ');
    }
    text
}

fn hex(dice: &mut fastrand::Rng) -> String {
    format!("{:032x}{:032x}", dice.u128(..), dice.u128(..))
}
