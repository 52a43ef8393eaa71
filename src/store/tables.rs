//! The store in tables, the same over either database.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use time::OffsetDateTime;
use uuid::Uuid;

use super::blobs::Blobs;
use super::database::{Readable, Readers, Value};
use super::replica::Replica;
use super::row::{
    ClaimRow, ClaimedRow, FinishRow, OutputFileRow, RunDetail, RunRow, SessionRow, StoredRunRow,
    from_json, json, microseconds,
};
use super::writer::Writer;
use super::writes::{Done, Expiring, KEY_MICROSECONDS, Write};
use super::{
    Expired, Finish, Keep, Open, OpenSession, Store, StoreError, StoredFile, retention, sql,
};
use crate::domain::claim::{Claim, Claimed, Key, Subject};
use crate::domain::coded::chain;
use crate::domain::execution::{Failure, FailureKind};
use crate::domain::id::{Maker, RunId, SessionId, Tenant};
use crate::domain::list::{Page, RunFilter};
use crate::domain::run::{Run, RunStatus, RunSummary};
use crate::domain::session::{SandboxRecord, Session};
use crate::telemetry::metrics::{Metrics, Outcome};

/// Question and error in a list are no longer than this.
const MAX_LISTED_BYTES: usize = 1000;
/// Longer payloads go to blobs.
const MAX_ROW_BYTES: usize = 64 * 1024;
/// A run's id is made together with the time at which it was asked for; a clock may be set between.
const CLOCK_SLACK: Duration = Duration::from_secs(1);

/// Runs and sessions in tables.
pub(super) struct Tables {
    pub(super) readers: Readers,
    pub(super) writer: Writer,
    pub(super) replica: Replica,
    pub(super) blobs: Blobs,
    pub(super) metrics: Metrics,
}

impl Tables {
    async fn write(&self, write: Write) -> Result<Done, StoreError> {
        let timed = self.metrics.query("write");
        let done = self.writer.write(write).await;
        // a key that is taken is an answer
        let is_answer = matches!(done, Ok(_) | Err(StoreError::Claimed));
        timed.done(if is_answer { Outcome::Success } else { Outcome::Error });
        done
    }

    /// Writes an end. False when the run had ended before.
    async fn write_end(
        &self,
        run: &RunSummary,
        row: FinishRow,
        epoch: i64,
    ) -> Result<bool, StoreError> {
        let written = self.write(Write::FinishRun(Box::new(row), epoch)).await?.rows > 0;
        if written {
            self.metrics.run_ended(run.kind.word(), run.status.word());
        }
        Ok(written)
    }

    async fn detail(&self, row: &StoredRunRow) -> Result<RunDetail, StoreError> {
        match (&row.detail, &row.detail_blob) {
            (Some(text), _) => from_json(text),
            (None, Some(blob)) => {
                let bytes = self.blobs.read_whole(blob).await?;
                serde_json::from_slice(&bytes).map_err(StoreError::Row)
            }
            (None, None) => Ok(RunDetail {
                text: String::new(),
                truncated: false,
                code_exec_results: Vec::new(),
                output_files: Vec::new(),
                missing_files: Vec::new(),
            }),
        }
    }

    /// A short payload goes into the row, a long one into a blob.
    async fn payload(
        &self,
        id: RunId,
        what: &str,
        text: String,
    ) -> Result<(Option<String>, Option<String>), StoreError> {
        if text.len() <= MAX_ROW_BYTES {
            return Ok((Some(text), None));
        }
        Ok((None, Some(self.blobs.write_whole(id, what, text.into()).await?)))
    }
}

/// What a run is that was open when the service ended.
fn after_the_end(mut run: RunSummary) -> RunSummary {
    let (status, retry_safe, message) = match run.status {
        RunStatus::Queued => (RunStatus::Error, true, "the service ended before the run began"),
        _ => (
            RunStatus::Unknown,
            false,
            "the service ended while it ran: it may or may not have run to its end",
        ),
    };
    run.status = status;
    run.error = Some(message.to_owned());
    run.failure =
        Some(Failure { kind: FailureKind::SandboxLost, retry_safe, message: message.to_owned() });
    run.finished_at = Some(OffsetDateTime::now_utc());
    run
}

/// A summary for a list: long texts are cut.
fn shortened(mut run: RunSummary) -> RunSummary {
    for text in [&mut run.message, &mut run.error].into_iter().flatten() {
        if text.len() > MAX_LISTED_BYTES {
            text.truncate(text.floor_char_boundary(MAX_LISTED_BYTES));
            text.push('…');
        }
    }
    run
}

