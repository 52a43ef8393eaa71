//! Runs: exec, execute, interpret, each recorded; read and listed again.

mod conversation;
mod error;
pub mod events;
mod exec;
mod execute;
mod forgetting;
mod interpret;
pub mod journal;
mod kept;
mod keyed;
mod live;
mod now;
mod order;
mod record;
mod session;
pub mod spool;
mod strays;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::BoxStream;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tracing::{Instrument, Span, info_span};

pub use error::RunError;
pub use exec::NewCell;
pub use execute::NewExecute;
pub use interpret::NewInterpret;
pub use order::{Answer, Order};

use journal::Journal;
use live::{LiveRuns, Registered, Ticket};

use crate::config::LimitSettings;
use crate::domain::claim::Claim;
use crate::domain::coded::chain;
use crate::domain::crash;
use crate::domain::file::Part;
use crate::domain::id::{RunId, SessionId, Tenant};
use crate::domain::list::{Page, RunFilter};
use crate::domain::provider::{ModelInfo, ProviderInfo};
use crate::domain::run::{Run, RunStatus, RunSummary};
use crate::llm::connect::Models;
use crate::sandbox::SandboxError;
use crate::sessions::{SessionError, Sessions};
use crate::store::blobs::Blobs;
use crate::store::{Store, StoredFile};
use crate::telemetry::SPAN_TARGET;

const MAX_ENV_BYTES: usize = 32 * 1024;
const MAX_METADATA_BYTES: usize = 16 * 1024;
/// How long a run may take to be recorded once it has been interrupted.
const RECORD_LIMIT: Duration = Duration::from_secs(5);

/// All work that callers ask for. It goes on in tasks of its own, so that what has begun is recorded.
#[derive(Clone)]
pub struct Runs {
    desk: Arc<Desk>,
    tracker: TaskTracker,
    /// No new work.
    stopping: CancellationToken,
    /// What runs is interrupted.
    interrupting: CancellationToken,
}

/// What a run works with.
struct Desk {
    sessions: Arc<Sessions>,
    store: Arc<dyn Store>,
    blobs: Blobs,
    models: Models,
    limits: LimitSettings,
    spool_dir: PathBuf,
    journal: Journal,
    live: Arc<LiveRuns>,
}

impl Runs {
    /// Nothing runs yet.
    #[must_use]
    pub fn new(
        sessions: Arc<Sessions>,
        store: Arc<dyn Store>,
        blobs: Blobs,
        models: Models,
        limits: LimitSettings,
        spool_dir: PathBuf,
        journal: Journal,
    ) -> Self {
        Self {
            desk: Arc::new(Desk {
                sessions,
                store,
                blobs,
                models,
                limits,
                spool_dir,
                journal,
                live: Arc::default(),
            }),
            tracker: TaskTracker::new(),
            stopping: CancellationToken::new(),
            interrupting: CancellationToken::new(),
        }
    }

    /// Does the work and gives its answer.
    pub async fn answer(&self, tenant: &Tenant, order: Order) -> Result<Answer, RunError> {
        self.desk.check(&order)?;
        let desk = Arc::clone(&self.desk);
        let tenant = tenant.clone();
        self.tracked(|cancel| async move {
            let ticket = Ticket::new(&tenant, cancel, false);
            note_run(&ticket);
            let _registered = desk.live.register(&ticket, order.kind());
            desk.work(&ticket, order).await
        })
        .await
    }

    /// Does the work and tells what happens. The work is cancelled when what this gives is dropped
    /// before its end.
    pub fn stream(
        &self,
        tenant: &Tenant,
        order: Order,
        claim: Option<Claim>,
    ) -> Result<Streamed, RunError> {
        self.desk.check(&order)?;
        let cancel = self.admit()?;
        // work under a key goes on when its caller is gone
        let guard = claim.is_none().then(|| cancel.clone().drop_guard());
        let mut ticket = Ticket::new(tenant, cancel, true);
        ticket.claim = claim;
        let log = Arc::clone(&ticket.log);
        let desk = Arc::clone(&self.desk);
        let registered = desk.live.register(&ticket, order.kind());
        note_run(&ticket);
        let work = async move { desk.loudly(&ticket, order, registered).await };
        let result = self.tracker.spawn(work.in_current_span());
        Ok(Streamed { events: events::follow(log, 0), result, guard })
    }

