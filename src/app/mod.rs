//! Opens what the settings name, serves until told to stop, and drains.

mod check;
mod duties;
mod healthcheck;
mod serve;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

pub use check::check;
pub use healthcheck::healthcheck;

use duties::Duties;

use crate::access::{Access, AccessError};
use crate::api::{self, ApiState};
use crate::config::{self, Settings};
use crate::llm::LlmError;
use crate::llm::connect::Models;
use crate::net::ClientError;
use crate::runs::Runs;
use crate::runs::journal::{Journal, Replayed};
use crate::sandbox::local::user::{Taken, UserError, give_up_root};
use crate::sandbox::{SandboxError, connect};
use crate::sessions::{RecoveredSessions, SessionError, Sessions};
use crate::store::{self, Store, StoreError};
use crate::telemetry;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::traces::{Traces, TracesError};

/// Lists of files that are made at once.
const LISTINGS: usize = 4;
/// How long answers may take to leave once all work is over.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// What a session of `local` takes, and what connections and the store take besides.
const DESCRIPTORS_A_SESSION: u64 = 8;
const DESCRIPTORS_BESIDES: u64 = 1024;

/// Why the service does not start, or did not end well.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// The log filter cannot be read.
    #[error("the setting log cannot be read")]
    LogFilter(#[from] tracing_subscriber::filter::ParseError),
    /// Traces cannot be sent.
    #[error("traces cannot be sent")]
    Traces(#[from] TracesError),
    /// Root could not be given up.
    #[error(transparent)]
    User(#[from] UserError),
    /// A key is too weak.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// Without keys only loopback may be listened on.
    #[error(
        "{0} is not loopback and no API keys are set: set INTERPRETERD_API_KEYS, \
         or --allow-anonymous if everybody who can reach it may run code"
    )]
    Open(SocketAddr),
    /// Who may call is not asked, and what is called may reach the network.
    #[error(
        "the provider entry {0} lets code reach the network, this host's own services too, and no API keys are set: \
         set INTERPRETERD_API_KEYS"
    )]
    OpenNetwork(String),
    /// The store cannot be opened.
    #[error("the store cannot be opened")]
    Store(#[from] StoreError),
    /// It may not serve its sessions any more.
    #[error("this replica must end")]
    Replaced(#[source] StoreError),
    /// The model is configured wrongly.
    #[error("the model cannot be set up")]
    Model(#[from] LlmError),
    /// The default provider does not work.
    #[error("the default provider does not work; `interpreterd check` says more")]
    Provider(#[from] SandboxError),
    /// Sessions of an earlier start cannot be taken up.
    #[error("sessions of an earlier start cannot be taken up")]
    Recover(#[from] SessionError),
    /// The address cannot be listened on.
    #[error("cannot listen on {0}")]
    Listen(SocketAddr, #[source] std::io::Error),
    /// The service does not answer.
    #[error("no service answers at {0}")]
    Silent(SocketAddr, #[source] reqwest::Error),
    /// The service cannot be asked.
    #[error("the service cannot be asked")]
    Asking(#[from] ClientError),
    /// The service is not ready.
    #[error("the service at {0} is not ready: {1}")]
    NotReady(SocketAddr, String),
    /// The runtime, a folder or a signal cannot be set up.
    #[error("the process cannot be set up")]
    Process(#[from] std::io::Error),
}

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// [`AppError`] when the service cannot start.
pub fn serve(settings: &Settings) -> Result<(), AppError> {
    let server = &settings.server;
    let collector = settings.traces.collector.as_ref();
    let traces = telemetry::start(server.log_format, &server.log, collector)?;
    let access = admit(settings)?;
    let taken = give_up_root(settings)?;
    let shelves = 1 + settings.local.package_sets().len() as u32;
    raise_descriptors(settings.limits.max_sessions + settings.local.local_pool * shelves);
    let served = runtime()?.block_on(async {
        let listener = TcpListener::bind(settings.server.listen).await;
        let listener = listener.map_err(|error| AppError::Listen(settings.server.listen, error))?;
        run(settings, access, taken, listener, &traces).await
    });
    traces.close(); // all spans have ended with the runtime
    served
}

/// Brings the tables of the database up to date and says so.
///
/// # Errors
/// [`AppError`] when they cannot be.
pub fn migrate(settings: &Settings) -> Result<(), AppError> {
    telemetry::start(settings.server.log_format, &settings.server.log, None)?;
    give_up_root(settings)?;
    runtime()?.block_on(async {
        store::connect::migrate(&settings.server.data_dir, &settings.store).await?;
        println!("the tables of the database are up to date");
        Ok(())
    })
}

fn admit(settings: &Settings) -> Result<Access, AppError> {
    let server = &settings.server;
    let access = Access::new(&server.api_keys)?;
    let open = !access.asks() && !server.listen.ip().is_loopback() && !server.allow_anonymous;
    if open {
        return Err(AppError::Open(server.listen));
    }
    let networked = settings.pydantic.entries.iter().find(|entry| entry.network);
    match networked {
        Some(entry) if !access.asks() => Err(AppError::OpenNetwork(entry.name.clone())),
        _ => Ok(access),
    }
}

/// Raises the limit on descriptors as far as it goes, and says so when that is not enough.
fn raise_descriptors(sandboxes: u32) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let held =
        if setrlimit(Resource::Nofile, raised).is_ok() { limit.maximum } else { limit.current };
    let needed = u64::from(sandboxes) * DESCRIPTORS_A_SESSION + DESCRIPTORS_BESIDES;
    if held.is_some_and(|held| held < needed) {
        tracing::warn!(
            allowed = held,
            needed,
            "too few open files are allowed for max_sessions and the pool: raise the hard limit (ulimit -Hn), or lower max_sessions"
        );
    }
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()
}

async fn run(
    settings: &Settings,
    access: Access,
    taken: Taken,
    listener: TcpListener,
    traces: &Traces,
) -> Result<(), AppError> {
    let stop = stop_signal()?;
    for name in config::unknown_variables() {
        tracing::warn!(name, "a variable is named like a setting and is none");
    }
    let data_dir = &settings.server.data_dir;
    let metrics = Metrics::default();
    let opened = store::connect::open(data_dir, &settings.store, &settings.blobs, &metrics).await?;
    traces.begin(&opened.store.maker().replica_id.to_string())?;
    let lease = settings.store.replica_lease_seconds;
    let over = CancellationToken::new();
    let seen = duties::be_seen(Arc::clone(&opened.store), lease, stop.clone(), over.clone());
    let seen = tokio::spawn(seen);
    let spool_dir = data_dir.join("spool");
    std::fs::create_dir_all(&spool_dir)?;
    let journal = Journal::open(data_dir.join("journal"))?;
    recover(opened.store.as_ref(), &journal).await?;
    let sessions = take_up_sessions(settings, taken, &opened, &metrics).await?;
    let runs = Runs::new(
        Arc::clone(&sessions),
        Arc::clone(&opened.store),
        opened.blobs.clone(),
        Models::connect(&settings.model.entries, &metrics)?,
        settings.limits.clone(),
        spool_dir,
        journal.clone(),
    );
    let state = api_state(settings, access, runs.clone(), Arc::clone(&sessions), metrics);
    let duties = Duties {
        sessions,
        runs: runs.clone(),
        store: Arc::clone(&opened.store),
        blobs: opened.blobs.clone(),
        journal,
        stop: stop.clone(),
    };
    let duties = duties.begin();
    let address = listener.local_addr()?;
    let bounds = serve::Bounds {
        connections: settings.limits.max_connections as usize,
        head: settings.limits.head_seconds,
        write: settings.limits.transfer_seconds,
    };
    let answering = tokio::spawn(serve::serve(listener, api::router(state), bounds, stop.clone()));
    println!("interpreterd answers on http://{address}");
    stop.cancelled().await;
    tracing::info!("stopping");
    runs.close(settings.server.shutdown_grace_seconds).await;
    let _ = tokio::time::timeout(LAST_ANSWERS, answering).await;
    futures::future::join_all(duties).await;
    over.cancel();
    let seen = seen.await.unwrap_or(Ok(()));
    drop(opened.lock);
    seen.map_err(AppError::Replaced)
}

/// What handlers work with.
fn api_state(
    settings: &Settings,
    access: Access,
    runs: Runs,
    sessions: Arc<Sessions>,
    metrics: Metrics,
) -> ApiState {
    let places = ApiState::body_places(settings.limits.bodies_bytes);
    ApiState {
        runs,
        sessions,
        access: Arc::new(access),
        limits: Arc::new(settings.limits.clone()),
        listings: Arc::new(Semaphore::new(LISTINGS)),
        bodies: Arc::new(Semaphore::new(places)),
        readers: Arc::new(Semaphore::new(settings.limits.max_streams as usize)),
        metrics,
        allowed_hosts: settings.server.allowed_hosts.clone().into(),
    }
}

/// The registry of sessions, with those of an earlier start that live on.
async fn take_up_sessions(
    settings: &Settings,
    taken: Taken,
    opened: &store::connect::Opened,
    metrics: &Metrics,
) -> Result<Arc<Sessions>, AppError> {
    let sessions = Arc::new(Sessions::new(
        connect::providers(settings, taken, opened.store.maker(), metrics)?,
        settings.server.default_provider.clone(),
        Arc::clone(&opened.store),
        settings.limits.clone(),
    ));
    sessions.check().await?;
    let found = sessions.recover().await?;
    sessions.start(); // what it makes ready now, no reaping may find
    if found != RecoveredSessions::default() {
        tracing::warn!(
            kept = found.kept,
            lost = found.lost,
            reaped = found.reaped,
            "took up sessions of an earlier start"
        );
    }
    Ok(sessions)
}

/// Ends what an earlier start left open.
async fn recover(store: &dyn Store, journal: &Journal) -> Result<(), StoreError> {
    let Replayed { written: journaled, .. } = journal.replay(store).await?;
    let runs = store.recover_runs().await?;
    if journaled + runs > 0 {
        tracing::warn!(journaled, runs, "ended what an earlier start left open");
    }
    Ok(())
}

/// Cancelled at the first SIGTERM or SIGINT.
fn stop_signal() -> std::io::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let stop = CancellationToken::new();
    let told = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        told.cancel();
    });
    Ok(stop)
}
