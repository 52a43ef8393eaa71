//! A provider whose work is timed and traced, and its sandboxes.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::{Stream, StreamExt};
use time::OffsetDateTime;
use tracing::field::Empty;
use tracing::{Instrument, Span, info_span};

use super::{
    ByteStream, Progress, ProviderReport, Sandbox, SandboxError, SandboxProvider, SandboxSpec,
};
use crate::domain::event::OutputSink;
use crate::domain::execution::{Cell, Execution, ExecutionStatus, Language};
use crate::domain::file::{Condition, FileEntry, FilePath, Part};
use crate::domain::id::SessionId;
use crate::domain::limits::{Limits, LimitsRequest};
use crate::domain::package::PackageSet;
use crate::domain::provider::{Capabilities, Primed};
use crate::domain::session::SandboxRecord;
use crate::telemetry::SPAN_TARGET;
use crate::telemetry::metrics::{Metrics, Outcome, Timed};
use crate::telemetry::traces;

/// What is done with sandboxes, as spans and labels call it.
mod operation {
    pub(super) const CREATE: &str = "create";
    pub(super) const EXECUTE: &str = "execute";
    pub(super) const SHELL: &str = "shell";
    pub(super) const UPLOAD: &str = "upload";
    pub(super) const DOWNLOAD: &str = "download";
    pub(super) const TERMINATE: &str = "terminate";
}

/// A provider entry whose work is timed and traced.
pub(super) struct Observed {
    provider: Arc<dyn SandboxProvider>,
    watch: Watch,
}

/// Who is watched, and who is told.
#[derive(Clone)]
struct Watch {
    /// The provider entry.
    name: Arc<str>,
    metrics: Metrics,
}

/// A sandbox whose work is timed and traced.
struct ObservedSandbox {
    sandbox: Arc<dyn Sandbox>,
    /// The session that it was made for; one that was found again does not tell.
    session_id: Option<SessionId>,
    watch: Watch,
}

impl Observed {
    pub(super) fn new(name: &str, provider: Arc<dyn SandboxProvider>, metrics: Metrics) -> Self {
        Self { provider, watch: Watch { name: name.into(), metrics } }
    }
}

impl Watch {
    fn begin(&self, operation: &'static str) -> Timed {
        self.metrics.operation(&self.name, operation)
    }

    fn sandbox(&self, sandbox: Arc<dyn Sandbox>, session: Option<SessionId>) -> Arc<dyn Sandbox> {
        Arc::new(ObservedSandbox { sandbox, session_id: session, watch: self.clone() })
    }
}

/// Ends what is timed and notes in the span how it went.
fn end(timed: Timed, span: &Span, outcome: Outcome) {
    span.record("outcome", outcome.word());
    if matches!(outcome, Outcome::Error | Outcome::Unknown) {
        span.record("otel.status_code", "ERROR");
    }
    timed.done(outcome);
}

#[async_trait]
impl SandboxProvider for Observed {
    fn kind(&self) -> &'static str {
        self.provider.kind()
    }

    fn capabilities(&self) -> Capabilities {
        self.provider.capabilities()
    }

    fn limits(&self, request: &LimitsRequest) -> Result<Limits, SandboxError> {
        self.provider.limits(request)
    }

    fn longest(&self) -> Option<Duration> {
        self.provider.longest()
    }

    async fn installs(&self, packages: &PackageSet) -> bool {
        self.provider.installs(packages).await
    }

    async fn install(
        &self,
        packages: &PackageSet,
        progress: &Progress,
    ) -> Result<(), SandboxError> {
        self.provider.install(packages, progress).await
    }

    async fn create(&self, spec: &SandboxSpec) -> Result<Arc<dyn Sandbox>, SandboxError> {
        let span = info_span!(
            target: SPAN_TARGET,
            operation::CREATE,
            provider = &*self.watch.name,
            session.id = %spec.session_id,
            sandbox.id = Empty,
            outcome = Empty,
            otel.status_code = Empty
        );
        let timed = self.watch.begin(operation::CREATE).within_limit();
        let made = self.provider.create(spec).instrument(span.clone()).await;
        if let Ok(sandbox) = &made
            && !span.is_disabled()
        {
            span.record("sandbox.id", sandbox.record().sandbox_id);
        }
        end(timed, &span, Outcome::of(&made));
        Ok(self.watch.sandbox(made?, Some(spec.session_id)))
    }

    async fn attach(
        &self,
        record: &SandboxRecord,
    ) -> Result<Option<Arc<dyn Sandbox>>, SandboxError> {
        let found = self.provider.attach(record).await?;
        Ok(found.map(|sandbox| self.watch.sandbox(sandbox, None)))
    }

    async fn list(&self) -> Result<Vec<SandboxRecord>, SandboxError> {
        self.provider.list().await
    }

    async fn end(&self, record: &SandboxRecord) -> Result<(), SandboxError> {
        self.provider.end(record).await
    }

    fn outlives(&self) -> bool {
        self.provider.outlives()
    }

    async fn check(&self) -> Result<ProviderReport, SandboxError> {
        self.provider.check().await
    }

    fn seen(&self) -> Option<ProviderReport> {
        self.provider.seen()
    }

    fn start(&self) {
        self.provider.start();
    }

    fn pool(&self) -> Vec<Primed> {
        self.provider.pool()
    }

    async fn close(&self) {
        self.provider.close().await;
    }
}

impl ObservedSandbox {
    fn session(&self) -> Option<tracing::field::DisplayValue<SessionId>> {
        self.session_id.map(tracing::field::display)
    }
}

#[async_trait]
impl Sandbox for ObservedSandbox {
    fn record(&self) -> SandboxRecord {
        self.sandbox.record()
    }

