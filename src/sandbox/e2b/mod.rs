//! The provider `e2b`: sandboxes of E2B, or of what speaks its API.

mod access;
mod collect;
mod control;
mod ending;
mod envd;
mod envelope;
mod error;
mod files;
mod kernel;
mod lines;
mod packages;
mod prelude;
mod process;
mod sandbox;
mod shell;
mod wire;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::access::{Access, Door};
use self::control::Control;
use self::envd::Envd;
use self::error::E2bError;
use self::kernel::Kernel;
use self::packages::Install;
use self::prelude::Here;
use self::sandbox::{Detail, E2bSandbox, Parts};
use crate::config::{E2bEntry, LimitSettings};
use crate::domain::coded::chain;
use crate::domain::id::{Maker, SessionId};
use crate::domain::limits::{Limits, LimitsRequest};
use crate::domain::package::PackageSet;
use crate::domain::provider::Capabilities;
use crate::domain::session::SandboxRecord;
use crate::sandbox::{
    Progress, ProviderReport, Sandbox, SandboxError, SandboxProvider, SandboxSpec, output,
};

/// A sandbox whose making failed may have been made all the same: a look now, and one later.
const LOST_LOOKS: [Duration; 2] = [Duration::ZERO, Duration::from_secs(30)];
/// How long the service waits at its end for what is still being made.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);
/// The code interpreter of a new sandbox is there a moment after the sandbox.
const INTERPRETER_TRIES: u32 = 4;
const INTERPRETER_PAUSE: Duration = Duration::from_millis(500);

/// Makes sandboxes at one account of E2B.
pub struct E2bProvider {
    maker: Arc<Making>,
    /// Sandboxes that are being made, or looked for after that failed.
    making: TaskTracker,
    stop: CancellationToken,
}

struct Making {
    control: Arc<Control>,
    marks: BTreeMap<String, String>,
    output_bytes: u64,
    create_limit: Duration,
    install_limit: Duration,
    /// What the last sandbox that was made is like.
    seen: Mutex<Option<ProviderReport>>,
}

impl E2bProvider {
    /// A provider that has called nobody yet.
    ///
    /// # Errors
    /// [`SandboxError`] when the entry's settings cannot be used.
    pub fn new(
        entry: &E2bEntry,
        limits: &LimitSettings,
        maker: Maker,
    ) -> Result<Self, SandboxError> {
        let access = Access::new(entry.clone()).map_err(SandboxError::from)?;
        let marks = BTreeMap::from([
            ("interpreterd".to_owned(), maker.deployment_id.to_string()),
            ("replica".to_owned(), maker.replica_id.to_string()),
            ("entry".to_owned(), entry.name.clone()),
        ]);
        let maker = Making {
            control: Arc::new(Control::new(Arc::new(access))),
            marks,
            output_bytes: limits.output_bytes,
            create_limit: limits.create_seconds,
            install_limit: limits.install_seconds,
            seen: Mutex::default(),
        };
        Ok(Self {
            maker: Arc::new(maker),
            making: TaskTracker::new(),
            stop: CancellationToken::new(),
        })
    }

    fn entry(&self) -> &E2bEntry {
        &self.maker.control.access.entry
    }
}

impl Making {
    fn marks_of(&self, session_id: SessionId) -> BTreeMap<String, String> {
        let mut marks = self.marks.clone();
        marks.insert("session".to_owned(), session_id.to_string());
        marks
    }

    /// Looks for a sandbox whose making failed: E2B may have made it.
    async fn look_for(&self, session_id: SessionId, stop: &CancellationToken) {
        for pause in LOST_LOOKS {
            if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
                return; // the next start looks for it
            }
            let found = self.control.list(&self.marks_of(session_id)).await;
            for sandbox_id in found.unwrap_or_default() {
                tracing::warn!(sandbox.id = sandbox_id, "a sandbox that nobody waits for is ended");
                let _ = self.control.delete(&sandbox_id).await;
            }
        }
    }

    async fn make(&self, spec: &SandboxSpec) -> Result<Arc<E2bSandbox>, SandboxError> {
        let key = spec.session_id.to_string();
        let marks = self.marks_of(spec.session_id);
        let asked_at = Instant::now();
        let door = Arc::new(self.control.create(&key, &marks, self.create_limit).await?);
        let furnished = self.furnish(&door, spec).await;
        let (kernel, here) = match furnished {
            Ok(furnished) => furnished,
            Err(error) => {
                let _ = self.control.delete(&door.sandbox_id).await;
                return Err(error);
            }
        };
        Ok(E2bSandbox::new(Parts {
            control: Arc::clone(&self.control),
            sandbox_id: door.sandbox_id.clone(),
            door: Some(door),
            kernel,
            here,
            env: spec.env.clone(),
            output_cap: self.output_cap(spec.limits.output_bytes),
            asked_at,
            is_new: true,
        }))
    }

    async fn furnish(
        &self,
        door: &Door,
        spec: &SandboxSpec,
    ) -> Result<(Kernel, Here), SandboxError> {
        let mut kernel = first_kernel(door).await?;
        let here = kernel.set_up(door, &spec.env).await?;
        self.note(&here);
        if !spec.packages.is_empty() {
            let install = Install {
                packages: &spec.packages,
                python: &here.python,
                sandbox_id: &door.sandbox_id,
                index: self.control.access.entry.package_index.as_deref(),
                limit: self.install_limit,
            };
            install.run(&Envd { door, user: &here.user }).await?;
            kernel.forget_modules(door).await?;
        }
        Ok((kernel, here))
    }

    fn note(&self, here: &Here) {
        let seen = ProviderReport {
            isolation: None,
            python: Some(here.version.clone()),
            packages: here.packages.clone(),
        };
        *self.seen.lock().expect("no panic while it is held") = Some(seen);
    }

    fn output_cap(&self, output_bytes: Option<u64>) -> usize {
        usize::try_from(output_bytes.unwrap_or(self.output_bytes)).unwrap_or(usize::MAX)
    }
}

