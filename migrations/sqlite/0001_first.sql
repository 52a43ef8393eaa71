create table replica (
    replica_id blob primary key,
    epoch integer not null,
    started_at integer not null
) strict;

create table session (
    session_id blob primary key,
    tenant text not null,
    owner blob not null,
    epoch integer not null,
    state text not null,
    body text not null
) strict;

create index session_by_tenant on session (tenant, session_id);
create index session_open on session (owner) where state not in ('ended', 'failed');

create table run (
    run_id blob primary key,
    tenant text not null,
    owner blob not null,
    epoch integer not null,
    kind text not null,
    status text not null,
    session_id blob not null,
    provider text not null,
    created_at integer not null,
    summary text not null,
    detail text,
    detail_blob text
) strict;

create index run_by_tenant on run (tenant, run_id);
create index run_by_session on run (tenant, session_id, run_id);
create index run_open on run (owner) where status in ('queued', 'running');

create table output_file (
    run_id blob not null references run (run_id) on delete cascade,
    path text not null,
    tenant text not null,
    blob text not null,
    size_bytes integer not null,
    mime text not null,
    sha256 text not null,
    primary key (run_id, path)
) strict;
