//! The statements, in SQL that SQLite and Postgres both read.

use sqlx::AssertSqlSafe;

use crate::domain::list::RunFilter;
use crate::domain::run::{RunKind, RunStatus};

/// A replica that is known begins its next epoch; one that is new, or was replaced and forgotten, one
/// that it never had.
pub(super) const START_REPLICA: &str = "
insert into replica (replica_id, epoch, started_at) values ($1, $2, $2)
on conflict (replica_id) do update set epoch = replica.epoch + 1, started_at = excluded.started_at
returning epoch";

pub(super) const SELECT_REPLICA: &str = "select replica_id from replica limit 1";

pub(super) const INSERT_DEPLOYMENT: &str = "
insert into deployment (deployment_id, secret, created_at) values ($1, $2, $3)";

pub(super) const SELECT_DEPLOYMENT: &str = "select deployment_id, secret from deployment limit 1";

/// A key that is older than its time is as good as new.
pub(super) const INSERT_CLAIM: &str = "
insert into idempotency (tenant, route, idempotency_key, request_hash, run_id, session_id, created_at)
values ($1, $2, $3, $4, $5, $6, $7)
on conflict (tenant, route, idempotency_key) do update set
    request_hash = excluded.request_hash, run_id = excluded.run_id,
    session_id = excluded.session_id, created_at = excluded.created_at
where idempotency.created_at < $8";

pub(super) const SELECT_CLAIM: &str = "
select request_hash, run_id, session_id from idempotency
where tenant = $1 and route = $2 and idempotency_key = $3 and created_at >= $4";

pub(super) const INSERT_SESSION: &str = "
insert into session (session_id, tenant, owner, epoch, state, body, sandbox) values ($1, $2, $3, $4, $5, $6, $7)";

pub(super) const UPDATE_SESSION: &str = "
update session set state = $3, body = $4, ended_at = $5
where session_id = $1 and tenant = $2 and owner = $6 and state not in ('ended', 'failed')";

pub(super) const SELECT_SESSION: &str = "
select body from session where session_id = $1 and tenant = $2";

pub(super) const SELECT_SESSIONS_NEWEST: &str = "
select body from session where tenant = $1 and session_id < $2 order by session_id desc limit $3";

pub(super) const SELECT_SESSIONS_OLDEST: &str = "
select body from session where tenant = $1 and session_id > $2 order by session_id asc limit $3";

/// What a start before this one has left, or another replica whose sessions are this one's now.
pub(super) const SELECT_LEFT_SESSIONS: &str = "
select tenant, body, sandbox from session
where owner = $1 and epoch <> $2 and state not in ('ended', 'failed')";

/// Of every replica.
pub(super) const SELECT_SANDBOXES: &str = "
select sandbox from session where sandbox is not null and state not in ('ended', 'failed')";

pub(super) const SELECT_OPEN_SESSIONS: &str = "
select tenant, session_id from session
where owner = $1 and epoch = $2 and state not in ('ended', 'failed')";

pub(super) const INSERT_RUN: &str = "
insert into run (run_id, tenant, owner, epoch, kind, status, session_id, provider, created_at, summary)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";

pub(super) const FINISH_RUN: &str = "
update run set status = $4, summary = $5, detail = $6, detail_blob = $7, events_blob = $8,
    ended_at = $9, conversation = $10, conversation_blob = $11
where run_id = $1 and tenant = $2 and epoch = $3 and status in ('queued', 'running')";

/// A key whose request was never begun may be used again.
pub(super) const RELEASE_RUN_KEY: &str = "delete from idempotency where run_id = $1";

pub(super) const RELEASE_SESSION_KEY: &str = "delete from idempotency where session_id = $1";

pub(super) const START_RUN: &str = "
update run set status = 'running', summary = $4
where run_id = $1 and tenant = $2 and epoch = $3 and status = 'queued'";

pub(super) const SELECT_EVENTS: &str = "
select events_blob from run where run_id = $1 and tenant = $2";

pub(super) const SELECT_CONVERSATION: &str = "
select conversation, conversation_blob from run where run_id = $1 and tenant = $2";

pub(super) const SELECT_RUN: &str = "
select summary, detail, detail_blob from run where run_id = $1 and tenant = $2";

pub(super) const SELECT_LEFT_RUNS: &str = "
select tenant, epoch, summary from run
where owner = $1 and epoch <> $2 and status in ('queued', 'running')";

pub(super) const SELECT_OPEN_RUNS: &str = "
select tenant, run_id from run
where owner = $1 and epoch = $2 and status in ('queued', 'running')";

