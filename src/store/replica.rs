//! Who this replica is, and for how long its sessions are its own.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use sqlx::Connection as _;
use sqlx::postgres::{PgConnection, PgPool};
use time::OffsetDateTime;
use uuid::Uuid;

use super::database::{Asked, Connection};
use super::row::microseconds;
use super::writes::Owner;
use super::{StoreError, sql};
use crate::config::StoreSettings;
use crate::domain::id::{Maker, ReplicaId};

/// Time of the database, the same for all replicas, in microseconds.
const BEAT: &str = "
update replica set seen_at = (extract(epoch from clock_timestamp()) * 1000000)::bigint
where replica_id = $1 and epoch = $2";

const SELECT_GONE: &str = "
select replica_id, epoch from replica where replica_id <> $1
and seen_at < (extract(epoch from clock_timestamp()) * 1000000)::bigint - $2";

/// Of several that see it gone, one takes its place; if it comes back, it finds that it was replaced.
const REPLACE: &str = "
delete from replica where replica_id = $1 and epoch = $2
and seen_at < (extract(epoch from clock_timestamp()) * 1000000)::bigint - $3";

/// No epoch of anybody's: what is taken over is left by an earlier start, and no late end of its
/// first owner changes it.
const TAKE_RUNS: &str = "
update run set owner = $2, epoch = -1 where owner = $1 and status in ('queued', 'running')";

const TAKE_SESSIONS: &str = "
update session set owner = $2, epoch = -1 where owner = $1 and state not in ('ended', 'failed')";

/// Rows of a replica that was replaced while it was writing them.
const ADOPT_RUNS: &str = "
update run set owner = $1, epoch = -1 where status in ('queued', 'running')
and owner not in (select replica_id from replica)";

const ADOPT_SESSIONS: &str = "
update session set owner = $1, epoch = -1 where state not in ('ended', 'failed')
and owner not in (select replica_id from replica)";

/// This replica, in one of its starts.
pub(super) struct Replica {
    pub(super) owner: Owner,
    pub(super) maker: Maker,
    pub(super) secret: [u8; 32],
    /// None where there can be no other: a file of its own is locked.
    lease: Option<Lease>,
}

/// The right to serve its sessions, which others respect while it is renewed.
struct Lease {
    /// For being seen alone: no load keeps it from that.
    pool: PgPool,
    /// For taking over.
    writers: PgPool,
    /// For one statement.
    limit: Duration,
    /// How long it lasts.
    length: Duration,
    /// When it was renewed, in milliseconds of a clock that goes on while the machine sleeps.
    renewed: AtomicU64,
    /// Since when it was renewed again and again.
    steady_since: AtomicU64,
}

impl Replica {
    /// Begins the next epoch of a replica.
    pub(super) async fn start(
        connection: &mut Connection,
        replica_id: Uuid,
    ) -> Result<Self, StoreError> {
        let now = microseconds(OffsetDateTime::now_utc());
        let (deployment_id, secret) = deployment(connection, now).await?;
        let values = [replica_id.into(), now.into()];
        let epoch: Option<(i64,)> = connection.one(sql::START_REPLICA, &values).await?;
        let (epoch,) = epoch.ok_or(StoreError::NotCommitted)?;
        Ok(Self {
            owner: Owner { replica_id, epoch },
            maker: Maker { deployment_id, replica_id },
            secret,
            lease: None,
        })
    }

    /// Shares the database with others: must be seen from now on, beginning with the transaction that
    /// this is in. The pool is for that alone.
    pub(super) async fn among_others(
        self,
        connection: &mut Connection,
        pool: PgPool,
        writers: PgPool,
        settings: &StoreSettings,
    ) -> Result<Self, StoreError> {
        let values = [self.owner.replica_id.into(), self.owner.epoch.into()];
        connection.execute(BEAT, &values).await?;
        let lease = Lease {
            pool,
            writers,
            limit: settings.database_seconds,
            length: settings.replica_lease_seconds,
            renewed: AtomicU64::new(now()),
            steady_since: AtomicU64::new(now()),
        };
        Ok(Self { lease: Some(lease), ..self })
    }

