-- what is needed to find a session's sandbox again, as its provider wrote it
alter table session add column sandbox text;
