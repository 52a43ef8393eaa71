//! A provider whose sandboxes run nothing: for what stands above the sandbox.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use interpreterd::domain::event::OutputSink;
use interpreterd::domain::execution::{Cell, Execution};
use interpreterd::domain::file::{Condition, FileEntry, FilePath, Part};
use interpreterd::domain::id::SessionId;
use interpreterd::domain::limits::{Limits, LimitsRequest};
use interpreterd::domain::provider::Capabilities;
use interpreterd::sandbox::{
    ByteStream, ProviderReport, Sandbox, SandboxError, SandboxProvider, SandboxRecord, SandboxSpec,
};

/// Counts what is made and ended.
#[derive(Default)]
pub struct StubProvider {
    /// Where `create` waits.
    pub gate: Option<Arc<tokio::sync::Notify>>,
    /// What `list` tells and `attach` finds.
    pub there: Vec<String>,
    pub ended: Arc<Mutex<Vec<String>>>,
}

struct StubSandbox {
    id: String,
    ended: Arc<Mutex<Vec<String>>>,
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
        }
    }

    fn files_dir(&self, _: SessionId) -> String {
        "/files".to_owned()
    }

    fn limits(&self, _: &LimitsRequest) -> Result<Limits, SandboxError> {
        Ok(Limits::default())
    }

    async fn create(&self, spec: &SandboxSpec) -> Result<Arc<dyn Sandbox>, SandboxError> {
        if let Some(gate) = &self.gate {
            gate.notified().await;
        }
        Ok(Arc::new(StubSandbox {
            id: spec.session_id.to_string(),
            ended: Arc::clone(&self.ended),
        }))
    }

    async fn attach(
        &self,
        record: &SandboxRecord,
    ) -> Result<Option<Arc<dyn Sandbox>>, SandboxError> {
        let id = record.sandbox_id.clone();
        let found = self.there.contains(&id);
        let ended = Arc::clone(&self.ended);
        Ok(found.then(|| Arc::new(StubSandbox { id, ended }) as Arc<dyn Sandbox>))
    }

    async fn list(&self) -> Result<Vec<SandboxRecord>, SandboxError> {
        Ok(self.there.iter().map(|id| SandboxRecord { sandbox_id: id.clone() }).collect())
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
        SandboxRecord { sandbox_id: self.id.clone() }
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
        self.ended.lock().unwrap().push(self.id.clone());
    }
}
