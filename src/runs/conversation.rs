//! Conversations that go on: what was said in a run, for a later one.

use super::{Desk, RunError};
use crate::domain::coded::chain;
use crate::domain::id::{RunId, SessionId, Tenant};
use crate::domain::run::{Run, RunKind, RunStatus};
use crate::interpreter::Earlier;
use crate::llm::conversation::{Message, Said};

/// A longer conversation is kept without its pictures, and without anything when that is not enough.
const MAX_BYTES: usize = 32 << 20;

impl Desk {
    /// Refuses to go on from a run that has no conversation, or none yet.
    pub(super) async fn check_previous(
        &self,
        tenant: &Tenant,
        id: Option<RunId>,
    ) -> Result<(), RunError> {
        if let Some(id) = id {
            self.previous(tenant, id).await?;
        }
        Ok(())
    }

    /// What was said in an earlier run.
    pub(super) async fn earlier(
        &self,
        tenant: &Tenant,
        id: RunId,
        session_id: SessionId,
    ) -> Result<Earlier, RunError> {
        let run = self.previous(tenant, id).await?;
        let same_sandbox = run.summary.session_id == session_id;
        let kept = self.store.conversation(tenant, id).await.unwrap_or_else(|error| {
            tracing::error!(run.id = %id, error = chain(&error), "a conversation cannot be read");
            None
        });
        let kept = kept.and_then(|text| {
            let read = serde_json::from_slice(&text);
            read.inspect_err(
                |error| tracing::error!(run.id = %id, %error, "a conversation cannot be read"),
            )
            .ok()
        });
        Ok(Earlier { messages: kept.unwrap_or_else(|| retold(&run)), same_sandbox })
    }

    async fn previous(&self, tenant: &Tenant, id: RunId) -> Result<Run, RunError> {
        let run = self.store.run(tenant, id).await?.ok_or(RunError::NotFound(id))?;
        if run.summary.kind != RunKind::Interpret {
            return Err(RunError::NoConversation(id));
        }
        match run.summary.status {
            RunStatus::Queued | RunStatus::Running => Err(RunError::StillRunning(id)),
            RunStatus::Success
            | RunStatus::Error
            | RunStatus::Timeout
            | RunStatus::Unknown
            | RunStatus::Cancelled => Ok(run),
        }
    }
}

/// A conversation as it is kept.
pub(super) fn written(mut messages: Vec<Message>) -> Option<String> {
    let text = serde_json::to_string(&messages).expect("messages have string keys");
    if text.len() <= MAX_BYTES {
        return Some(text);
    }
    for message in &mut messages {
        if let Message::Results(results) = message {
            for result in results {
                result.images.clear();
            }
        }
    }
    let text = serde_json::to_string(&messages).expect("messages have string keys");
    (text.len() <= MAX_BYTES).then_some(text)
}

/// The conversation of a run whose own was not kept: its question and what is known of its end.
fn retold(run: &Run) -> Vec<Message> {
    let text = if run.text.is_empty() {
        let why = run.summary.error.as_deref().unwrap_or("its end was not written down");
        format!(
            "(There is no answer to this. Code may have run; what came of it is unknown: {why}.)"
        )
    } else {
        run.text.clone()
    };
    let question = Message::User(run.summary.message.clone().unwrap_or_default());
    vec![question, Message::Assistant(Said { text, calls: Vec::new(), raw: None })]
}