    /// Writes the work down, answers at once, and does it in its turn. Gives the run of the key when
    /// another request was quicker.
    pub async fn queue(
        &self,
        tenant: &Tenant,
        order: Order,
        claim: Option<Claim>,
    ) -> Result<Run, RunError> {
        self.desk.check(&order)?;
        let cancel = self.admit()?;
        let mut ticket = Ticket::new(tenant, cancel, true);
        let key = claim.clone();
        let (desk, tracker) = (Arc::clone(&self.desk), self.tracker.clone());
        // a caller who goes away now leaves no row without its work
        let queued = async move {
            let summary = desk.queued(&mut ticket, &order).await?;
            desk.store.begin_run(&ticket.tenant, &summary, claim.as_ref()).await?;
            crash::point("run.queued");
            ticket.queued = Some(summary.clone());
            // before it is answered: its events may be asked for at once
            let registered = desk.live.register(&ticket, order.kind());
            note_run(&ticket);
            let id = tracing::field::display(ticket.run_id);
            // it goes on when the request has its answer, so it has a span of its own
            let span =
                info_span!(target: SPAN_TARGET, "run", run.id = id, run.kind = summary.kind.word());
            let work = async move { desk.loudly(&ticket, order, registered).await };
            tracker.spawn(work.instrument(span));
            Ok::<_, RunError>(summary)
        };
        let queued = self.tracker.spawn(queued.in_current_span());
        let summary = match queued.await.map_err(RunError::Panicked)? {
            Err(error) if error.is_claimed() => {
                let id = self.claimed(tenant, key.as_ref()).await?;
                return self.get(tenant, id.ok_or(RunError::KeyInProgress)?).await;
            }
            summary => summary?,
        };
        Ok(Run::empty(summary))
    }

    /// Tells a run to end. What it has done until then is recorded.
    pub async fn cancel(&self, tenant: &Tenant, id: RunId) -> Result<Run, RunError> {
        if let Some(live) = self.desk.live.get(tenant, id) {
            live.cancel.cancel();
            return self.get(tenant, id).await;
        }
        match self.get(tenant, id).await?.summary.status {
            RunStatus::Queued | RunStatus::Running => Err(RunError::Elsewhere(id)),
            _ => Err(RunError::Ended(id)),
        }
    }

    /// A run whole.
    pub async fn get(&self, tenant: &Tenant, id: RunId) -> Result<Run, RunError> {
        self.desk.store.run(tenant, id).await?.ok_or(RunError::NotFound(id))
    }

    /// Runs, a page at a time.
    pub async fn list(
        &self,
        tenant: &Tenant,
        filter: &RunFilter,
        page: Page,
    ) -> Result<Vec<RunSummary>, RunError> {
        Ok(self.desk.store.runs(tenant, filter, page).await?)
    }

    /// A part of a file that a run made.
    pub async fn file(
        &self,
        tenant: &Tenant,
        id: RunId,
        path: &str,
        part: Part,
    ) -> Result<(StoredFile, BoxStream<'static, std::io::Result<Bytes>>), RunError> {
        if let Some(file) = self.desk.store.output_file(tenant, id, path).await? {
            let size = file.size_bytes;
            let (first, length) = part.within(size).ok_or(SandboxError::NoSuchPart(size))?;
            let content = self.desk.blobs.read(&file.blob, first, length).await?;
            return Ok((file, content));
        }
        self.get(tenant, id).await?;
        Err(RunError::NoSuchFile(path.to_owned()))
    }

    /// The configured providers.
    #[must_use]
    pub fn providers(&self) -> Vec<ProviderInfo> {
        self.desk.sessions.providers()
    }

    /// The configured models.
    #[must_use]
    pub fn models(&self) -> Vec<ModelInfo> {
        self.desk.models.list()
    }

    /// Whether work can be done: the store answers and the service is not ending.
    pub async fn ready(&self) -> Result<(), RunError> {
        if self.stopping.is_cancelled() {
            return Err(RunError::ShuttingDown);
        }
        self.desk.sessions.ready()?;
        Ok(self.desk.store.check().await?)
    }

    /// Refuses new work from now on.
    pub fn refuse(&self) {
        self.stopping.cancel();
    }

    /// Waits for what runs, interrupts what has not ended within the grace, and ends all sessions.
    pub async fn close(&self, grace: Duration) {
        self.refuse();
        self.tracker.close();
        if tokio::time::timeout(grace, self.tracker.wait()).await.is_err() {
            tracing::warn!("interrupting what still runs");
            self.interrupting.cancel();
            if tokio::time::timeout(RECORD_LIMIT, self.tracker.wait()).await.is_err() {
                tracing::error!("something that ran could not be recorded in time");
            }
        }
        self.desk.sessions.close().await;
        // the ends of cells that went down with their sessions
        let _ = tokio::time::timeout(RECORD_LIMIT, self.tracker.wait()).await;
        self.desk.store.close().await;
    }

    /// The token of new work, while new work is taken.
    fn admit(&self) -> Result<CancellationToken, RunError> {
        if self.stopping.is_cancelled() {
            return Err(RunError::ShuttingDown);
        }
        Ok(self.interrupting.child_token())
    }

