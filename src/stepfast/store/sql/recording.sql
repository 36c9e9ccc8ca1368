-- The journal: what workers record of their runs beside the usual freight, which each database writes in a way of its own.

-- name: fence(worker, f(id uuid, claim integer))
-- The runs of a flush that carries more than the usual freight: those that are still this worker's, under the claim that
-- it knows. And when the server was started, if there is one. Locked rows are stepped over.
SELECT {wide}{server}, {now}, {standing}{/wide}
FROM {rows f} {join} {runs} r ON r.id = f.id
WHERE {same r.worker, :worker} AND r.claim = f.claim
ORDER BY r.id
{lock r skip};

-- name: still_ours(worker, f(id uuid, claim integer))
-- Of runs that did not pass the fence: which are ours all the same, and were only locked?
SELECT r.id::text AS id FROM {rows f} {join} {runs} r ON r.id = f.id
WHERE {same r.worker, :worker} AND r.claim = f.claim;

-- name: stored(u(id uuid))
-- How much is stored of runs, as one number each: an open record counts one, an outcome two.
SELECT u.id::text AS id, count(s.run_id) + count(CASE WHEN s.status <> 'waiting' THEN 1 END) AS number
FROM {rows u} LEFT JOIN {steps} s ON s.run_id = u.id
GROUP BY u.id;

-- name: foreign_steps(u(run_id uuid, claim integer, branch text, position integer))
-- Runs in which one of these addresses has an outcome recorded under another claim: their history is not what we believe.
-- An open record belongs to the worker that holds the run.
SELECT DISTINCT s.run_id::text AS run_id
FROM {rows u}
{join} {steps} s ON s.run_id = u.run_id AND s.branch = u.branch AND s.position = u.position
WHERE s.claim <> u.claim AND s.status <> 'waiting';

-- name: recorded_at(u(run_id uuid, branch text, position integer))
-- When the outcomes at these addresses were recorded. An open record may be an older one, which was found again: its
-- time is not asked for.
SELECT s.run_id::text AS run_id, s.branch, s.position, s.completed_at
FROM {rows u}
{join} {steps} s ON s.run_id = u.run_id AND s.branch = u.branch AND s.position = u.position
WHERE s.status <> 'waiting';

-- name: own_steps(u(run_id uuid, claim integer, branch text, position integer))
-- Which of these addresses were recorded under their very claim: written before, by a flush whose reply was lost.
SELECT s.run_id::text AS run_id, s.branch, s.position
FROM {rows u}
{join} {steps} s ON s.run_id = u.run_id AND s.branch = u.branch AND s.position = u.position
WHERE s.claim = u.claim;

-- name: set_values(u(run_id uuid, key text, value text, format smallint, updated_at bigint))
-- Values that runs let others read, one of each key; the latest wins.
INSERT INTO {run_values} (run_id, key, value, format, updated_at)
SELECT u.* FROM {rows u}
WHERE true
{upsert run_id, key} value = {new.value}, format = {new.format}, updated_at = {new.updated_at};

-- name: record_tries(u(run_id uuid, claim integer, branch text, position integer, attempt integer, number integer,
--     name text, error text, arguments text, format smallint, started_at bigint, completed_at bigint, due_at bigint))
-- Failed tries, before the next one begins, and when that is due.
INSERT INTO {tries} (run_id, claim, branch, position, attempt, number, name, error, arguments, format,
                            started_at, completed_at, due_at)
SELECT u.* FROM {rows u}
WHERE true
{skip run_id, branch, position, attempt, number};

-- name: tell_progress(u(run_id uuid, claim integer, branch text, position integer, name text, detail text, data text,
--     format smallint, since_ms bigint))
-- The same beside the journal, which does not wait for it: the run may have left its worker by then, or have ended. So the
-- fence is the number of the claim alone, which no two claims of a run share: it is the run's last, or that under which the
-- step has ended, so that no later word of it can be there. Rows of runs are not locked.
INSERT INTO {progress} (run_id, branch, position, name, detail, data, format, started_at, updated_at)
SELECT u.run_id, u.branch, u.position, u.name, u.detail, u.data, u.format, {now} - u.since_ms, {now}
FROM {rows u}
{join} {runs} r ON r.id = u.run_id
WHERE r.claim = u.claim OR EXISTS (
    SELECT 1 FROM {steps} s
    WHERE s.run_id = u.run_id AND s.branch = u.branch AND s.position = u.position AND s.claim = u.claim
      AND s.status <> 'waiting')
{upsert run_id, branch, position} name = {new.name}, updated_at = {new.updated_at},
    detail = COALESCE({new.detail}, {progress}.detail),
    data = COALESCE({new.data}, {progress}.data);

-- name: record_progress(u(run_id uuid, branch text, position integer, name text, detail text, data text, format smallint,
--     started_at bigint, updated_at bigint))
-- What long steps are doing, one word of each; the latest wins, and one without details keeps those of an earlier.
INSERT INTO {progress} (run_id, branch, position, name, detail, data, format, started_at, updated_at)
SELECT u.* FROM {rows u}
WHERE true
{upsert run_id, branch, position} name = {new.name}, updated_at = {new.updated_at},
    detail = COALESCE({new.detail}, {progress}.detail),
    data = COALESCE({new.data}, {progress}.data);
