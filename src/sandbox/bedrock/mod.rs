//! The provider `bedrock`: sandboxes of AWS Bedrock AgentCore's Code Interpreter.

mod client;
mod collect;
mod error;
mod files;
mod follow;
mod machine;
mod making;
mod programs;
mod python;
mod sandbox;
mod shell;
mod wire;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use self::machine::Machine;
use self::making::{MARGIN, Making, Order};
use self::sandbox::{BedrockSandbox, Detail, started};
use crate::config::{BedrockEntry, LimitSettings};
use crate::domain::id::Maker;
use crate::domain::limits::{Limits, LimitsRequest};
use crate::domain::package::PackageSet;
use crate::domain::provider::Capabilities;
use crate::domain::session::SandboxRecord;
use crate::sandbox::{
    Progress, ProviderReport, Sandbox, SandboxError, SandboxProvider, SandboxSpec, output,
};

const STOP_LIMIT: Duration = Duration::from_secs(10);
const NO_WAY_OUT: &str =
    "its code interpreter reaches no package index (the setting internet is off)";

/// Makes sandboxes at one code interpreter of AWS.
pub struct BedrockProvider {
    maker: Arc<Making>,
    output_bytes: u64,
}

impl BedrockProvider {
    /// A provider that has called nobody yet.
    #[must_use]
    pub fn new(entry: &BedrockEntry, limits: &LimitSettings, maker: Maker) -> Self {
        let making = Making::new(entry, maker, limits.create_seconds, limits.install_seconds);
        Self { maker: Arc::new(making), output_bytes: limits.output_bytes }
    }

    fn entry(&self) -> &BedrockEntry {
        &self.maker.client.entry
    }

    fn output_cap(&self, output_bytes: Option<u64>) -> usize {
        usize::try_from(output_bytes.unwrap_or(self.output_bytes)).unwrap_or(usize::MAX)
    }
}

#[async_trait]
impl SandboxProvider for BedrockProvider {
    fn kind(&self) -> &'static str {
        "bedrock"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            state: true,
            state_after_timeout: true,
            upload: true,
            download: true,
            shell: true,
            packages: self.entry().internet,
            network: self.entry().internet,
            absolute_files_dir: false,
            streaming: true,
        }
    }

    fn limits(&self, request: &LimitsRequest) -> Result<Limits, SandboxError> {
        output::granted(request, self.output_bytes)
    }

    fn longest(&self) -> Option<Duration> {
        BedrockEntry::LONGEST.checked_sub(MARGIN)
    }

    async fn installs(&self, packages: &PackageSet) -> bool {
        !packages.is_empty()
    }

    /// They are installed into each sandbox, when it is made.
    async fn install(&self, _: &PackageSet, progress: &Progress) -> Result<(), SandboxError> {
        if !self.entry().internet {
            return Err(SandboxError::Unsupported(NO_WAY_OUT));
        }
        progress.say("installing packages");
        Ok(())
    }

    /// Goes on when it is dropped: what comes to be then is ended.
    async fn create(&self, spec: &SandboxSpec) -> Result<Arc<dyn Sandbox>, SandboxError> {
        let order = Order {
            session_id: spec.session_id,
            env: spec.env.clone(),
            packages: spec.packages.clone(),
            lifetime: spec.lifetime,
        };
        let output_cap = self.output_cap(spec.limits.output_bytes);
        let machine = Making::made(&self.maker, &order).await?;
        let maker = Arc::clone(&self.maker);
        Ok(BedrockSandbox::new(maker, order, machine, output_cap, true))
    }

    async fn attach(
        &self,
        record: &SandboxRecord,
    ) -> Result<Option<Arc<dyn Sandbox>>, SandboxError> {
        let Ok(detail) = serde_json::from_value::<Detail>(record.detail.clone()) else {
            return Ok(None);
        };
        // what cannot be had now is not lost for that: credentials may be changed, AWS come back
        if let Ok(false) = self.maker.client.lives(&record.sandbox_id).await {
            return Ok(None);
        }
        let started = started(record, &detail);
        let Detail { here, output_bytes, packages, session_id, .. } = detail;
        let machine = Machine::found(Arc::clone(&self.maker.client), started, here);
        self.maker.note(&machine);
        let order = Order { session_id, env: BTreeMap::new(), packages, lifetime: machine.left() };
        let output_cap = self.output_cap(output_bytes);
        let maker = Arc::clone(&self.maker);
        Ok(Some(BedrockSandbox::new(maker, order, machine, output_cap, false)))
    }

    async fn list(&self) -> Result<Vec<SandboxRecord>, SandboxError> {
        let found = self.maker.client.list(&self.maker.mark).await?;
        let record = |sandbox_id| SandboxRecord { sandbox_id, detail: serde_json::Value::Null };
        Ok(found.into_iter().map(record).collect())
    }

    async fn end(&self, record: &SandboxRecord) -> Result<(), SandboxError> {
        Ok(self.maker.client.stop(&record.sandbox_id, STOP_LIMIT).await?)
    }

    fn outlives(&self) -> bool {
        true
    }

    async fn check(&self) -> Result<ProviderReport, SandboxError> {
        self.maker.client.check().await?;
        Ok(ProviderReport { isolation: None, python: None, packages: BTreeMap::new() })
    }

    fn seen(&self) -> Option<ProviderReport> {
        self.maker.seen.lock().expect("no panic while it is held").clone()
    }

    async fn close(&self) {
        self.maker.close().await;
    }
}
