-- Schedules: which of them are due, and what has become of their runs. {schedule} are the columns of a schedule, in the order
-- of its fields (model/schedules.py). All but the looks run in the writer's transaction, so that there is nothing to lock.

-- name: due_schedules
-- Those that a worker has to come to: of those that code declares only the ones that its own declares.
SELECT {schedule}, {now} FROM {prefix}schedules AS s
WHERE s.name IN (
    SELECT name FROM (
        SELECT name FROM {prefix}schedules WHERE due_at IS NOT NULL AND NOT declared AND due_at <= {now}
        ORDER BY due_at LIMIT ?2)
    UNION ALL
    SELECT name FROM {prefix}schedules
    WHERE declared = 1 AND name IN (SELECT value FROM json_each(?1)) AND due_at <= {now})
ORDER BY s.due_at LIMIT ?2;

-- name: wake_schedules
-- There was no worker that could have started these: what has passed by now was missed.
UPDATE {prefix}schedules SET woken_at = {now} WHERE NOT declared AND next_at <= {now} RETURNING name;
