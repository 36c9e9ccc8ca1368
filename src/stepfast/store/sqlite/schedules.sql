-- Schedules: which of them are due, and what has become of their runs. {schedule} are the columns of a schedule, in the order
-- of its fields (model/schedules.py). All but the looks run in the writer's transaction, so that there is nothing to lock.

-- name: due_schedules
-- Those that a worker has to come to: of those that code declares only the ones that its own declares.
SELECT {schedule}, {now} FROM {prefix}schedules AS s
WHERE s.name IN (
    SELECT name FROM (
        SELECT name FROM {prefix}schedules WHERE due_at IS NOT NULL AND declared = 0 AND due_at <= {now}
        ORDER BY due_at LIMIT ?2)
    UNION ALL
    SELECT name FROM {prefix}schedules
    WHERE declared = 1 AND name IN (SELECT value FROM json_each(?1)) AND due_at <= {now})
ORDER BY s.due_at LIMIT ?2;

-- name: wake_schedules
-- There was no worker that could have started these: what has passed by now was missed.
UPDATE {prefix}schedules SET woken_at = {now} WHERE declared = 0 AND next_at <= {now} RETURNING name;

-- name: open_runs
-- Those of some runs that have not ended; one that went on as another ends with that one.
WITH RECURSIVE chain AS (
    SELECT r.id AS asked, r.id, r.status, CASE WHEN r.reason = 'continued' THEN trim(r.output, '"') END AS next
    FROM json_each(?) AS u CROSS JOIN {prefix}runs AS r ON r.id = u.value
    UNION ALL
    SELECT c.asked, r.id, r.status, CASE WHEN r.reason = 'continued' THEN trim(r.output, '"') END
    FROM chain AS c CROSS JOIN {prefix}runs AS r ON r.id = c.next
)
SELECT DISTINCT asked FROM chain
WHERE status NOT IN ({ended});
