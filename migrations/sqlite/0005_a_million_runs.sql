-- each filter of the list has an index that gives its pages in order
create index run_by_kind on run (tenant, kind, run_id);
create index run_by_status on run (tenant, status, run_id);
create index run_by_provider on run (tenant, provider, run_id);

-- how many have ended is counted in an index alone
create index run_ended on run (tenant, run_id) where ended_at is not null;
create index session_ended on session (tenant, session_id) where ended_at is not null;

-- names of blobs are looked up shelf by shelf
create index run_by_detail_blob on run (detail_blob) where detail_blob is not null;
create index run_by_events_blob on run (events_blob) where events_blob is not null;
create index run_by_conversation_blob on run (conversation_blob) where conversation_blob is not null;
create index output_file_by_blob on output_file (blob);

-- until when a replica was there; a database in a file has one replica alone, which is always there
alter table replica add column seen_at integer;