/// The page of a list between two ids. A condition stands there only where it is asked for: a
/// database finds the index for it then. `hint` names one, where a database needs that.
pub(super) fn select_runs(
    filter: &RunFilter,
    descending: bool,
    hint: fn(&'static str) -> String,
) -> AssertSqlSafe<String> {
    let conditions = [
        (filter.kind.is_some(), "kind ="),
        (filter.status.is_some(), "status ="),
        (filter.session_id.is_some(), "session_id ="),
        (filter.provider.is_some(), "provider ="),
        (filter.since.is_some(), "created_at >="),
        (filter.until.is_some(), "created_at <"),
    ];
    let hint = hint(most_selective(filter));
    let mut statement =
        format!("select summary from run{hint} where tenant = $1 and run_id > $2 and run_id < $3");
    for (number, condition) in (5..).zip(conditions.iter().filter(|(asked, _)| *asked)) {
        statement.push_str(&format!(" and {} ${number}", condition.1));
    }
    let order = if descending { "desc" } else { "asc" };
    statement.push_str(&format!(" order by run_id {order} limit $4"));
    AssertSqlSafe(statement) // of the words above and numbers alone
}

/// The index that leaves the least to look through: sessions are many; most runs are an exec that
/// succeeded.
fn most_selective(filter: &RunFilter) -> &'static str {
    if filter.session_id.is_some() {
        "run_by_session"
    } else if filter.status.is_some_and(|status| status != RunStatus::Success) {
        "run_by_status"
    } else if filter.kind.is_some_and(|kind| kind != RunKind::Exec) {
        "run_by_kind"
    } else if filter.provider.is_some() {
        "run_by_provider"
    } else if filter.status.is_some() {
        "run_by_status"
    } else if filter.kind.is_some() {
        "run_by_kind"
    } else {
        "run_by_tenant"
    }
}

pub(super) const INSERT_OUTPUT_FILE: &str = "
insert into output_file (run_id, path, tenant, blob, size_bytes, mime, sha256)
values ($1, $2, $3, $4, $5, $6, $7)";

pub(super) const SELECT_OUTPUT_FILE: &str = "
select path, blob, size_bytes, mime, sha256 from output_file
where run_id = $1 and tenant = $2 and path = $3";

pub(super) const FURNISH_SESSION: &str = "
update session set epoch = $4, state = $5, body = $6, sandbox = $7
where session_id = $1 and tenant = $2 and owner = $3 and state not in ('ended', 'failed')";

/// Every tenant that has runs, by one look into an index for each.
pub(super) const SELECT_RUN_TENANTS: &str = "
with recursive found (tenant) as (
    select min(tenant) from run
    union all
    select (select min(tenant) from run where tenant > found.tenant) from found
    where found.tenant is not null
) select tenant from found where tenant is not null";

pub(super) const SELECT_SESSION_TENANTS: &str = "
with recursive found (tenant) as (
    select min(tenant) from session
    union all
    select (select min(tenant) from session where tenant > found.tenant) from found
    where found.tenant is not null
) select tenant from found where tenant is not null";

pub(super) const SELECT_OLD_RUNS: &str = "
select run_id from run where ended_at < $1 order by ended_at limit $2";

pub(super) const SELECT_OLD_SESSIONS: &str = "
select session_id from session where ended_at < $1 order by ended_at limit $2";

/// What stands behind the newest.
pub(super) const SELECT_SURPLUS_RUNS: &str = "
select run_id from run where tenant = $1 and ended_at is not null
order by run_id desc limit $3 offset $2";

pub(super) const SELECT_SURPLUS_SESSIONS: &str = "
select session_id from session where tenant = $1 and ended_at is not null
order by session_id desc limit $3 offset $2";

pub(super) const DELETE_OUTPUT_FILES: &str = "
delete from output_file where run_id = $1 returning blob";

pub(super) const DELETE_RUN: &str = "
delete from run where run_id = $1 and ended_at is not null
returning detail_blob, events_blob, conversation_blob";

pub(super) const DELETE_SESSION: &str = "
delete from session where session_id = $1 and state in ('ended', 'failed')";

pub(super) const DELETE_OLD_KEYS: &str = "
delete from idempotency where created_at < $1 and (tenant, route, idempotency_key) in (
    select tenant, route, idempotency_key from idempotency where created_at < $1
    order by created_at limit $2)";

/// Names between two, which is a shelf.
pub(super) const SELECT_BLOBS: &str = "
select blob from output_file where blob >= $1 and blob < $2
union all select detail_blob from run where detail_blob >= $1 and detail_blob < $2
union all select events_blob from run where events_blob >= $1 and events_blob < $2
union all select conversation_blob from run where conversation_blob >= $1 and conversation_blob < $2";
