-- what was said between a model and its sandbox, so that a later question can go on from there
alter table run add column conversation text;
alter table run add column conversation_blob text;
