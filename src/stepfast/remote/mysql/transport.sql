-- What workers do ----------------------------------------------------------------------------------------------------

-- name: due
-- The oldest tasks of a group that nobody holds, or that somebody has held for longer than a lease. Rows that another
-- worker is just claiming are passed over. The group is compared twice: by the index, and exactly, because tables that
-- others have made may take capital letters for small ones.
SELECT step_id, run_id, seq, name, input, attempt, created_at, {now} AS now
FROM {tasks}
WHERE grp = :grp AND CONVERT(grp USING utf8mb4) = :grp COLLATE utf8mb4_bin AND status = 'pending'
  AND (claimed_at IS NULL OR claimed_at < {now} - :lease)
ORDER BY created_at
LIMIT :most
FOR UPDATE SKIP LOCKED;

-- name: stamp
-- Take them, or hold them for another lease. Their rows are locked already.
UPDATE {tasks} SET claimed_by = :worker, claimed_at = {now} WHERE step_id IN :ids;

-- name: held
-- Those of the tasks that this worker still holds, locked in one order, so that nobody waits for each other.
SELECT step_id, attempt, run_id, seq FROM {tasks} WHERE step_id IN :ids AND claimed_by = :worker ORDER BY step_id
FOR UPDATE;

-- name: named
-- Every task of a group that names this worker, whether it knows or not.
SELECT step_id, attempt FROM {tasks} WHERE grp = :grp AND status = 'pending' AND claimed_by = :worker ORDER BY step_id
FOR UPDATE;

-- name: let_go
-- Give tasks back, so that another worker takes them at once. Their rows are locked already.
UPDATE {tasks} SET claimed_by = NULL, claimed_at = NULL WHERE step_id IN :ids;

-- name: put_results
-- What came of tasks. A failure that an earlier attempt has left gives way; what was completed stays. Columns are set
-- from left to right, so that the status, which decides, comes last.
INSERT INTO {results} (step_id, run_id, seq, output, error, started_at, status, created_at)
VALUES
    (:step_id, :run_id, :seq, :output, :error, :started_at, :status, {now})
ON DUPLICATE KEY UPDATE
    output = IF(status = 'failed', VALUES(output), output),
    error = IF(status = 'failed', VALUES(error), error),
    started_at = IF(status = 'failed', VALUES(started_at), started_at),
    claimed_by = IF(status = 'failed', NULL, claimed_by),
    claimed_at = IF(status = 'failed', NULL, claimed_at),
    created_at = IF(status = 'failed', VALUES(created_at), created_at),
    status = IF(status = 'failed', VALUES(status), status);

-- name: delete_tasks
-- Tasks that are done, or that nobody waits for any more. Their rows are locked already.
DELETE FROM {tasks} WHERE step_id IN :ids;

-- What engines do -----------------------------------------------------------------------------------------------------

-- name: put_tasks
-- Send tasks out. A row that an earlier attempt has left is replaced, whoever holds it. The attempt, which decides, is
-- set last.
INSERT INTO {tasks} (step_id, run_id, seq, name, grp, input, attempt, status, created_at)
VALUES
    (:step_id, :run_id, :seq, :name, :grp, :input, :attempt, 'pending', {now})
ON DUPLICATE KEY UPDATE
    name = IF(VALUES(attempt) > attempt, VALUES(name), name),
    grp = IF(VALUES(attempt) > attempt, VALUES(grp), grp),
    input = IF(VALUES(attempt) > attempt, VALUES(input), input),
    claimed_by = IF(VALUES(attempt) > attempt, NULL, claimed_by),
    claimed_at = IF(VALUES(attempt) > attempt, NULL, claimed_at),
    created_at = IF(VALUES(attempt) > attempt, VALUES(created_at), created_at),
    attempt = IF(VALUES(attempt) > attempt, VALUES(attempt), attempt);

-- name: forget_failures
-- Failures of attempts before the one that is sent out now.
DELETE FROM {results} WHERE step_id IN :ids AND status = 'failed';

-- name: results
-- What has come of these steps, and of no others.
SELECT step_id, run_id, seq, status, output, error, started_at, created_at FROM {results} WHERE step_id IN :ids
ORDER BY created_at, step_id;

-- name: lock_results
-- The same, to be removed: which of them are still those that were read.
SELECT step_id, status, created_at FROM {results} WHERE step_id IN :ids ORDER BY step_id FOR UPDATE;

-- name: delete_results
-- Results that were recorded. Their rows are locked already.
DELETE FROM {results} WHERE step_id IN :ids;

-- name: not_begun
-- Tasks that no worker holds; one that is just being claimed is passed over.
SELECT step_id FROM {tasks} WHERE step_id IN :ids AND (claimed_at IS NULL OR claimed_at < {now} - :lease)
ORDER BY step_id
FOR UPDATE SKIP LOCKED;

-- name: present
-- Steps of which there is a task or a result. One statement, so that a step on its way from one to the other is seen.
SELECT step_id FROM {tasks} WHERE step_id IN :ids
UNION ALL
SELECT step_id FROM {results} WHERE step_id IN :ids;