/// The ids between which a page lies, both excluded: where the page before ended, and the times that
/// are asked for.
fn bounds(page: Page, filter: &RunFilter) -> (Uuid, Uuid) {
    let (mut low, mut high) = (Uuid::nil(), Uuid::max());
    match page.after {
        Some(after) if page.descending => high = after,
        Some(after) => low = after,
        None => {}
    }
    if let Some(since) = filter.since {
        low = low.max(id_before(since - CLOCK_SLACK));
    }
    if let Some(until) = filter.until {
        high = high.min(id_before(until + CLOCK_SLACK));
    }
    (low, high)
}

/// An id that is smaller than every one that was made at this time or later: RFC 9562, 5.7.
fn id_before(time: OffsetDateTime) -> Uuid {
    let milliseconds = u64::try_from(time.unix_timestamp_nanos() / 1_000_000).unwrap_or(0);
    Uuid::from_u128(u128::from(milliseconds.min((1 << 48) - 1)) << 80)
}

#[async_trait]
impl Store for Tables {
    fn secret(&self) -> [u8; 32] {
        self.replica.secret
    }

    fn maker(&self) -> Maker {
        self.replica.maker
    }

    async fn claimed(&self, tenant: &Tenant, key: &Key) -> Result<Option<Claimed>, StoreError> {
        let oldest = microseconds(OffsetDateTime::now_utc()) - KEY_MICROSECONDS;
        let values = [tenant.name().into(), key.route.into(), (&key.key).into(), oldest.into()];
        let row: Option<ClaimedRow> = self.readers.one(sql::SELECT_CLAIM, &values).await?;
        Ok(row.and_then(ClaimedRow::into_claimed))
    }

    async fn insert_session(
        &self,
        tenant: &Tenant,
        session: &Session,
        claim: Option<&Claim>,
    ) -> Result<(), StoreError> {
        self.replica.check()?;
        let claim = claim.map(|claim| ClaimRow::of(tenant, claim, Subject::Session(session.id)));
        self.write(Write::InsertSession(SessionRow::of(tenant, session)?, claim)).await?;
        Ok(())
    }

    async fn update_session(&self, tenant: &Tenant, session: &Session) -> Result<(), StoreError> {
        let row = SessionRow::of(tenant, session)?;
        let written = self.write(Write::UpdateSession(row)).await?.rows > 0;
        if let Some(reason) = session.end_reason.filter(|_| written) {
            self.metrics.session_ended(&session.provider, reason.word());
        }
        Ok(())
    }

    async fn session(&self, tenant: &Tenant, id: SessionId) -> Result<Option<Session>, StoreError> {
        let values = [id.uuid().into(), tenant.name().into()];
        let row: Option<(String,)> = self.readers.one(sql::SELECT_SESSION, &values).await?;
        row.map(|(body,)| from_json(&body)).transpose()
    }

    async fn sessions(&self, tenant: &Tenant, page: Page) -> Result<Vec<Session>, StoreError> {
        let statement =
            if page.descending { sql::SELECT_SESSIONS_NEWEST } else { sql::SELECT_SESSIONS_OLDEST };
        let first = if page.descending { Uuid::max() } else { Uuid::nil() };
        let after = page.after.unwrap_or(first);
        let values = [tenant.name().into(), after.into(), i64::from(page.limit).into()];
        let rows: Vec<(String,)> = self.readers.all(statement, &values).await?;
        rows.iter().map(|(body,)| from_json(body)).collect()
    }

    async fn begin_run(
        &self,
        tenant: &Tenant,
        run: &RunSummary,
        claim: Option<&Claim>,
    ) -> Result<(), StoreError> {
        self.replica.check()?;
        let claim = claim.map(|claim| ClaimRow::of(tenant, claim, Subject::Run(run.id)));
        self.write(Write::BeginRun(RunRow::of(tenant, run)?, claim)).await?;
        self.replica.check() // it may have waited for long
    }

    async fn start_run(&self, tenant: &Tenant, run: &RunSummary) -> Result<bool, StoreError> {
        self.replica.check()?;
        let started = self.write(Write::StartRun(RunRow::of(tenant, run)?)).await?;
        self.replica.check()?;
        Ok(started.rows > 0)
    }

