-- Schedules: which of them are due, and what has become of their runs. {schedule} are the columns of a schedule, in the order
-- of its fields (model/schedules.py).

-- override: due_schedules
-- Those that a worker has to come to: of those that code declares only the ones that its own declares. These are found by
-- their names: of others that sleep there may be many, which have been due for long.
WITH clock AS MATERIALIZED (
    SELECT {now} AS now
), due AS MATERIALIZED (
    (SELECT name, due_at FROM {schema}.schedules
     WHERE due_at IS NOT NULL AND NOT declared AND due_at <= (SELECT now FROM clock) ORDER BY due_at LIMIT $2)
    UNION ALL
    SELECT name, due_at FROM {schema}.schedules
    WHERE declared AND name = ANY($1::text[]) AND due_at <= (SELECT now FROM clock)
)
SELECT {schedule}, (SELECT now FROM clock) AS now_ms
FROM (SELECT name FROM due ORDER BY due_at LIMIT $2) AS d JOIN {schema}.schedules s ON s.name = d.name
ORDER BY s.due_at;

-- name: wake_schedules
-- There was no worker that could have started these: what has passed by now was missed.
WITH clock AS MATERIALIZED (
    SELECT {now} AS now
), slept AS MATERIALIZED (
    SELECT name FROM {schema}.schedules WHERE NOT declared AND next_at <= (SELECT now FROM clock)
    ORDER BY name FOR NO KEY UPDATE
)
UPDATE {schema}.schedules s SET woken_at = (SELECT now FROM clock) FROM slept WHERE s.name = slept.name
RETURNING s.name;