/// A kernel in a sandbox that was just made, whose services may be a moment late.
async fn first_kernel(door: &Door) -> Result<Kernel, SandboxError> {
    let mut tries = 1;
    loop {
        match Kernel::create(door).await {
            Err(error) if error.has_status(&[502, 503]) && tries < INTERPRETER_TRIES => {
                tries += 1;
                tokio::time::sleep(INTERPRETER_PAUSE).await;
            }
            Err(error) if error.has_status(&[404, 502, 503]) => {
                let cause = chain(&error);
                tracing::warn!(error = cause, "a new sandbox has no code interpreter");
                return Err(E2bError::NoInterpreter.into());
            }
            other => return Ok(other?),
        }
    }
}

#[async_trait]
impl SandboxProvider for E2bProvider {
    fn kind(&self) -> &'static str {
        "e2b"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            state: true,
            state_after_timeout: true,
            upload: true,
            download: true,
            shell: true,
            packages: true,
            network: self.entry().reaches_out(),
            absolute_files_dir: true,
            streaming: true,
        }
    }

    fn limits(&self, request: &LimitsRequest) -> Result<Limits, SandboxError> {
        output::granted(request, self.maker.output_bytes)
    }

    async fn installs(&self, packages: &PackageSet) -> bool {
        !packages.is_empty()
    }

    /// They are installed into each sandbox, when it is made.
    async fn install(&self, _: &PackageSet, progress: &Progress) -> Result<(), SandboxError> {
        progress.say("installing packages");
        Ok(())
    }

    /// Goes on when it is dropped: what comes to be then is ended.
    async fn create(&self, spec: &SandboxSpec) -> Result<Arc<dyn Sandbox>, SandboxError> {
        let (maker, spec) = (Arc::clone(&self.maker), spec.clone());
        let (sender, receiver) = oneshot::channel();
        let stop = self.stop.clone();
        self.making.spawn(async move {
            let made = maker.make(&spec).await;
            let is_made = made.is_ok();
            if let Err(Ok(unwanted)) = sender.send(made) {
                unwanted.terminate().await;
            }
            // whatever was said: it may have been made all the same
            if !is_made {
                maker.look_for(spec.session_id, &stop).await;
            }
        });
        let made = receiver.await.unwrap_or(Err(SandboxError::Lost));
        Ok(made?)
    }

    async fn attach(
        &self,
        record: &SandboxRecord,
    ) -> Result<Option<Arc<dyn Sandbox>>, SandboxError> {
        let detail = serde_json::from_value(record.detail.clone());
        let Ok(Detail { kernel_id, here, output_bytes }) = detail else { return Ok(None) };
        let asked_at = Instant::now();
        self.maker.note(&here);
        let door = match self.maker.control.connect(&record.sandbox_id).await {
            Ok(door) => Some(Arc::new(door)),
            Err(E2bError::Gone) => return Ok(None),
            // what cannot be had now is not lost for that: a key may be changed, a cloud come back
            Err(error) => {
                let cause = chain(&error);
                tracing::warn!(
                    error = cause,
                    sandbox.id = record.sandbox_id,
                    "a sandbox is looked for later"
                );
                None
            }
        };
        Ok(Some(E2bSandbox::new(Parts {
            control: Arc::clone(&self.maker.control),
            sandbox_id: record.sandbox_id.clone(),
            door,
            kernel: Kernel::found(kernel_id),
            here,
            env: BTreeMap::new(),
            output_cap: self.maker.output_cap(output_bytes),
            asked_at,
            is_new: false,
        })))
    }

    async fn list(&self) -> Result<Vec<SandboxRecord>, SandboxError> {
        let found = self.maker.control.list(&self.maker.marks).await?;
        let record = |sandbox_id| SandboxRecord { sandbox_id, detail: serde_json::Value::Null };
        Ok(found.into_iter().map(record).collect())
    }

    async fn end(&self, record: &SandboxRecord) -> Result<(), SandboxError> {
        Ok(self.maker.control.delete(&record.sandbox_id).await?)
    }

    fn outlives(&self) -> bool {
        true
    }

    async fn check(&self) -> Result<ProviderReport, SandboxError> {
        self.maker.control.check().await?;
        Ok(ProviderReport { isolation: None, python: None, packages: BTreeMap::new() })
    }

    fn seen(&self) -> Option<ProviderReport> {
        self.maker.seen.lock().expect("no panic while it is held").clone()
    }

    async fn close(&self) {
        self.stop.cancel();
        self.making.close();
        let _ = tokio::time::timeout(CLOSE_LIMIT, self.making.wait()).await;
    }
}
