-- Taking ended runs away with all that belongs to them.

-- name: ended
-- Runs that have ended, and who may still need them.
SELECT r.id::text, r.status, r.reason, r.completed_at, r.claim, r.parent_id::text, p.status AS parent_status,
       b.id::text AS before, h.id::text AS continuation, r.origin_id::text AS origin_id, r.graph IS NOT NULL AS dag
FROM unnest($1::uuid[]) AS u(id) {join} {schema}.runs r ON r.id = u.id
LEFT JOIN {schema}.runs p ON p.id = r.parent_id
LEFT JOIN {schema}.runs b ON b.id = r.origin_id AND b.reason = 'continued' AND b.output = '"' || r.id::text || '"'
LEFT JOIN {schema}.runs h ON h.id = CASE WHEN r.reason = 'continued' THEN {went_on} END
WHERE r.dag_id IS NULL AND r.completed_at IS NOT NULL
  AND r.status IN ({ended})
ORDER BY r.id;

-- name: lock_ended
-- Of runs that ended under a claim at a time ($1, $2, $3) those that still stand so, and who may still need them. Rows that
-- somebody holds are stepped over. That the others are read as they were before the lock does no harm: who is needed by
-- nobody will not be needed again, and where a chain has changed meanwhile its ends cannot be locked, and the link stays.
SELECT r.id::text, r.status, r.reason, r.completed_at, r.claim, r.parent_id::text, p.status AS parent_status,
       b.id::text AS before, h.id::text AS continuation, r.origin_id::text AS origin_id, r.graph IS NOT NULL AS dag
FROM unnest($1::uuid[], $2::integer[], $3::bigint[]) AS u(id, claim, completed_at)
{join} {schema}.runs r ON r.id = u.id AND r.claim = u.claim AND r.completed_at = u.completed_at
LEFT JOIN {schema}.runs p ON p.id = r.parent_id
LEFT JOIN {schema}.runs b ON b.id = r.origin_id AND b.reason = 'continued' AND b.output = '"' || r.id::text || '"'
LEFT JOIN {schema}.runs h ON h.id = CASE WHEN r.reason = 'continued' THEN {went_on} END
WHERE r.dag_id IS NULL AND r.status IN ({ended})
ORDER BY r.id
FOR UPDATE OF r SKIP LOCKED;

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

-- name: remove_claims
-- Whose their claims were.
DELETE FROM {schema}.claims WHERE run_id IN (SELECT u.id FROM unnest($1::uuid[]) AS u(id));

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