    /// Work that goes on when its caller is gone. The token says that it should end.
    async fn tracked<T, F>(&self, work: impl FnOnce(CancellationToken) -> F) -> Result<T, RunError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, RunError>> + Send + 'static,
    {
        let cancel = self.admit()?;
        let gone = cancel.clone().drop_guard();
        let work = work(cancel).in_current_span();
        let result = self.tracker.spawn(work).await.map_err(RunError::Panicked)?;
        gone.disarm();
        result
    }
}

/// Work whose events are told as they happen.
pub struct Streamed {
    /// What happens, to its end.
    pub events: events::Events,
    /// What came of it.
    pub result: JoinHandle<Result<Answer, RunError>>,
    /// Cancels the work when dropped; absent under a key.
    pub guard: Option<DropGuard>,
}

impl Desk {
    /// Does the work; its answer is the last of its events.
    async fn loudly(
        &self,
        ticket: &Ticket,
        order: Order,
        registered: Registered,
    ) -> Result<Answer, RunError> {
        let result = self.work(ticket, order).await;
        match &result {
            Ok(answer) => {
                ticket
                    .log
                    .complete(serde_json::to_string(answer).expect("answers have string keys"));
            }
            Err(RunError::ModelFailed { run_id, source }) => {
                tracing::error!(run.id = %run_id, error = chain(source), "a run's model failed");
            }
            Err(_) => {}
        }
        if let (Err(error), Some(summary)) = (&result, ticket.queued.clone()) {
            // one that failed before it began is ended here; one that began has ended itself
            if !ticket.log.is_closed() {
                self.finish_unstarted(ticket, summary, error).await;
            }
        }
        drop(registered);
        result
    }

    /// The row of a run that waits: which session it will have is told already.
    async fn queued(&self, ticket: &mut Ticket, order: &Order) -> Result<RunSummary, RunError> {
        let (session_id, provider) = match order {
            Order::Exec(id, _) => (Some(*id), None),
            Order::Execute(new) => (None, new.session.provider.clone()),
            Order::Interpret(new) => (new.session_id, new.session.provider.clone()),
        };
        let mut session = RunPlace { id: SessionId::new(), provider: String::new() };
        if let Some(id) = session_id {
            let named = self.sessions.get(&ticket.tenant, id).await?;
            if named.ended_at.is_some() {
                return Err(SessionError::gone(&named).into()); // told at once
            }
            session = RunPlace { id, provider: named.provider };
        } else {
            self.sessions.provider_name(provider.as_deref())?.clone_into(&mut session.provider);
            ticket.own_session = Some(session.id);
        }
        let mut summary = record::waiting(order.kind(), ticket, session.id, session.provider);
        if let Order::Interpret(new) = order {
            self.check_previous(&ticket.tenant, new.previous_run_id).await?; // told at once
            summary.previous_run_id = new.previous_run_id;
            summary.message = Some(new.message.clone());
            summary.metadata = new.metadata.clone();
            summary.model = Some(self.models.get(new.model.as_deref())?.name().to_owned());
        }
        Ok(summary)
    }

    fn check_code(&self, code: &str) -> Result<(), RunError> {
        if code.len() as u64 > self.limits.code_bytes {
            return Err(RunError::CodeTooLong(self.limits.code_bytes));
        }
        Ok(())
    }
}

/// Tells the span of the request which run it began.
fn note_run(ticket: &Ticket) {
    Span::current().record("run.id", tracing::field::display(ticket.run_id));
}

/// What can be an environment: names without = and NUL, values without NUL, 32 KiB together.
fn check_env(env: &BTreeMap<String, String>) -> Result<(), RunError> {
    let bytes: usize = env.iter().map(|(name, value)| name.len() + value.len()).sum();
    let bad = |(name, value): (&String, &String)| {
        name.is_empty() || name.contains(['=', '\0']) || value.contains('\0')
    };
    if bytes > MAX_ENV_BYTES || env.iter().any(bad) {
        return Err(RunError::BadEnv(MAX_ENV_BYTES));
    }
    Ok(())
}

fn check_metadata(metadata: &BTreeMap<String, String>) -> Result<(), RunError> {
    let bytes: usize = metadata.iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > MAX_METADATA_BYTES {
        Err(RunError::MetadataTooLong(MAX_METADATA_BYTES))
    } else {
        Ok(())
    }
}

/// Where a queued run will be.
struct RunPlace {
    id: SessionId,
    provider: String,
}

fn in_range(field: &'static str, asked: Option<Duration>, most: Duration) -> Result<(), RunError> {
    match asked {
        Some(asked) if asked.is_zero() || asked > most => {
            Err(RunError::OutOfRange { field, above: 0.0, most: most.as_secs_f64() })
        }
        Some(_) | None => Ok(()),
    }
}