    /// Whether its sessions are still its own.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        let Some(lease) = &self.lease else { return Ok(()) };
        let seen = since(lease.renewed.load(Ordering::SeqCst));
        if seen < lease.length { Ok(()) } else { Err(StoreError::Unseen) }
    }

    /// Renews the lease.
    pub(super) async fn beat(&self) -> Result<(), StoreError> {
        let Some(lease) = &self.lease else { return Ok(()) };
        let asked = now(); // it counts from before it was sent
        let beat = async {
            let mut asked = Asked::of(&lease.pool).await?;
            let beat = sqlx::query(BEAT).bind(self.owner.replica_id).bind(self.owner.epoch);
            let seen = beat.execute(&mut *asked.connection).await;
            asked.answered = seen.is_ok();
            seen
        };
        // several are tried while a lease lasts
        let limit = lease.limit.min(lease.length / 3);
        let beat = tokio::time::timeout(limit, beat).await;
        if beat.unwrap_or(Err(sqlx::Error::PoolTimedOut))?.rows_affected() == 0 {
            lease.renewed.store(0, Ordering::SeqCst);
            return Err(StoreError::Replaced);
        }
        let before = lease.renewed.swap(asked, Ordering::SeqCst);
        if since(before) > lease.length / 2 {
            lease.steady_since.store(asked, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Takes over what replicas that are gone have left, and says how many those are.
    pub(super) async fn take_over(&self) -> Result<usize, StoreError> {
        let Some(lease) = &self.lease else { return Ok(0) };
        let silence = lease.silence();
        // a database that was away has seen none of the others either: they are given the same time
        if since(lease.steady_since.load(Ordering::SeqCst)) < silence {
            return Ok(0);
        }
        let silence = i64::try_from(silence.as_micros()).unwrap_or(i64::MAX);
        let taking = async {
            let mut asked = Asked::of(&lease.writers).await?;
            let taken = self.take_from_gone(&mut asked.connection, silence).await;
            asked.answered = taken.is_ok();
            taken
        };
        let taken = tokio::time::timeout(lease.limit, taking).await;
        Ok(taken.unwrap_or(Err(sqlx::Error::PoolTimedOut))?)
    }

    async fn take_from_gone(
        &self,
        connection: &mut PgConnection,
        silence: i64,
    ) -> Result<usize, sqlx::Error> {
        let gone: Vec<(Uuid, i64)> = sqlx::query_as(SELECT_GONE)
            .bind(self.owner.replica_id)
            .bind(silence)
            .fetch_all(&mut *connection)
            .await?;
        let mut taken = 0;
        for (replica_id, epoch) in gone {
            let mut transaction = connection.begin().await?;
            let replace = sqlx::query(REPLACE).bind(replica_id).bind(epoch).bind(silence);
            if replace.execute(&mut *transaction).await?.rows_affected() == 0 {
                continue;
            }
            for statement in [TAKE_RUNS, TAKE_SESSIONS] {
                let take = sqlx::query(statement).bind(replica_id).bind(self.owner.replica_id);
                take.execute(&mut *transaction).await?;
            }
            transaction.commit().await?;
            taken += 1;
        }
        for statement in [ADOPT_RUNS, ADOPT_SESSIONS] {
            let adopt = sqlx::query(statement).bind(self.owner.replica_id);
            adopt.execute(&mut *connection).await?;
        }
        Ok(taken)
    }
}

impl Lease {
    /// After so long without a sign others take over. It is longer than the lease: clocks do not run
    /// alike, and what was handed over at its end needs its time.
    fn silence(&self) -> Duration {
        self.length + self.length / 2
    }
}

/// The id of the replica that a data folder belongs to; a new one is written down first.
pub(super) fn id_in(data_dir: &Path) -> std::io::Result<Uuid> {
    let path = data_dir.join("replica");
    match std::fs::read_to_string(&path) {
        Ok(text) => text.trim().parse().map_err(std::io::Error::other),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let id = ReplicaId::new().uuid();
            let mut file = tempfile::NamedTempFile::new_in(data_dir)?;
            std::io::Write::write_all(&mut file, id.to_string().as_bytes())?;
            file.as_file().sync_all()?;
            file.persist(&path).map_err(|error| error.error)?;
            std::fs::File::open(data_dir)?.sync_all()?;
            Ok(id)
        }
        Err(error) => Err(error),
    }
}

/// What all replicas of a store share: its id, and the key of keyed hashes.
async fn deployment(connection: &mut Connection, now: i64) -> Result<(Uuid, [u8; 32]), StoreError> {
    let known: Option<(Uuid, Vec<u8>)> = connection.one(sql::SELECT_DEPLOYMENT, &[]).await?;
    if let Some((id, secret)) = known
        && let Ok(secret) = secret.try_into()
    {
        return Ok((id, secret));
    }
    let id = ReplicaId::new().uuid();
    let mut secret = [0; 32];
    rustix::rand::getrandom(&mut secret, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| StoreError::Content(errno.into()))?;
    let values = [id.into(), super::database::Value::Bytes(&secret), now.into()];
    connection.execute(sql::INSERT_DEPLOYMENT, &values).await?;
    Ok((id, secret))
}

fn since(then: u64) -> Duration {
    Duration::from_millis(now().saturating_sub(then))
}

fn now() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}
