//! One cell in a sandbox of its own, ended afterwards.

use std::time::Duration;

use super::live::Ticket;
use super::spool::NewFile;
use super::{Desk, NewCell, RunError};
use crate::domain::coded::chain;
use crate::domain::execution::Execution;
use crate::domain::id::{SessionId, Tenant};
use crate::domain::run::RunKind;
use crate::domain::session::EndReason;
use crate::sessions::NewSession;

/// Time for what lies around the work: files in and files out.
const AROUND_WORK: Duration = Duration::from_secs(120);

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

impl Desk {
    pub(super) async fn execute(
        &self,
        ticket: &Ticket,
        new: NewExecute,
    ) -> Result<Execution, RunError> {
        let include_content = new.include_content;
        let work = new.cell.timeout.unwrap_or(self.limits.cell_seconds);
        let session = self.own_session(ticket, &new.session, work);
        let id = self.make_own(ticket, session).await?;
        let execution = self.execute_in(ticket, id, new).await;
        self.end_one_shot(&ticket.tenant, id).await;
        let mut execution = execution?;
        if include_content && let Some(files) = &mut execution.output_files {
            self.include_content(&ticket.tenant, execution.run_id, files).await;
        }
        Ok(execution)
    }

    async fn execute_in(
        &self,
        ticket: &Ticket,
        id: SessionId,
        new: NewExecute,
    ) -> Result<Execution, RunError> {
        let lease = self.lease(&ticket.tenant, id, &ticket.cancel).await?;
        self.bring(lease.sandbox(), new.files).await?;
        let cell = NewCell { keep_files: true, ..new.cell };
        self.run_cell(ticket, &lease, RunKind::Execute, cell).await
    }

    /// A session for one piece of work lives for as long as the work may take.
    pub(super) fn own_session(
        &self,
        ticket: &Ticket,
        new: &NewSession,
        work: Duration,
    ) -> NewSession {
        let made = self.limits.create_seconds + self.limits.install_seconds;
        let longest = made + work + AROUND_WORK;
        let lifetime = new.lifetime.unwrap_or(self.limits.lifetime_seconds.max(longest));
        NewSession {
            id: ticket.own_session,
            lifetime: Some(lifetime),
            one_shot: true,
            ..new.clone()
        }
    }

    pub(super) async fn end_one_shot(&self, tenant: &Tenant, id: SessionId) {
        if let Err(error) = self.sessions.end(tenant, id, EndReason::Deleted).await {
            tracing::error!(session.id = %id, error = chain(&error), "a one-shot session's end was not written");
        }
    }
}
