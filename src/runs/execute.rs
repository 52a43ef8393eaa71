//! One cell in a sandbox of its own, ended afterwards.

use std::sync::Arc;

use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;

use super::spool::NewFile;
use super::{Desk, NewCell, RunError, Runs};
use crate::domain::execution::Execution;
use crate::domain::id::{SessionId, Tenant};
use crate::domain::run::RunKind;
use crate::domain::session::EndReason;
use crate::sessions::NewSession;

/// A cell, the sandbox that it wants and the files that must lie there.
pub struct NewExecute {
    /// The cell; its files are always kept.
    pub cell: NewCell,
    /// The sandbox.
    pub session: NewSession,
    /// Written before the cell runs.
    pub files: Vec<NewFile>,
    /// Give the content of small files with the answer.
    pub include_content: bool,
}

impl Runs {
    /// Runs a cell in a sandbox of its own.
    pub async fn execute(&self, tenant: &Tenant, new: NewExecute) -> Result<Execution, RunError> {
        self.desk.check_cell(&new.cell)?;
        let (desk, tenant) = (Arc::clone(&self.desk), tenant.clone());
        self.tracked(|cancel| async move { desk.execute(&tenant, new, &cancel).await }).await
    }
}

impl Desk {
    async fn execute(
        &self,
        tenant: &Tenant,
        new: NewExecute,
        cancel: &CancellationToken,
    ) -> Result<Execution, RunError> {
        let include_content = new.include_content;
        let session = self.sessions.create(tenant, new.session.clone()).await?;
        let execution = self.execute_in(tenant, session.id, new, cancel).await;
        self.end_one_shot(tenant, session.id).await;
        let mut execution = execution?;
        if include_content && let Some(files) = &mut execution.output_files {
            self.include_content(tenant, execution.run_id, files).await;
        }
        Ok(execution)
    }

    async fn execute_in(
        &self,
        tenant: &Tenant,
        id: SessionId,
        new: NewExecute,
        cancel: &CancellationToken,
    ) -> Result<Execution, RunError> {
        let asked_at = OffsetDateTime::now_utc();
        let lease = self.lease(tenant, id, cancel).await?;
        self.bring(lease.sandbox(), new.files).await?;
        let cell = NewCell { keep_files: true, ..new.cell };
        self.run_cell(tenant, &lease, RunKind::Execute, cell, asked_at, cancel).await
    }

    pub(super) async fn end_one_shot(&self, tenant: &Tenant, id: SessionId) {
        if let Err(error) = self.sessions.end(tenant, id, EndReason::Deleted).await {
            tracing::error!(session.id = %id, error = &error as &dyn std::error::Error, "a one-shot session's end was not written");
        }
    }
}
