alter table session add column ended_at integer;
alter table run add column ended_at integer;
alter table run add column events_blob text;

-- what has ended before gets its time from what was told of it
update session set ended_at =
    1000000 * cast(strftime('%s', coalesce(json_extract(body, '$.ended_at'), 'now')) as integer)
where state in ('ended', 'failed');
update run set ended_at = coalesce(
    1000000 * cast(strftime('%s', json_extract(summary, '$.finished_at')) as integer), created_at)
where status not in ('queued', 'running');

create index session_by_end on session (ended_at) where ended_at is not null;
create index run_by_end on run (ended_at) where ended_at is not null;

create table deployment (
    deployment_id blob primary key,
    secret blob not null,
    created_at integer not null
) strict;

create table idempotency (
    tenant text not null,
    route text not null,
    idempotency_key text not null,
    request_hash text not null,
    run_id blob,
    session_id blob,
    created_at integer not null,
    primary key (tenant, route, idempotency_key)
) strict;

create index idempotency_by_age on idempotency (created_at);
create index idempotency_by_run on idempotency (run_id) where run_id is not null;
create index idempotency_by_session on idempotency (session_id) where session_id is not null;
