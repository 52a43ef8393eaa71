//! Sandboxes that are kept ready, so that a session need not wait.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{Progress, ProviderReport, Sandbox, SandboxError, SandboxProvider, SandboxSpec};
use crate::domain::coded::chain;
use crate::domain::id::SessionId;
use crate::domain::limits::{Limits, LimitsRequest};
use crate::domain::package::PackageSet;
use crate::domain::provider::{Capabilities, Primed};
use crate::domain::session::SandboxRecord;
use crate::telemetry::metrics::Metrics;

/// Making one must not slow down the session that the last one was taken for.
const QUIET: Duration = Duration::from_millis(15);
/// Where sessions are made all the time, there is no quiet: then one is made anyway.
const PATIENCE: Duration = Duration::from_millis(150);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// What a pool keeps.
#[derive(Debug, Clone)]
pub struct PoolPlan {
    /// How many sandboxes of each set of packages; 0: none, and the pool only passes on.
    pub size: u32,
    /// Older ones are ended and made anew.
    pub max_age: Duration,
    /// How long a sandbox may be needed once it is handed out.
    pub lifetime: Duration,
    /// How long the making of one may take.
    pub make_limit: Duration,
    /// The sets of packages, the empty one among them.
    pub sets: Vec<PackageSet>,
}

/// A provider with sandboxes at hand: they have run a cell before a session asks for them. Sessions
/// with lower limits or packages of their own go past it.
pub struct Pool<P> {
    inside: Arc<Inside<P>>,
    filling: TaskTracker,
    stop: CancellationToken,
    /// The provider entry and who counts what is taken, where somebody does.
    counted: Option<(String, Metrics)>,
}

struct Inside<P> {
    provider: P,
    plan: PoolPlan,
    shelves: Vec<Shelf>,
    last_taken: Mutex<Instant>,
    /// Sandboxes that sessions wait for now.
    awaited: AtomicUsize,
    /// Sandboxes that are being ended.
    ending: TaskTracker,
}

/// The sandboxes of one set of packages.
struct Shelf {
    packages: PackageSet,
    /// Rung when there is room.
    taken: Notify,
    stock: Mutex<Stock>,
}

#[derive(Default)]
struct Stock {
    ready: VecDeque<(Instant, Arc<dyn Sandbox>)>,
    reason: Option<String>,
    /// Not before then is another one made.
    pause: Duration,
    not_before: Option<Instant>,
}

impl<P: SandboxProvider + 'static> Pool<P> {
    /// A pool of nothing yet: it fills once it is started.
    pub fn new(provider: P, plan: PoolPlan) -> Self {
        let shelf = |packages: &PackageSet| Shelf {
            packages: packages.clone(),
            taken: Notify::new(),
            stock: Mutex::default(),
        };
        Self {
            inside: Arc::new(Inside {
                shelves: plan.sets.iter().map(shelf).collect(),
                provider,
                plan,
                last_taken: Mutex::new(Instant::now()),
                awaited: AtomicUsize::new(0),
                ending: TaskTracker::new(),
            }),
            filling: TaskTracker::new(),
            stop: CancellationToken::new(),
            counted: None,
        }
    }

    /// The same, which counts what is taken from it and what had to be made.
    #[must_use]
    pub fn counting(mut self, name: &str, metrics: Metrics) -> Self {
        self.counted = Some((name.to_owned(), metrics));
        self
    }

    fn count(&self, was_ready: bool) {
        if let Some((name, metrics)) = &self.counted {
            metrics.pool_taken(name, was_ready);
        }
    }

    fn start_filling(&self) {
        if self.inside.plan.size == 0 || !self.filling.is_empty() || self.stop.is_cancelled() {
            return;
        }
        for number in 0..self.inside.shelves.len() {
            let (inside, stop) = (Arc::clone(&self.inside), self.stop.clone());
            self.filling.spawn(async move {
                let shelf = &inside.shelves[number];
                while !stop.is_cancelled() {
                    inside.fill(shelf, &stop).await;
                }
                for (_, sandbox) in shelf.stock().ready.drain(..) {
                    inside.end(sandbox);
                }
            });
        }
    }
}

