create table replica (
    replica_id uuid primary key,
    epoch bigint not null,
    started_at bigint not null,
    seen_at bigint
);

create table session (
    session_id uuid primary key,
    tenant text not null,
    owner uuid not null,
    epoch bigint not null,
    state text not null,
    body text not null,
    ended_at bigint,
    sandbox text
);

create index session_by_tenant on session (tenant, session_id);
create index session_open on session (owner) where state not in ('ended', 'failed');
create index session_ended on session (tenant, session_id) where ended_at is not null;
create index session_by_end on session (ended_at) where ended_at is not null;

create table run (
    run_id uuid primary key,
    tenant text not null,
    owner uuid not null,
    epoch bigint not null,
    kind text not null,
    status text not null,
    session_id uuid not null,
    provider text not null,
    created_at bigint not null,
    summary text not null,
    detail text,
    detail_blob text collate "C",
    ended_at bigint,
    events_blob text collate "C",
    conversation text,
    conversation_blob text collate "C"
);

-- each filter of the list has an index that gives its pages in order
create index run_by_tenant on run (tenant, run_id);
create index run_by_session on run (tenant, session_id, run_id);
create index run_by_kind on run (tenant, kind, run_id);
create index run_by_status on run (tenant, status, run_id);
create index run_by_provider on run (tenant, provider, run_id);
create index run_open on run (owner) where status in ('queued', 'running');
create index run_ended on run (tenant, run_id) where ended_at is not null;
create index run_by_end on run (ended_at) where ended_at is not null;

-- names of blobs are looked up shelf by shelf
create index run_by_detail_blob on run (detail_blob) where detail_blob is not null;
create index run_by_events_blob on run (events_blob) where events_blob is not null;
create index run_by_conversation_blob on run (conversation_blob) where conversation_blob is not null;

create table output_file (
    run_id uuid not null references run (run_id) on delete cascade,
    path text not null,
    tenant text not null,
    blob text collate "C" not null,
    size_bytes bigint not null,
    mime text not null,
    sha256 text not null
);

-- a path may be longer than what an index takes
create unique index output_file_by_path on output_file (run_id, md5(path));
create index output_file_by_blob on output_file (blob);

create table deployment (
    deployment_id uuid primary key,
    secret bytea not null,
    created_at bigint not null
);

create table idempotency (
    tenant text not null,
    route text not null,
    idempotency_key text not null,
    request_hash text not null,
    run_id uuid,
    session_id uuid,
    created_at bigint not null,
    primary key (tenant, route, idempotency_key)
);

create index idempotency_by_age on idempotency (created_at);
create index idempotency_by_run on idempotency (run_id) where run_id is not null;
create index idempotency_by_session on idempotency (session_id) where session_id is not null;
