//! What every store does.

use std::collections::BTreeMap;

use interpreterd::config::{BlobSettings, StoreSettings};
use interpreterd::domain::claim::{Claim, Key};
use interpreterd::domain::id::{RunId, SessionId, Tenant};
use interpreterd::domain::limits::Limits;
use interpreterd::domain::list::Page;
use interpreterd::domain::provider::Capabilities;
use interpreterd::domain::run::{Run, RunKind, RunStatus, RunSummary, Usage};
use interpreterd::domain::session::{Session, SessionState};
use interpreterd::store::connect::{Opened, open};
use interpreterd::store::{Finish, StoredFile};
use interpreterd::telemetry::metrics::Metrics;
use sqlx::Connection;
use time::OffsetDateTime;

use crate::support::postgres::{self, Database};

/// Makes a test of each of these for each store.
macro_rules! every_store {
    ($($name:ident),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test] async fn $name() { super::$name(&super::super::Place::sqlite()).await; })*
        }
        mod postgres {
            $(#[tokio::test] async fn $name() {
                let Some(place) = super::super::Place::postgres() else { return };
                super::$name(&place).await;
            })*
        }
    };
}

mod keys;
mod lists;
mod replicas;
mod retention;
mod runs;
mod sessions;
mod starts;
mod tenants;
mod texts;

const ALL: Page = Page { limit: 100, after: None, descending: false };

/// Where a store is, open or not.
struct Place {
    folder: tempfile::TempDir,
    database: Option<Database>,
}

impl Place {
    fn sqlite() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), database: None }
    }

    /// None where Postgres is left out on purpose.
    fn postgres() -> Option<Self> {
        let database = Some(Database::new()?);
        Some(Self { folder: tempfile::tempdir().unwrap(), database })
    }

    /// Another place of the same kind.
    fn other(&self) -> Self {
        let database = self.database.as_ref().and_then(|_| Database::new());
        Self { folder: tempfile::tempdir().unwrap(), database }
    }

    async fn open(&self) -> Opened {
        let database_url = self.database.as_ref().map(|database| database.url().into());
        let settings = StoreSettings { database_url, ..StoreSettings::default() };
        open(self.folder.path(), &settings, &BlobSettings::default(), &Metrics::default())
            .await
            .unwrap()
    }

    /// A statement from outside, in words that both databases read.
    async fn execute(&self, statement: &'static str) {
        if let Some(database) = &self.database {
            return postgres::execute(&database.url(), statement);
        }
        let file = self.folder.path().join("interpreterd.db");
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(file);
        let mut connection = sqlx::SqliteConnection::connect_with(&options).await.unwrap();
        sqlx::raw_sql(statement).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
    }
}

async fn close(opened: Opened) {
    opened.store.close().await;
}

fn finish<'a>(opened: &Opened, run: &'a Run, files: &'a [StoredFile]) -> Finish<'a> {
    Finish {
        run,
        files,
        events: Some(b"line\n".to_vec()),
        conversation: Some("[]".to_owned()),
        epoch: opened.store.epoch(),
        release_key: false,
    }
}

/// Writes an end down; false when there was one before.
async fn end(opened: &Opened, tenant: &Tenant, run: &Run, files: &[StoredFile]) -> bool {
    opened.store.finish_run(tenant, &finish(opened, run, files)).await.unwrap()
}

fn tenants() -> (Tenant, Tenant) {
    (Tenant::single(), Tenant::named("other".to_owned()))
}

fn claim(key: &str) -> Claim {
    Claim { key: Key::new("/v1/execute", key).unwrap(), request_hash: "h".to_owned() }
}

fn file(path: &str) -> StoredFile {
    StoredFile {
        path: path.to_owned(),
        blob: format!("ab/{path}"),
        size_bytes: 3,
        mime: "text/plain".to_owned(),
        sha256: "0".to_owned(),
    }
}

fn session() -> Session {
    let now = OffsetDateTime::now_utc();
    let capabilities = Capabilities {
        state: true,
        state_after_timeout: true,
        upload: true,
        download: true,
        shell: true,
        packages: false,
        network: false,
        absolute_files_dir: true,
        streaming: true,
    };
    Session {
        id: SessionId::new(),
        provider: "local".to_owned(),
        sandbox_id: None,
        state: SessionState::Starting,
        isolation: None,
        capabilities,
        limits: Limits { disk_bytes: Some(1), ..Limits::default() },
        files_dir: Some("/files".to_owned()),
        progress: None,
        failure: None,
        packages: Vec::new(),
        created_at: now,
        last_used_at: now,
        expires_at: now,
        ended_at: None,
        end_reason: None,
        one_shot: false,
        metadata: BTreeMap::from([("a".to_owned(), "b".to_owned())]),
    }
}

fn run(status: RunStatus) -> Run {
    let summary = RunSummary {
        id: RunId::new(),
        kind: RunKind::Exec,
        session_id: SessionId::new(),
        provider: "local".to_owned(),
        model: None,
        status,
        message: None,
        previous_run_id: None,
        error: None,
        failure: None,
        usage: Usage::default(),
        turns: 0,
        created_at: OffsetDateTime::now_utc(),
        started_at: None,
        finished_at: None,
        duration_ms: None,
        metadata: BTreeMap::new(),
    };
    Run::empty(summary)
}

/// A run that has begun and is written down.
async fn begun(opened: &Opened, tenant: &Tenant) -> Run {
    let begun = run(RunStatus::Running);
    opened.store.begin_run(tenant, &begun.summary, None).await.unwrap();
    begun
}

fn ended(mut run: Run, text: &str) -> Run {
    run.summary.status = RunStatus::Success;
    text.clone_into(&mut run.text);
    run
}
