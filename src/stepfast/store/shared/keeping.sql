-- Taking ended runs away with all that belongs to them.

-- name: lock_links
-- The runs before and after links that are to be taken out of their chains, if nobody holds them.
SELECT r.id::text AS id FROM unnest($1::uuid[]) AS u(id) {join} {schema}.runs r ON r.id = u.id
ORDER BY r.id
FOR NO KEY UPDATE OF r SKIP LOCKED;

-- name: steps_of_dags
-- The rows of the steps of dag runs.
SELECT k.id::text AS id FROM unnest($1::uuid[]) AS u(id) {join} {schema}.runs k ON k.dag_id = u.id AND k.dag_id IS NOT NULL;

-- name: remove_steps
-- What runs have recorded.
DELETE FROM {schema}.steps WHERE run_id IN (SELECT u.id FROM unnest($1::uuid[]) AS u(id));

-- name: remove_tries
-- Their failed tries.
DELETE FROM {schema}.tries WHERE run_id IN (SELECT u.id FROM unnest($1::uuid[]) AS u(id));

-- name: remove_progress
-- What they told of their progress.
DELETE FROM {schema}.progress WHERE run_id IN (SELECT u.id FROM unnest($1::uuid[]) AS u(id));

-- name: remove_mailbox
-- What was sent to them and not taken.
DELETE FROM {schema}.mailbox WHERE run_id IN (SELECT u.id FROM unnest($1::uuid[]) AS u(id));

-- name: remove_run_values
-- What they let others read.
DELETE FROM {schema}.run_values WHERE run_id IN (SELECT u.id FROM unnest($1::uuid[]) AS u(id));

-- name: remove_runs
-- The runs themselves.
DELETE FROM {schema}.runs WHERE id IN (SELECT u.id FROM unnest($1::uuid[]) AS u(id));

-- name: tries_of
-- The failed tries of one run, for its archive.
SELECT branch, position, attempt, number, name, error, arguments, format, started_at, completed_at
FROM {schema}.tries WHERE run_id = $1 ORDER BY branch, position, attempt, number;

-- name: missing
-- Those of these runs that are not there.
SELECT u.id::text AS id FROM unnest($1::uuid[]) AS u(id)
WHERE (SELECT true FROM {schema}.runs r WHERE r.id = u.id) IS NULL;