    fn epoch(&self) -> i64 {
        self.replica.owner.epoch
    }

    async fn finish_run(&self, tenant: &Tenant, finish: &Finish<'_>) -> Result<bool, StoreError> {
        let run = finish.run;
        let id = run.summary.id;
        let (detail, detail_blob) = self.payload(id, "detail", RunDetail::of(run)?).await?;
        let (conversation, conversation_blob) = match &finish.conversation {
            Some(text) => self.payload(id, "conversation", text.clone()).await?,
            None => (None, None),
        };
        let events_blob = match finish.events.as_ref().filter(|events| !events.is_empty()) {
            Some(events) => {
                let events = Bytes::copy_from_slice(events);
                Some(self.blobs.write_whole(id, "events", events).await?)
            }
            None => None,
        };
        let ended_at = run.summary.finished_at.unwrap_or_else(OffsetDateTime::now_utc);
        let row = FinishRow {
            detail,
            detail_blob,
            events_blob,
            conversation,
            conversation_blob,
            ended_at: microseconds(ended_at),
            release_key: finish.release_key,
            files: finish.files.to_vec(),
            ..FinishRow::of(tenant.name(), &run.summary)?
        };
        self.write_end(&run.summary, row, finish.epoch).await
    }

    async fn events(&self, tenant: &Tenant, id: RunId) -> Result<Option<Bytes>, StoreError> {
        let values = [id.uuid().into(), tenant.name().into()];
        let row: Option<(Option<String>,)> = self.readers.one(sql::SELECT_EVENTS, &values).await?;
        match row.and_then(|(blob,)| blob) {
            Some(blob) => Ok(Some(self.blobs.read_whole(&blob).await?)),
            None => Ok(None),
        }
    }

    async fn conversation(&self, tenant: &Tenant, id: RunId) -> Result<Option<Bytes>, StoreError> {
        let values = [id.uuid().into(), tenant.name().into()];
        let row: Option<(Option<String>, Option<String>)> =
            self.readers.one(sql::SELECT_CONVERSATION, &values).await?;
        Ok(match row {
            Some((Some(text), _)) => Some(text.into()),
            Some((None, Some(blob))) => Some(self.blobs.read_whole(&blob).await?),
            Some((None, None)) | None => None,
        })
    }

    async fn run(&self, tenant: &Tenant, id: RunId) -> Result<Option<Run>, StoreError> {
        let values = [id.uuid().into(), tenant.name().into()];
        let row: Option<StoredRunRow> = self.readers.one(sql::SELECT_RUN, &values).await?;
        let Some(row) = row else { return Ok(None) };
        let summary = from_json(&row.summary)?;
        let detail = self.detail(&row).await?;
        let RunDetail { text, truncated, code_exec_results, output_files, missing_files } = detail;
        let run = Run { summary, text, truncated, code_exec_results, output_files, missing_files };
        Ok(Some(run))
    }

    async fn runs(
        &self,
        tenant: &Tenant,
        filter: &RunFilter,
        page: Page,
    ) -> Result<Vec<RunSummary>, StoreError> {
        let (low, high) = bounds(page, filter);
        let asked = [
            filter.kind.map(|kind| Value::from(kind.word())),
            filter.status.map(|status| status.word().into()),
            filter.session_id.map(|id| id.uuid().into()),
            filter.provider.as_ref().map(Into::into),
            filter.since.map(|since| microseconds(since).into()),
            filter.until.map(|until| microseconds(until).into()),
        ];
        let mut values: Vec<Value<'_>> =
            vec![tenant.name().into(), low.into(), high.into(), i64::from(page.limit).into()];
        values.extend(asked.into_iter().flatten());
        let statement = sql::select_runs(filter, page.descending, self.readers.hint());
        let rows: Vec<(String,)> = self.readers.all(statement, &values).await?;
        rows.iter().map(|(summary,)| Ok(shortened(from_json(summary)?))).collect()
    }

    async fn output_file(
        &self,
        tenant: &Tenant,
        id: RunId,
        path: &str,
    ) -> Result<Option<StoredFile>, StoreError> {
        let values = [id.uuid().into(), tenant.name().into(), path.into()];
        let row: Option<OutputFileRow> = self.readers.one(sql::SELECT_OUTPUT_FILE, &values).await?;
        Ok(row.map(Into::into))
    }

