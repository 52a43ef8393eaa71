//! The statements, in SQL that SQLite and Postgres both read.

pub(super) const INSERT_REPLICA: &str = "
insert into replica (replica_id, epoch, started_at) values ($1, 0, $2)";

pub(super) const SELECT_REPLICA: &str = "select replica_id from replica limit 1";

pub(super) const START_REPLICA: &str = "
update replica set epoch = epoch + 1, started_at = $2 where replica_id = $1 returning epoch";

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
where session_id = $1 and tenant = $2 and state not in ('ended', 'failed')";

pub(super) const SELECT_SESSION: &str = "
select body from session where session_id = $1 and tenant = $2";

pub(super) const SELECT_SESSIONS_NEWEST: &str = "
select body from session where tenant = $1 and session_id < $2 order by session_id desc limit $3";

pub(super) const SELECT_SESSIONS_OLDEST: &str = "
select body from session where tenant = $1 and session_id > $2 order by session_id asc limit $3";

pub(super) const SELECT_OPEN_SESSIONS: &str = "
select tenant, body, sandbox from session where owner = $1 and state not in ('ended', 'failed')";

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

pub(super) const SELECT_OPEN_RUNS: &str = "
select tenant, epoch, summary from run where owner = $1 and status in ('queued', 'running')";

macro_rules! select_runs {
    ($compare:literal, $order:literal) => {
        concat!(
            "select summary from run where tenant = $1 and run_id ",
            $compare,
            " $2 and ($4 is null or kind = $4) and ($5 is null or status = $5)
            and ($6 is null or session_id = $6) and ($7 is null or provider = $7)
            and ($8 is null or created_at >= $8) and ($9 is null or created_at < $9)
            order by run_id ",
            $order,
            " limit $3"
        )
    };
}
pub(super) const SELECT_RUNS_NEWEST: &str = select_runs!("<", "desc");
pub(super) const SELECT_RUNS_OLDEST: &str = select_runs!(">", "asc");

pub(super) const INSERT_OUTPUT_FILE: &str = "
insert into output_file (run_id, path, tenant, blob, size_bytes, mime, sha256)
values ($1, $2, $3, $4, $5, $6, $7)";

pub(super) const SELECT_OUTPUT_FILE: &str = "
select path, blob, size_bytes, mime, sha256 from output_file
where run_id = $1 and tenant = $2 and path = $3";

pub(super) const FURNISH_SESSION: &str = "
update session set owner = $3, epoch = $4, state = $5, body = $6, sandbox = $7
where session_id = $1 and tenant = $2 and state not in ('ended', 'failed')";

pub(super) const SELECT_EXPIRED_BLOBS: &str = "
select f.blob from output_file f join run r on r.run_id = f.run_id where r.ended_at < $1
union select detail_blob from run where ended_at < $1 and detail_blob is not null
union select events_blob from run where ended_at < $1 and events_blob is not null
union select conversation_blob from run where ended_at < $1 and conversation_blob is not null";

pub(super) const DELETE_EXPIRED_FILES: &str = "
delete from output_file where run_id in (select run_id from run where ended_at < $1)";

/// A key never stands for what is not there any more.
pub(super) const DELETE_KEYS_OF_EXPIRED_RUNS: &str = "
delete from idempotency where run_id in (select run_id from run where ended_at < $1)";

pub(super) const DELETE_EXPIRED_RUNS: &str = "delete from run where ended_at < $1";

pub(super) const DELETE_KEYS_OF_EXPIRED_SESSIONS: &str = "
delete from idempotency where session_id in
(select session_id from session where ended_at < $1 and state in ('ended', 'failed'))";

pub(super) const DELETE_EXPIRED_SESSIONS: &str = "
delete from session where ended_at < $1 and state in ('ended', 'failed')";

pub(super) const DELETE_EXPIRED_KEYS: &str = "delete from idempotency where created_at < $1";

pub(super) const SELECT_BLOBS: &str = "
select blob from output_file
union select detail_blob from run where detail_blob is not null
union select events_blob from run where events_blob is not null
union select conversation_blob from run where conversation_blob is not null";
