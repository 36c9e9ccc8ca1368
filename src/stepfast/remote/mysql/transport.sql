-- What workers do ----------------------------------------------------------------------------------------------------

-- name: due
-- The oldest tasks of a group that no worker holds, or that one has held for longer than a lease. Rows that another
-- worker is claiming are skipped. The group is compared twice: by the index, and exactly, because tables that
-- other programs have made may ignore the case of letters.
SELECT step_id, run_id, seq, name, input, attempt, created_at, {now} AS now
FROM {tasks}
WHERE grp = :grp AND CONVERT(grp USING utf8mb4) = CONVERT(:grp USING utf8mb4) COLLATE utf8mb4_bin AND status = 'pending'
  AND (claimed_at IS NULL OR claimed_at < {now} - :lease)
ORDER BY created_at
LIMIT :most
FOR UPDATE SKIP LOCKED;

-- name: stamp
-- Claim tasks, or renew the lease on them. Their rows are locked already.
UPDATE {tasks} SET claimed_by = :worker, claimed_at = {now} WHERE step_id IN :ids;

-- name: held
-- Those of the tasks that this worker still holds, locked in one order, so that workers do not wait for each other.
SELECT step_id, attempt, run_id, seq FROM {tasks} WHERE step_id IN :ids AND claimed_by = :worker ORDER BY step_id
FOR UPDATE;

-- name: named
-- Every task of a group that names this worker, also those of a claim whose answer was lost.
SELECT step_id, attempt FROM {tasks} WHERE grp = :grp AND status = 'pending' AND claimed_by = :worker ORDER BY step_id
FOR UPDATE;

-- name: let_go
-- Give tasks back, so that another worker takes them at once. Their rows are locked already.
UPDATE {tasks} SET claimed_by = NULL, claimed_at = NULL WHERE step_id IN :ids;

-- name: lock_failures
-- Failures of earlier attempts, and how long ago an engine began to read each, if one has.
SELECT step_id, {now} - claimed_at AS age FROM {results} WHERE step_id IN :ids AND status = 'failed' ORDER BY step_id
FOR UPDATE;

-- name: put_results
-- Results of tasks; existing results stay. IGNORE would do the same, and cut off what is too long.
INSERT INTO {results} (step_id, run_id, seq, status, output, error, started_at, created_at)
VALUES
    (:step_id, :run_id, :seq, :status, :output, :error, :started_at, {now})
ON DUPLICATE KEY UPDATE step_id = {results}.step_id;

-- name: delete_tasks
-- Tasks that are done, or whose result is not needed any more. Their rows are locked already.
DELETE FROM {tasks} WHERE step_id IN :ids;

-- What engines do -----------------------------------------------------------------------------------------------------

-- name: lock_tasks
-- Existing tasks, also those that a worker holds.
SELECT step_id, attempt FROM {tasks} WHERE step_id IN :ids ORDER BY step_id FOR UPDATE;

-- name: put_tasks
-- Send tasks; existing ones stay.
INSERT INTO {tasks} (step_id, run_id, seq, name, grp, input, attempt, status, created_at)
VALUES
    (:step_id, :run_id, :seq, :name, :grp, :input, :attempt, 'pending', {now})
ON DUPLICATE KEY UPDATE step_id = {tasks}.step_id;

-- name: results
-- The results of these steps.
SELECT step_id, run_id, seq, status, output, error, started_at, created_at FROM {results} WHERE step_id IN :ids
ORDER BY created_at, step_id;

-- name: lock_results
-- Results to be removed, to compare them with those that were read.
SELECT step_id, status, created_at FROM {results} WHERE step_id IN :ids ORDER BY step_id FOR UPDATE;

-- name: delete_results
-- Results that were recorded. Their rows are locked already.
DELETE FROM {results} WHERE step_id IN :ids;

-- name: not_begun
-- Tasks that no worker holds; those that are being claimed are skipped.
SELECT step_id FROM {tasks} WHERE step_id IN :ids AND (claimed_at IS NULL OR claimed_at < {now} - :lease)
ORDER BY step_id
FOR UPDATE SKIP LOCKED;

-- name: present
-- Steps of which there is a task or a result. One statement, so that a step on its way from one to the other is seen.
SELECT step_id FROM {tasks} WHERE step_id IN :ids
UNION ALL
SELECT step_id FROM {results} WHERE step_id IN :ids;

-- name: leftovers
-- Steps beyond one, of which a task or a result is older than a lease. Each table is walked by its ids, and only
-- as far as the page goes.
(SELECT step_id FROM {tasks} WHERE step_id > :after AND created_at < {now} - :lease ORDER BY step_id LIMIT :most)
UNION
(SELECT step_id FROM {results} WHERE step_id > :after AND created_at < {now} - :lease ORDER BY step_id LIMIT :most)
ORDER BY step_id LIMIT :most;

-- name: unclaimed
-- Tasks that no worker holds, for people.
SELECT step_id FROM {tasks} WHERE step_id IN :ids AND claimed_at IS NULL;