    fn files_dir(&self) -> String {
        self.sandbox.files_dir()
    }

    async fn adopt(&self, spec: &SandboxSpec) -> Result<(), SandboxError> {
        self.sandbox.adopt(spec).await
    }

    async fn execute(&self, cell: &Cell, sink: &OutputSink) -> Result<Execution, SandboxError> {
        let kind = match cell.language {
            Language::Python => operation::EXECUTE,
            Language::Shell => operation::SHELL,
        };
        let span = info_span!(
            target: SPAN_TARGET,
            operation::EXECUTE,
            provider = &*self.watch.name,
            session.id = %cell.session_id,
            run.id = %cell.run_id,
            execution.id = %cell.id,
            kind,
            outcome = Empty,
            otel.status_code = Empty
        );
        let timed = self.watch.begin(kind);
        let execution = self.sandbox.execute(cell, sink).instrument(span.clone()).await;
        let outcome = match &execution {
            Ok(execution) => match execution.status {
                ExecutionStatus::Success => Outcome::Success,
                ExecutionStatus::Error => Outcome::Error,
                ExecutionStatus::Timeout => Outcome::Timeout,
                ExecutionStatus::Unknown => Outcome::Unknown,
            },
            Err(_) => Outcome::Error,
        };
        end(timed, &span, outcome);
        execution
    }

    async fn write_file(
        &self,
        path: &FilePath,
        content: ByteStream,
        max_bytes: u64,
        condition: &Condition,
    ) -> Result<FileEntry, SandboxError> {
        let span = info_span!(
            target: SPAN_TARGET,
            operation::UPLOAD,
            provider = &*self.watch.name,
            session.id = self.session(),
            size_bytes = Empty,
            outcome = Empty,
            otel.status_code = Empty
        );
        let timed = self.watch.begin(operation::UPLOAD);
        let writing = self.sandbox.write_file(path, content, max_bytes, condition);
        let written = writing.instrument(span.clone()).await;
        if let Ok(entry) = &written {
            span.record("size_bytes", traces::number(entry.size_bytes));
        }
        end(timed, &span, Outcome::of(&written));
        written
    }

    /// The download ends with the stream.
    async fn read_file(
        &self,
        path: &FilePath,
        part: Part,
    ) -> Result<(FileEntry, ByteStream), SandboxError> {
        let span = info_span!(
            target: SPAN_TARGET,
            operation::DOWNLOAD,
            provider = &*self.watch.name,
            session.id = self.session(),
            size_bytes = Empty,
            outcome = Empty,
            otel.status_code = Empty
        );
        let timed = self.watch.begin(operation::DOWNLOAD);
        match self.sandbox.read_file(path, part).instrument(span.clone()).await {
            Ok((entry, content)) => {
                span.record("size_bytes", traces::number(entry.size_bytes));
                // whoever knows the length does not ask for an end
                let left = part.within(entry.size_bytes).map_or(0, |(_, length)| length);
                let watched = if left > 0 {
                    Some((timed, span))
                } else {
                    end(timed, &span, Outcome::Success);
                    None
                };
                let content = Download { content, left, is_read: false, watched };
                Ok((entry, content.boxed()))
            }
            Err(error) => {
                end(timed, &span, Outcome::Error);
                Err(error)
            }
        }
    }

    async fn list_files(&self) -> Result<Vec<FileEntry>, SandboxError> {
        self.sandbox.list_files().await
    }

    async fn delete_file(
        &self,
        path: &FilePath,
        condition: &Condition,
    ) -> Result<(), SandboxError> {
        self.sandbox.delete_file(path, condition).await
    }

    async fn interrupt(&self) {
        self.sandbox.interrupt().await;
    }

    async fn extend(&self, lifetime: Duration) -> Result<(), SandboxError> {
        self.sandbox.extend(lifetime).await
    }

    fn ends_at(&self) -> Option<OffsetDateTime> {
        self.sandbox.ends_at()
    }

    fn is_lost(&self) -> bool {
        self.sandbox.is_lost()
    }

    async fn terminate(&self) {
        let span = info_span!(
            target: SPAN_TARGET,
            operation::TERMINATE,
            provider = &*self.watch.name,
            session.id = self.session(),
            outcome = Empty,
            otel.status_code = Empty
        );
        let timed = self.watch.begin(operation::TERMINATE).within_limit();
        self.sandbox.terminate().instrument(span.clone()).await;
        end(timed, &span, Outcome::Success);
    }
}

/// A file on its way out. Dropped before its end, it was cancelled.
struct Download {
    content: ByteStream,
    /// Bytes that are still to come.
    left: u64,
    /// Somebody wants more than to know what it is.
    is_read: bool,
    watched: Option<(Timed, Span)>,
}

impl Stream for Download {
    type Item = std::io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.is_read = true;
        // a span ends when it was left for the last time
        let span = self.watched.as_ref().map_or_else(Span::none, |(_, span)| span.clone());
        let next = span.in_scope(|| self.content.poll_next_unpin(context));
        let outcome = match &next {
            Poll::Ready(None) => Outcome::Success,
            Poll::Ready(Some(Err(_))) => Outcome::Error,
            Poll::Ready(Some(Ok(bytes))) => {
                self.left = self.left.saturating_sub(bytes.len() as u64);
                if self.left > 0 {
                    return next;
                }
                Outcome::Success
            }
            Poll::Pending => return next,
        };
        if let Some((timed, span)) = self.watched.take() {
            end(timed, &span, outcome);
        }
        next
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        if let Some((timed, _)) = self.watched.take_if(|_| !self.is_read) {
            timed.forget();
        }
    }
}
