-- Where runs stand: read, decided by the functions of model/, and written back, in the writer's transaction. {standing} are
-- the columns of a standing, in its order (model/run_state.py).

-- name: lock_runs
-- Runs by their ids. Nobody comes in between: there is nothing to lock.
SELECT json_group_array(json_array({now}, {standing}))
FROM json_each(?) AS u CROSS JOIN {prefix}runs AS r ON r.id = u.value;

-- name: inherit_tags
-- The tags of runs that went on as another are their successors' as well, for finding them.
INSERT INTO {prefix}run_tags (tag, run_id)
WITH pair(ended, successor) AS (VALUES (?, ?))
SELECT tag.value, pair.successor FROM pair CROSS JOIN {prefix}runs AS r ON r.id = pair.ended
CROSS JOIN json_each(CASE WHEN NOT json_valid(r.tags) THEN '[]' WHEN json_type(r.tags) = 'array' THEN r.tags ELSE '[]' END) AS tag
WHERE r.tags IS NOT NULL
ON CONFLICT DO NOTHING;

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
