-- Making, checking and dropping the tables.

-- name: meta_exists
-- Whether there are tables at all. Read from the catalogue: to_regclass() answers from a cache, which after a wait for
-- another process that makes them may still say that there are none.
SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_tables WHERE '"' || schemaname::text || '"' = $1::text AND tablename = 'meta');

-- name: lock_meta
-- One process at a time changes the tables. No row: another one does.
SELECT name FROM {schema}.meta WHERE name = 'version' FOR NO KEY UPDATE SKIP LOCKED;

-- name: schema_exists
-- The schema may have been made for us by a user with the right to do so.
SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_namespace WHERE '"' || nspname::text || '"' = $1::text);

-- name: now_of_node
-- The clock of the node that has the tables, where a coordinator would answer by its own.
SELECT {now} FROM {schema}.meta WHERE name = 'version';

-- name: create_schema
-- Needs the CREATE privilege on the database.
CREATE SCHEMA {schema};

-- name: drop_schema
-- The schema, if nothing is left in it.
DROP SCHEMA {schema} RESTRICT;

-- name: script_head
-- The beginning of the script printed for those who migrate by hand.
BEGIN;
SET LOCAL search_path = pg_catalog, pg_temp;
CREATE SCHEMA IF NOT EXISTS {schema};

-- name: server_facts
-- For the doctor.
SELECT current_setting('server_version_num')::int AS number, current_setting('server_version') AS text,
       extract(epoch FROM clock_timestamp())::float8 AS now,
       current_setting('fsync') || ', ' || current_setting('synchronous_commit') AS durability,
       current_setting('max_connections')::int AS max_connections,
       (SELECT count(*) FROM pg_catalog.pg_stat_activity)::int AS connections,
       current_setting('server_encoding') AS encoding,
       pg_is_in_recovery() OR current_setting('default_transaction_read_only') = 'on' AS read_only;

-- name: identity
-- Which database of which server this is: no two servers were started in the same microsecond.
SELECT d.oid, pg_postmaster_start_time() AS started_at, d.datname AS name FROM pg_catalog.pg_database d
WHERE d.datname = current_database();

-- name: notify
-- Wake others; a transaction of its own.
SELECT pg_notify($1, $2);