    async fn recover_runs(&self) -> Result<usize, StoreError> {
        let runs: Vec<(String, i64, String)> = self.of_replica(sql::SELECT_LEFT_RUNS).await?;
        for (tenant, epoch, summary) in &runs {
            let summary = match from_json(summary) {
                Ok(summary) => after_the_end(summary),
                Err(error) => {
                    tracing::error!(error = chain(&error), "a run that is open cannot be read");
                    continue;
                }
            };
            let row = FinishRow::of(tenant, &summary)?;
            self.write_end(&summary, row, *epoch).await?;
        }
        Ok(runs.len())
    }

    async fn left_sessions(&self) -> Result<Vec<OpenSession>, StoreError> {
        let sessions: Vec<(String, String, Option<String>)> =
            self.of_replica(sql::SELECT_LEFT_SESSIONS).await?;
        let open = |(tenant, body, sandbox): (String, String, Option<String>)| {
            Ok(OpenSession {
                tenant: Tenant::named(tenant),
                session: from_json(&body)?,
                sandbox: sandbox.map(|text| from_json(&text)).transpose()?,
            })
        };
        sessions.into_iter().map(open).collect()
    }

    async fn sandboxes(&self) -> Result<Vec<SandboxRecord>, StoreError> {
        let records: Vec<(String,)> = self.readers.all(sql::SELECT_SANDBOXES, &[]).await?;
        records.iter().map(|(record,)| from_json(record)).collect()
    }

    fn may_serve(&self) -> Result<(), StoreError> {
        self.replica.check()
    }

    async fn open(&self) -> Result<Open, StoreError> {
        let runs: Vec<(String, Uuid)> = self.of_replica(sql::SELECT_OPEN_RUNS).await?;
        let sessions: Vec<(String, Uuid)> = self.of_replica(sql::SELECT_OPEN_SESSIONS).await?;
        let run = |(tenant, id)| (Tenant::named(tenant), RunId::from_uuid(id));
        let session = |(tenant, id)| (Tenant::named(tenant), SessionId::from_uuid(id));
        Ok(Open {
            runs: runs.into_iter().map(run).collect(),
            sessions: sessions.into_iter().map(session).collect(),
        })
    }

    async fn furnish_session(
        &self,
        tenant: &Tenant,
        session: &Session,
        sandbox: &SandboxRecord,
    ) -> Result<(), StoreError> {
        let row = SessionRow { sandbox: Some(json(sandbox)?), ..SessionRow::of(tenant, session)? };
        self.write(Write::FurnishSession(row)).await?;
        Ok(())
    }

    async fn expire(&self, keep: &Keep) -> Result<Expired, StoreError> {
        let runs = retention::RUNS.outlived(&self.readers, keep).await?;
        let sessions = retention::SESSIONS.outlived(&self.readers, keep).await?;
        let expiring = Expiring {
            runs,
            sessions,
            keys_before: microseconds(OffsetDateTime::now_utc()) - KEY_MICROSECONDS,
            keys_at_most: retention::STEP,
        };
        let Done { rows, blobs } = self.write(Write::Expire(expiring)).await?;
        Ok(Expired { rows, blobs })
    }

    async fn blobs_in_use(&self, shelf: &str) -> Result<Vec<String>, StoreError> {
        let end = format!("{shelf}\u{10ffff}");
        let names: Vec<(String,)> =
            self.readers.all(sql::SELECT_BLOBS, &[shelf.into(), (&end).into()]).await?;
        Ok(names.into_iter().map(|(name,)| name).collect())
    }

    async fn beat(&self) -> Result<(), StoreError> {
        self.replica.beat().await
    }

    async fn take_over(&self) -> Result<usize, StoreError> {
        self.replica.take_over().await
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.replica.check()?;
        let _: Vec<(i32,)> = self.readers.all("select 1", &[]).await?;
        Ok(())
    }

    async fn close(&self) {
        self.readers.close().await;
        self.writer.close().await;
    }
}

impl Tables {
    /// What a statement about this replica and its epoch gives.
    async fn of_replica<T: Readable>(&self, statement: &'static str) -> Result<Vec<T>, StoreError> {
        let owner = self.replica.owner;
        self.readers.all(statement, &[owner.replica_id.into(), owner.epoch.into()]).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_after_its_own_time_and_before_any_later_one() {
        let before = OffsetDateTime::now_utc();
        let id = RunId::new().uuid();
        let after = OffsetDateTime::now_utc() + Duration::from_millis(2);
        assert!(id_before(before) < id && id < id_before(after));
    }
}
