-- What workers do ----------------------------------------------------------------------------------------------------

-- name: due
-- The oldest tasks of a group that no worker holds, or that one has held for longer than a lease. Rows that another
-- worker is claiming are skipped.
SELECT step_id, run_id, seq, name, input, attempt, created_at, {now} AS now
FROM {tasks}
WHERE grp::text = :grp::text AND status::text = 'pending'::text
  AND (claimed_at IS NULL OR claimed_at < {now} - :lease::bigint)
ORDER BY created_at
LIMIT :most::bigint
FOR UPDATE SKIP LOCKED;

-- name: stamp
-- Claim tasks, or renew the lease on them. Their rows are locked already.
UPDATE {tasks} SET claimed_by = :worker::text, claimed_at = {now} WHERE step_id::text = ANY(:ids::text[]);

-- name: held
-- Those of the tasks that this worker still holds, locked in one order, so that workers do not wait for each other.
SELECT step_id, attempt, run_id, seq
FROM {tasks}
WHERE step_id::text = ANY(:ids::text[]) AND claimed_by::text = :worker::text
ORDER BY step_id
FOR UPDATE;

-- name: named
-- Every task of a group that names this worker, also those of a claim whose answer was lost.
SELECT step_id, attempt
FROM {tasks}
WHERE grp::text = :grp::text AND status::text = 'pending'::text AND claimed_by::text = :worker::text
ORDER BY step_id
FOR UPDATE;

-- name: let_go
-- Give tasks back, so that another worker takes them at once. Their rows are locked already.
UPDATE {tasks} SET claimed_by = NULL, claimed_at = NULL WHERE step_id::text = ANY(:ids::text[]);

-- name: lock_failures
-- Failures of earlier attempts, and how long ago an engine began to read each, if one has.
SELECT step_id, {now} - claimed_at AS age
FROM {results}
WHERE step_id::text = ANY(:ids::text[]) AND status::text = 'failed'::text
ORDER BY step_id
FOR UPDATE;

-- name: put_results
-- Results of tasks; existing results stay.
INSERT INTO {results} (step_id, run_id, seq, status, output, error, started_at, created_at)
SELECT given.step_id, given.run_id, given.seq, given.status, given.output, given.error, given.started_at, {now}
FROM unnest(:step_id::text[], :run_id::text[], :seq::integer[], :status::text[], :output::text[], :error::text[],
            :started_at::bigint[])
     AS given(step_id, run_id, seq, status, output, error, started_at)
ON CONFLICT (step_id) DO NOTHING;

-- name: delete_tasks
-- Tasks that are done, or whose result is not needed any more. Their rows are locked already.
DELETE FROM {tasks} WHERE step_id::text = ANY(:ids::text[]);

-- What engines do -----------------------------------------------------------------------------------------------------

-- name: lock_tasks
-- Existing tasks, also those that a worker holds.
SELECT step_id, attempt FROM {tasks} WHERE step_id::text = ANY(:ids::text[]) ORDER BY step_id FOR UPDATE;

-- name: put_tasks
-- Send tasks; existing ones stay.
INSERT INTO {tasks} (step_id, run_id, seq, name, grp, input, attempt, status, created_at)
SELECT given.step_id, given.run_id, given.seq, given.name, given.grp, given.input, given.attempt, 'pending', {now}
FROM unnest(:step_id::text[], :run_id::text[], :seq::integer[], :name::text[], :grp::text[], :input::text[],
            :attempt::integer[])
     AS given(step_id, run_id, seq, name, grp, input, attempt)
ON CONFLICT (step_id) DO NOTHING;

-- name: results
-- The results of these steps.
SELECT step_id, run_id, seq, status, output, error, started_at, created_at
FROM {results}
WHERE step_id::text = ANY(:ids::text[])
ORDER BY created_at, step_id;

-- name: lock_results
-- Results to be removed, to compare them with those that were read.
SELECT step_id, status, created_at
FROM {results}
WHERE step_id::text = ANY(:ids::text[])
ORDER BY step_id
FOR UPDATE;

-- name: delete_results
-- Results that were recorded. Their rows are locked already.
DELETE FROM {results} WHERE step_id::text = ANY(:ids::text[]);

-- name: not_begun
-- Tasks that no worker holds; those that are being claimed are skipped.
SELECT step_id
FROM {tasks}
WHERE step_id::text = ANY(:ids::text[]) AND (claimed_at IS NULL OR claimed_at < {now} - :lease::bigint)
ORDER BY step_id
FOR UPDATE SKIP LOCKED;

-- name: present
-- Steps of which there is a task or a result. One statement, so that a step on its way from one to the other is seen.
SELECT step_id FROM {tasks} WHERE step_id::text = ANY(:ids::text[])
UNION ALL
SELECT step_id FROM {results} WHERE step_id::text = ANY(:ids::text[]);

-- name: leftovers
-- Steps beyond one, of which a task or a result is older than a lease. Each table is walked by its ids, and only
-- as far as the page goes.
SELECT x.step_id FROM (
    (SELECT step_id FROM {tasks} WHERE step_id::text > :after::text AND created_at < {now} - :lease::bigint
     ORDER BY step_id LIMIT :most::bigint)
    UNION
    (SELECT step_id FROM {results} WHERE step_id::text > :after::text AND created_at < {now} - :lease::bigint
     ORDER BY step_id LIMIT :most::bigint)
) AS x
ORDER BY x.step_id LIMIT :most::bigint;

-- name: unclaimed
-- Tasks that no worker holds, for people.
SELECT step_id FROM {tasks} WHERE step_id::text = ANY(:ids::text[]) AND claimed_at IS NULL;
