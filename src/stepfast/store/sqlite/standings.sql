-- Where runs stand: read, decided by the functions of model/, and written back, in the writer's transaction. {standing} are
-- the columns of a standing, in its order (model/standing.py).

-- name: lock_runs
-- Runs by their ids. Nobody comes in between: there is nothing to lock.
SELECT json_group_array(json_array({now}, {standing}))
FROM json_each(?) AS u CROSS JOIN {prefix}runs AS r ON r.id = u.value;

-- name: lock_free
-- The same: nobody holds a row here.
SELECT json_group_array(json_array({now}, {standing}))
FROM json_each(?) AS u CROSS JOIN {prefix}runs AS r ON r.id = u.value;

-- name: change
-- What was decided of runs. Payloads are not read for a decision: they are written only if they were decided, too.
WITH c(id, status, reason, waiting_for, asked, held, claim, place, visible_at, deadline_at, expires_at, held_due,
       paused_at, wakes, ends, awaits, linger_ms, attempt, first_attempt, losses, undoing, failing, pending, met,
       ready_at, completed_at, version, forget, has_output, output, output_format, has_error, error)
AS (VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?))
UPDATE {prefix}runs AS r
SET status = c.status, reason = c.reason, waiting_for = c.waiting_for, asked = c.asked,
    worker = CASE WHEN c.held THEN r.worker END, token = CASE WHEN c.held THEN r.token END, claim = c.claim,
    place = c.place, visible_at = c.visible_at, deadline_at = c.deadline_at, expires_at = c.expires_at,
    held_due = c.held_due, paused_at = c.paused_at, wakes = c.wakes, ends = c.ends, awaits = c.awaits,
    linger_ms = c.linger_ms, attempt = c.attempt, first_attempt = c.first_attempt, losses = c.losses,
    undoing = c.undoing, failing = c.failing, pending = c.pending, met = c.met, ready_at = c.ready_at,
    completed_at = c.completed_at, version = c.version, forget = c.forget,
    output = CASE WHEN c.has_output THEN c.output ELSE r.output END,
    output_format = CASE WHEN c.has_output THEN c.output_format ELSE r.output_format END,
    error = CASE WHEN c.has_error THEN c.error ELSE r.error END
FROM c WHERE r.id = c.id;

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
