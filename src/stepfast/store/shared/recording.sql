-- The journal: what workers record of their runs beside the usual freight, which each database writes in a way of its own.

-- name: fence
-- The runs of a flush that carries more than the usual freight: those that are still this worker's, under the claim that
-- it knows. And when the server was started, if there is one. Rows that somebody holds are stepped over.
SELECT {wide}{server}, {now}, {standing}{/wide}
FROM unnest($2::uuid[], $3::integer[]) AS f(id, claim) {join} {schema}.runs r ON r.id = f.id
WHERE r.worker IS NOT DISTINCT FROM $1 AND r.claim = f.claim
ORDER BY r.id
FOR NO KEY UPDATE OF r SKIP LOCKED;

-- name: still_ours
-- Of runs that did not pass the fence: which are ours all the same, and were only locked?
SELECT r.id::text AS id FROM unnest($2::uuid[], $3::integer[]) AS f(id, claim) {join} {schema}.runs r ON r.id = f.id
WHERE r.worker IS NOT DISTINCT FROM $1 AND r.claim = f.claim;

-- name: stored
-- How much is stored of runs, as one number each: an open record counts one, an outcome two.
SELECT u.id::text AS id, count(s.run_id) + count(CASE WHEN s.status <> 'waiting' THEN 1 END) AS number
FROM unnest($1::uuid[]) AS u(id) LEFT JOIN {schema}.steps s ON s.run_id = u.id
GROUP BY u.id;

-- name: foreign_steps
-- Runs in which one of these addresses has an outcome recorded under another claim: their history is not what we believe.
-- An open record belongs to whoever holds the run.
SELECT DISTINCT s.run_id::text AS run_id
FROM unnest($1::uuid[], $2::integer[], $3::text[], $4::integer[]) AS u(run_id, claim, branch, position)
{join} {schema}.steps s ON s.run_id = u.run_id AND s.branch = u.branch AND s.position = u.position
WHERE s.claim <> u.claim AND s.status <> 'waiting';

-- name: recorded_at
-- When the outcomes at these addresses were recorded. An open record may be an older one, which was found again: nobody
-- asks for its time.
SELECT s.run_id::text AS run_id, s.branch, s.position, s.completed_at
FROM unnest($1::uuid[], $2::text[], $3::integer[]) AS u(run_id, branch, position)
{join} {schema}.steps s ON s.run_id = u.run_id AND s.branch = u.branch AND s.position = u.position
WHERE s.status <> 'waiting';

-- name: own_steps
-- Which of these addresses were recorded under their very claim: written before, by a flush whose reply was lost.
SELECT s.run_id::text AS run_id, s.branch, s.position
FROM unnest($1::uuid[], $2::integer[], $3::text[], $4::integer[]) AS u(run_id, claim, branch, position)
{join} {schema}.steps s ON s.run_id = u.run_id AND s.branch = u.branch AND s.position = u.position
WHERE s.claim = u.claim;

-- name: set_values
-- Values that runs let others read, one of each key; the latest wins.
INSERT INTO {schema}.run_values (run_id, key, value, format, updated_at)
SELECT u.* FROM unnest($1::uuid[], $2::text[], $3::text[], $4::smallint[], $5::bigint[])
     AS u(run_id, key, value, format, updated_at)
WHERE true
ON CONFLICT (run_id, key) DO UPDATE
SET value = excluded.value, format = excluded.format, updated_at = excluded.updated_at;

-- name: record_tries
-- Failed tries, before the next one begins, and when that is due.
INSERT INTO {schema}.tries (run_id, claim, branch, position, attempt, number, name, error, arguments, format,
                            started_at, completed_at, due_at)
SELECT u.* FROM unnest($1::uuid[], $2::integer[], $3::text[], $4::integer[], $5::integer[], $6::integer[], $7::text[],
                       $8::text[], $9::text[], $10::smallint[], $11::bigint[], $12::bigint[], $13::bigint[])
     AS u(run_id, claim, branch, position, attempt, number, name, error, arguments, format, started_at, completed_at,
          due_at)
WHERE true
ON CONFLICT (run_id, branch, position, attempt, number) DO NOTHING;

-- name: tell_progress
-- The same beside the journal, which does not wait for it: the run may have left its worker by then, or have ended. So the
-- fence is the number of the claim alone, which no two claims of a run share: it is the run's last, or that under which the
-- step has ended, so that no later word of it can be there. Rows of runs are not locked.
INSERT INTO {schema}.progress (run_id, branch, position, name, detail, data, format, started_at, updated_at)
SELECT u.run_id, u.branch, u.position, u.name, u.detail, u.data, u.format, {now} - u.since_ms, {now}
FROM unnest($1::uuid[], $2::integer[], $3::text[], $4::integer[], $5::text[], $6::text[], $7::text[], $8::smallint[],
            $9::bigint[])
     AS u(run_id, claim, branch, position, name, detail, data, format, since_ms)
{join} {schema}.runs r ON r.id = u.run_id
WHERE r.claim = u.claim OR EXISTS (
    SELECT 1 FROM {schema}.steps s
    WHERE s.run_id = u.run_id AND s.branch = u.branch AND s.position = u.position AND s.claim = u.claim
      AND s.status <> 'waiting')
ON CONFLICT (run_id, branch, position) DO UPDATE
SET name = excluded.name, updated_at = excluded.updated_at,
    detail = COALESCE(excluded.detail, {schema}.progress.detail),
    data = COALESCE(excluded.data, {schema}.progress.data);

-- name: record_progress
-- What long steps are doing, one word of each; the latest wins, and one without details keeps those of an earlier.
INSERT INTO {schema}.progress (run_id, branch, position, name, detail, data, format, started_at, updated_at)
SELECT u.* FROM unnest($1::uuid[], $2::text[], $3::integer[], $4::text[], $5::text[], $6::text[], $7::smallint[],
                       $8::bigint[], $9::bigint[])
     AS u(run_id, branch, position, name, detail, data, format, started_at, updated_at)
WHERE true
ON CONFLICT (run_id, branch, position) DO UPDATE
SET name = excluded.name, updated_at = excluded.updated_at,
    detail = COALESCE(excluded.detail, {schema}.progress.detail),
    data = COALESCE(excluded.data, {schema}.progress.data);