#[async_trait]
impl<P: SandboxProvider + 'static> SandboxProvider for Pool<P> {
    fn kind(&self) -> &'static str {
        self.inside.provider.kind()
    }

    fn capabilities(&self) -> Capabilities {
        self.inside.provider.capabilities()
    }

    fn limits(&self, request: &LimitsRequest) -> Result<Limits, SandboxError> {
        self.inside.provider.limits(request)
    }

    /// One that is ready where there is one; a new one else.
    async fn create(&self, spec: &SandboxSpec) -> Result<Arc<dyn Sandbox>, SandboxError> {
        if let Some(shelf) = self.inside.shelf(spec) {
            while let Some(sandbox) = self.inside.take(shelf) {
                let taken = Taken { inside: &self.inside, sandbox: Some(sandbox) };
                if let Some(adopted) = taken.adopted_by(spec).await {
                    self.count(true);
                    return Ok(adopted);
                }
            }
            self.count(false);
        }
        let _awaited = Awaited::enter(&self.inside.awaited);
        self.inside.provider.create(spec).await
    }

    async fn installs(&self, packages: &PackageSet) -> bool {
        self.inside.provider.installs(packages).await
    }

    async fn install(
        &self,
        packages: &PackageSet,
        progress: &Progress,
    ) -> Result<(), SandboxError> {
        self.inside.provider.install(packages, progress).await
    }

    async fn attach(
        &self,
        record: &SandboxRecord,
    ) -> Result<Option<Arc<dyn Sandbox>>, SandboxError> {
        self.inside.provider.attach(record).await
    }

    async fn list(&self) -> Result<Vec<SandboxRecord>, SandboxError> {
        self.inside.provider.list().await
    }

    async fn end(&self, record: &SandboxRecord) -> Result<(), SandboxError> {
        self.inside.provider.end(record).await
    }

    fn outlives(&self) -> bool {
        self.inside.provider.outlives()
    }

    async fn check(&self) -> Result<ProviderReport, SandboxError> {
        self.inside.provider.check().await
    }

    fn seen(&self) -> Option<ProviderReport> {
        self.inside.provider.seen()
    }

    fn start(&self) {
        self.inside.provider.start();
        self.start_filling();
    }

    fn pool(&self) -> Vec<Primed> {
        if self.inside.plan.size == 0 {
            return Vec::new();
        }
        self.inside.shelves.iter().map(|shelf| shelf.told(self.inside.plan.size)).collect()
    }

    async fn close(&self) {
        self.stop.cancel();
        self.filling.close();
        self.filling.wait().await;
        self.inside.ending.close();
        self.inside.ending.wait().await;
        self.inside.provider.close().await;
    }
}

