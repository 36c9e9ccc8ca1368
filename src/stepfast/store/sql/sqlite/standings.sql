-- Where runs stand: read, decided by the functions of model/, and written back, in the writer's transaction. {standing} are
-- the columns of a standing, in its order (model/run_state.py).

-- name: lock_due
-- Runs whose timer has gone off. What is paused only if it is late.
SELECT json_group_array(json_array({now}, {standing})) FROM (
    SELECT rowid AS row FROM {prefix}runs WHERE visible_at <= {now} AND (status <> 'paused' OR deadline_at <= {now})
    ORDER BY visible_at LIMIT ?
) AS due CROSS JOIN {prefix}runs AS r ON r.rowid = due.row;

-- name: lock_lost
-- A bounded batch of runs that name no living worker.
SELECT r.id FROM {prefix}runs AS r INDEXED BY {prefix}runs_worker
WHERE r.worker IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM {prefix}workers w WHERE w.id = r.worker AND w.state <> 'dead')
LIMIT ?;
