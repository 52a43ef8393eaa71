//! A provider whose sandboxes run nothing: for what stands above the sandbox.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use interpreterd::domain::event::OutputSink;
use interpreterd::domain::execution::{Cell, Execution};
use interpreterd::domain::file::{Condition, FileEntry, FilePath, Part};
use interpreterd::domain::limits::{Limits, LimitsRequest};
use interpreterd::domain::package::PackageSet;
use interpreterd::domain::provider::Capabilities;
use interpreterd::domain::session::SandboxRecord;
use interpreterd::sandbox::{
    ByteStream, Progress, ProviderReport, Sandbox, SandboxError, SandboxProvider, SandboxSpec,
};

/// Notes what is made, adopted and ended.
#[derive(Default, Clone)]
pub struct StubProvider {
    /// Where `create` waits.
    pub gate: Option<Arc<tokio::sync::Notify>>,
    /// What `list` tells and `attach` finds.
    pub there: Vec<String>,
    pub made: Arc<Mutex<Vec<SandboxSpec>>>,
    /// Session and sandbox of each hand-out.
    pub adopted: Arc<Mutex<Vec<(SandboxSpec, String)>>>,
    pub ended: Arc<Mutex<Vec<String>>>,
    /// Sandboxes that are no longer fit when they are handed out.
    pub unfit: Arc<Mutex<Vec<String>>>,
    /// How many of the next calls of `create` fail.
    pub failures: Arc<Mutex<usize>>,
}

struct StubSandbox {
    id: String,
    provider: StubProvider,
}

fn record(id: &str) -> SandboxRecord {
    SandboxRecord { sandbox_id: id.to_owned(), detail: serde_json::Value::Null }
}

#[async_trait]
impl SandboxProvider for StubProvider {
    fn kind(&self) -> &'static str {
        "stub"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            state: true,
            state_after_timeout: true,
            upload: false,
            download: false,
            shell: false,
            packages: false,
            network: false,
            absolute_files_dir: false,
            streaming: true,
        }
    }

    fn limits(&self, asked: &LimitsRequest) -> Result<Limits, SandboxError> {
        Ok(Limits { processes: asked.processes, ..Limits::default() })
    }

    async fn installs(&self, _: &PackageSet) -> bool {
        false
    }

    async fn install(&self, _: &PackageSet, _: &Progress) -> Result<(), SandboxError> {
        Ok(())
    }

    async fn create(&self, spec: &SandboxSpec) -> Result<Arc<dyn Sandbox>, SandboxError> {
        if let Some(gate) = &self.gate {
            gate.notified().await;
        }
        self.made.lock().unwrap().push(spec.clone());
        let mut failures = self.failures.lock().unwrap();
        if *failures > 0 {
            *failures -= 1;
            return Err(SandboxError::NotReady("the stub fails".into()));
        }
        Ok(Arc::new(StubSandbox { id: spec.session_id.to_string(), provider: self.clone() }))
    }

    async fn attach(
        &self,
        record: &SandboxRecord,
    ) -> Result<Option<Arc<dyn Sandbox>>, SandboxError> {
        let id = record.sandbox_id.clone();
        let found = self.there.contains(&id);
        let provider = self.clone();
        Ok(found.then(|| Arc::new(StubSandbox { id, provider }) as Arc<dyn Sandbox>))
    }

    async fn list(&self) -> Result<Vec<SandboxRecord>, SandboxError> {
        Ok(self.there.iter().map(|id| record(id)).collect())
    }

    async fn end(&self, record: &SandboxRecord) -> Result<(), SandboxError> {
        self.ended.lock().unwrap().push(record.sandbox_id.clone());
        Ok(())
    }

    async fn check(&self) -> Result<ProviderReport, SandboxError> {
        Ok(ProviderReport {
            isolation: None,
            python: None,
            packages: std::collections::BTreeMap::new(),
        })
    }

    async fn close(&self) {}
}

#[async_trait]
impl Sandbox for StubSandbox {
    fn record(&self) -> SandboxRecord {
        record(&self.id)
    }

    fn files_dir(&self) -> String {
        "/files".to_owned()
    }

    async fn adopt(&self, spec: &SandboxSpec) -> Result<(), SandboxError> {
        if self.provider.unfit.lock().unwrap().contains(&self.id) {
            return Err(SandboxError::Lost);
        }
        self.provider.adopted.lock().unwrap().push((spec.clone(), self.id.clone()));
        Ok(())
    }

    async fn execute(&self, cell: &Cell, _: &OutputSink) -> Result<Execution, SandboxError> {
        Ok(Execution::of(cell))
    }

    async fn write_file(
        &self,
        _: &FilePath,
        _: ByteStream,
        _: u64,
        _: &Condition,
    ) -> Result<FileEntry, SandboxError> {
        Err(SandboxError::Unsupported("a stub has no files"))
    }

    async fn read_file(
        &self,
        _: &FilePath,
        _: Part,
    ) -> Result<(FileEntry, ByteStream), SandboxError> {
        Err(SandboxError::Unsupported("a stub has no files"))
    }

    async fn list_files(&self) -> Result<Vec<FileEntry>, SandboxError> {
        Ok(Vec::new())
    }

    async fn delete_file(&self, _: &FilePath, _: &Condition) -> Result<(), SandboxError> {
        Err(SandboxError::Unsupported("a stub has no files"))
    }

    async fn interrupt(&self) {}

    async fn extend(&self, _: Duration) -> Result<(), SandboxError> {
        Ok(())
    }

    async fn terminate(&self) {
        self.provider.ended.lock().unwrap().push(self.id.clone());
    }
}