impl<P: SandboxProvider + 'static> Inside<P> {
    /// The shelf that may have what is asked for.
    fn shelf(&self, spec: &SandboxSpec) -> Option<&Shelf> {
        if self.plan.size == 0
            || self.provider.limits(&LimitsRequest::default()).ok()? != spec.limits
        {
            return None;
        }
        self.shelves.iter().find(|shelf| shelf.packages == spec.packages)
    }

    fn take(&self, shelf: &Shelf) -> Option<Arc<dyn Sandbox>> {
        let taken = shelf.stock().ready.pop_front();
        *self.last_taken.lock().expect("no panic while it is held") = Instant::now();
        shelf.taken.notify_one();
        taken.map(|(_, sandbox)| sandbox)
    }

    /// One step: makes the sandbox that is missing, or waits until one is.
    async fn fill(&self, shelf: &Shelf, stop: &CancellationToken) {
        self.end_old(shelf);
        if let Some(next) = shelf.full_until(&self.plan) {
            tokio::select! {
                () = stop.cancelled() => {}
                () = shelf.taken.notified() => {}
                () = sleep_until(next) => {}
            }
            return;
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = self.quiet() => {}
        }
        let spec = SandboxSpec {
            session_id: SessionId::new(),
            limits: self.provider.limits(&LimitsRequest::default()).unwrap_or_default(),
            env: std::collections::BTreeMap::new(),
            packages: shelf.packages.clone(),
            lifetime: self.plan.max_age + self.plan.lifetime,
            primed: true,
        };
        let make = async {
            self.provider.install(&shelf.packages, &Progress::default()).await?;
            self.provider.create(&spec).await
        };
        let made = tokio::select! {
            () = stop.cancelled() => return,
            made = tokio::time::timeout(self.plan.make_limit, make) => made,
        };
        shelf.stock().put(made.unwrap_or(Err(SandboxError::TooSlow)));
    }

    /// Returns when no session waits for a sandbox and none has taken one for a moment, or when that
    /// has been waited for long enough.
    async fn quiet(&self) {
        let latest = Instant::now() + PATIENCE;
        loop {
            let last = *self.last_taken.lock().expect("no panic while it is held");
            let now = Instant::now();
            let is_quiet = self.awaited.load(Ordering::SeqCst) == 0 && now >= last + QUIET;
            if is_quiet || now >= latest {
                return;
            }
            sleep(QUIET / 3).await;
        }
    }

    fn end_old(&self, shelf: &Shelf) {
        let Some(oldest) = Instant::now().checked_sub(self.plan.max_age) else { return };
        let mut stock = shelf.stock();
        while stock.ready.front().is_some_and(|(made, _)| *made <= oldest) {
            if let Some((_, sandbox)) = stock.ready.pop_front() {
                self.end(sandbox);
            }
        }
    }

    fn end(&self, sandbox: Arc<dyn Sandbox>) {
        self.ending.spawn(async move { sandbox.terminate().await });
    }
}

impl Shelf {
    fn stock(&self) -> MutexGuard<'_, Stock> {
        self.stock.lock().expect("no panic while a shelf is held")
    }

    /// When to look again, where nothing is to be made now.
    fn full_until(&self, plan: &PoolPlan) -> Option<Instant> {
        let stock = self.stock();
        if stock.ready.len() >= plan.size as usize {
            return stock.ready.front().map(|(made, _)| *made + plan.max_age);
        }
        stock.not_before.filter(|not_before| *not_before > Instant::now())
    }

    fn told(&self, size: u32) -> Primed {
        let stock = self.stock();
        Primed {
            packages: self.packages.texts(),
            size,
            ready: u32::try_from(stock.ready.len()).unwrap_or(u32::MAX),
            reason: stock.reason.clone(),
        }
    }
}

impl Stock {
    fn put(&mut self, made: Result<Arc<dyn Sandbox>, SandboxError>) {
        match made {
            Ok(sandbox) => {
                self.ready.push_back((Instant::now(), sandbox));
                (self.reason, self.not_before, self.pause) = (None, None, Duration::ZERO);
            }
            Err(error) => {
                let cause = chain(&error);
                tracing::warn!(error = cause, "a sandbox for the pool was not made");
                self.reason = Some(chain(&error));
                self.pause = (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
                self.not_before = Some(Instant::now() + self.pause);
            }
        }
    }
}

/// A sandbox on its way to a session: ended, unless it arrives.
struct Taken<'a, P: SandboxProvider> {
    inside: &'a Inside<P>,
    sandbox: Option<Arc<dyn Sandbox>>,
}

impl<P: SandboxProvider> Taken<'_, P> {
    /// None where it is no longer fit for a first cell.
    async fn adopted_by(mut self, spec: &SandboxSpec) -> Option<Arc<dyn Sandbox>> {
        let adopted = self.sandbox.as_ref()?.adopt(spec).await;
        if adopted.is_ok() { self.sandbox.take() } else { None }
    }
}

impl<P: SandboxProvider> Drop for Taken<'_, P> {
    fn drop(&mut self) {
        if let Some(sandbox) = self.sandbox.take() {
            self.inside.ending.spawn(async move { sandbox.terminate().await });
        }
    }
}

/// A session waits for a sandbox as long as this is.
struct Awaited<'a>(&'a AtomicUsize);

impl<'a> Awaited<'a> {
    fn enter(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
