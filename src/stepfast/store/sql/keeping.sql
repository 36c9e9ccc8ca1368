-- Taking ended runs away with all that belongs to them.

-- name: ended(u(id uuid))
-- Runs that have ended, and who may still need them.
SELECT r.id::text, r.status, r.reason, r.completed_at, r.claim, r.parent_id::text, p.status AS parent_status,
       b.id::text AS before, h.id::text AS continuation, r.origin_id::text AS origin_id, r.graph IS NOT NULL AS dag
FROM {rows u} {join} {runs} r ON r.id = u.id
LEFT JOIN {runs} p ON p.id = r.parent_id
LEFT JOIN {runs} b ON b.id = r.origin_id AND b.reason = 'continued' AND b.output = '"' || r.id::text || '"'
LEFT JOIN {runs} h ON h.id = CASE WHEN r.reason = 'continued' THEN {went_on} END
WHERE r.dag_id IS NULL AND r.completed_at IS NOT NULL
  AND r.status IN ({ended})
ORDER BY r.id;

-- name: lock_ended(u(id uuid, claim integer, completed_at bigint))
-- Of runs that ended under a claim at a time (`u`, `u`, `u`) those that still stand so, and who may still need them. Rows that
-- somebody holds are stepped over. That the others are read as they were before the lock does no harm: who is needed by
-- nobody will not be needed again, and where a chain has changed meanwhile its ends cannot be locked, and the link stays.
SELECT r.id::text, r.status, r.reason, r.completed_at, r.claim, r.parent_id::text, p.status AS parent_status,
       b.id::text AS before, h.id::text AS continuation, r.origin_id::text AS origin_id, r.graph IS NOT NULL AS dag
FROM {rows u}
{join} {runs} r ON r.id = u.id AND r.claim = u.claim AND r.completed_at = u.completed_at
LEFT JOIN {runs} p ON p.id = r.parent_id
LEFT JOIN {runs} b ON b.id = r.origin_id AND b.reason = 'continued' AND b.output = '"' || r.id::text || '"'
LEFT JOIN {runs} h ON h.id = CASE WHEN r.reason = 'continued' THEN {went_on} END
WHERE r.dag_id IS NULL AND r.status IN ({ended})
ORDER BY r.id
{lock_all r skip};

-- name: lock_links(u(id uuid))
-- The runs before and after links that are to be taken out of their chains, if nobody holds them.
SELECT r.id::text AS id FROM {rows u} {join} {runs} r ON r.id = u.id
ORDER BY r.id
{lock r skip};

-- name: steps_of_dags(u(id uuid))
-- The rows of the steps of dag runs.
SELECT k.id::text AS id FROM {rows u} {join} {runs} k ON k.dag_id = u.id AND k.dag_id IS NOT NULL;

-- name: remove_steps(u(run_id uuid))
-- What runs have recorded.
{delete steps by u};

-- name: remove_tries(u(run_id uuid))
-- Their failed tries.
{delete tries by u};

-- name: remove_claims(u(run_id uuid))
-- Whose their claims were.
{delete claims by u};

-- name: remove_progress(u(run_id uuid))
-- What they told of their progress.
{delete progress by u};

-- name: remove_mailbox(u(run_id uuid))
-- What was sent to them and not taken.
{delete mailbox by u};

-- name: remove_run_values(u(run_id uuid))
-- What they let others read.
{delete run_values by u};

-- name: remove_runs(u(id uuid))
-- The runs themselves.
{delete runs by u};

-- name: tries_of(run_id)
-- The failed tries of one run, for its archive.
SELECT branch, position, attempt, number, name, error, arguments, format, started_at, completed_at
FROM {tries} WHERE run_id = :run_id ORDER BY branch, position, attempt, number;

-- name: missing(u(id uuid))
-- Those of these runs that are not there.
SELECT u.id::text AS id FROM {rows u}
WHERE (SELECT true FROM {runs} r WHERE r.id = u.id) IS NULL;
