-- Three roles of least privilege. What each may do is said here for every table; `roles.py` fills the lists in.

-- name: roles_head
-- The beginning of the script. The roles cannot log in and have no passwords: they are granted to users who can.
BEGIN;
SET LOCAL search_path = pg_catalog, pg_temp;

-- name: make_roles
-- They belong to the whole server; another namespace of the same name in another database shares them.
DO $$
DECLARE
    wanted text;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['{namespace}_starter', '{namespace}_worker', '{namespace}_reader'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname::text = wanted) THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN', wanted);
        END IF;
    END LOOP;
END
$$;

-- name: grant_roles
-- What each role may do; it replaces what an earlier version has said. All of them begin with nothing.
REVOKE ALL ON {tables}, {views} FROM {starter}, {worker}, {reader};
REVOKE EXECUTE ON FUNCTION {schema}.cancel(uuid, boolean), {schema}.resume(uuid, boolean),
    {schema}.reschedule(uuid, interval, timestamptz, integer, boolean), {schema}.complete(text, json, boolean),
    {schema}.fail(text, text, boolean), {schema}.beat(text) FROM PUBLIC, {starter}, {reader};
GRANT USAGE ON SCHEMA {schema} TO {starter}, {worker}, {reader};
GRANT EXECUTE ON FUNCTION {functions} TO {starter}, {worker}, {reader};
GRANT EXECUTE ON FUNCTION {schema}.cancel(uuid, boolean), {schema}.resume(uuid, boolean),
    {schema}.reschedule(uuid, interval, timestamptz, integer, boolean), {schema}.complete(text, json, boolean),
    {schema}.fail(text, text, boolean), {schema}.beat(text) TO {worker};

-- The worker's role executes runs, and operates on them. It changes every table but the version of the tables, and makes
-- none: migrations belong to the owner.
GRANT SELECT, INSERT, UPDATE, DELETE ON {tables} TO {worker};
REVOKE INSERT, UPDATE, DELETE ON {schema}.meta FROM {worker};
GRANT SELECT ON {views} TO {worker};

-- The reader's role sees everything but the secrets that chance is made from.
GRANT SELECT ON {tables}, {views} TO {reader};
REVOKE SELECT ON {schema}.runs FROM {reader};
DO $$
BEGIN
    EXECUTE 'GRANT SELECT (' || (
        SELECT string_agg(quote_ident(attname::text), ', ') FROM pg_attribute
        WHERE attrelid = '{schema}.runs'::regclass AND attnum > 0 AND NOT attisdropped AND attname::text <> 'seed'
    ) || ') ON {schema}.runs TO {reader}';
END
$$;

-- The starter's role starts, signals and publishes. It reads what its starts are checked against, and of runs which one it is and
-- where it stands; no payload.
GRANT SELECT ON {schema}.meta, {schema}.definitions, {schema}.queues TO {starter};
GRANT SELECT (id, workflow, queue, priority, status, reason, key, unique_name, awaits_name, place, losses, graph, dag_id, dag_step,
              ready_at, created_at, completed_at, trace),
      INSERT (id, workflow, version, queue, status, waiting_for, priority, place, visible_at, max_attempts, timeout_ms,
              deadline_ms, deadline_at, expires_at, format, input, key, unique_name, awaits_name, tags, concurrency_key, seed,
              created_at, started_at, ready_at, graph, dag_id, dag_step, pending, ordinal, parent_id, parent_branch, parent_position,
              reply_to, origin_id, trace)
ON {schema}.runs TO {starter};
GRANT INSERT ON {schema}.run_tags, {schema}.run_attributes TO {starter};
GRANT SELECT, INSERT ON {schema}.attribute_names TO {starter};
GRANT SELECT, INSERT, UPDATE ON {schema}.turns TO {starter};
GRANT INSERT, SELECT (run_id, key) ON {schema}.run_values TO {starter};
GRANT INSERT, SELECT (run_id, id, kind) ON {schema}.mailbox TO {starter};
GRANT SELECT (run_id, mail) ON {schema}.steps TO {starter};
GRANT INSERT, SELECT (id) ON {schema}.events TO {starter};

-- What a starter inserts is checked row by row: a run that belongs to no other, and its own tags; its attributes, a dag
-- run with its steps and its graph, all by one transaction; a signal that is still to be delivered; and an event without a
-- number. The owner of the tables is not checked.
ALTER TABLE {schema}.runs ENABLE ROW LEVEL SECURITY;
ALTER TABLE {schema}.run_tags ENABLE ROW LEVEL SECURITY;
ALTER TABLE {schema}.run_attributes ENABLE ROW LEVEL SECURITY;
ALTER TABLE {schema}.mailbox ENABLE ROW LEVEL SECURITY;
ALTER TABLE {schema}.run_values ENABLE ROW LEVEL SECURITY;
ALTER TABLE {schema}.events ENABLE ROW LEVEL SECURITY;
{policies}

-- name: policies_of_all
-- Of a table whose rows are checked: the others may do what they were granted.
DROP POLICY IF EXISTS stepfast_rows ON {table};
CREATE POLICY stepfast_rows ON {table} FOR ALL TO {worker} USING (true) WITH CHECK (true);
DROP POLICY IF EXISTS stepfast_reads ON {table};
CREATE POLICY stepfast_reads ON {table} FOR SELECT TO {starter}, {reader} USING (true);
DROP POLICY IF EXISTS stepfast_starts ON {table};
CREATE POLICY stepfast_starts ON {table} FOR INSERT TO {starter} WITH CHECK ({rule});

-- name: have_roles
-- Whether the namespace has had these roles before, and they are still there: then what a migration has added is granted
-- by it.
SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_policies
               WHERE '"' || schemaname::text || '"' = $1::text AND policyname::text = 'stepfast_starts')
   AND (SELECT count(*) FROM pg_catalog.pg_roles
        WHERE rolname::text IN ('{namespace}_starter', '{namespace}_worker', '{namespace}_reader')) = 3;
