-- Schedules: how they are stored and read, and which of them are due. {schedule} are the columns of a schedule, in the order
-- of its fields (model/schedules.py). All but the looks run in the writer's transaction, so that there is nothing to lock.

-- name: schedules
-- All of them, or those of some names.
SELECT {schedule}, {now} FROM {prefix}schedules AS s
WHERE ?1 IS NULL OR name IN (SELECT value FROM json_each(?1)) ORDER BY name;

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

-- name: lock_schedules
-- Schedules by name.
SELECT {schedule}, {now} FROM {prefix}schedules AS s WHERE s.name IN (SELECT value FROM json_each(?)) ORDER BY s.name;

-- name: lock_free_schedules
-- The same: nobody holds a row here.
SELECT {schedule}, {now} FROM {prefix}schedules AS s WHERE s.name IN (SELECT value FROM json_each(?)) ORDER BY s.name;

-- name: schedule_clock
-- The time, for schedules that are to be made.
SELECT {now};

-- name: insert_schedules
-- New ones. If one of the name is there, it stays as it is.
INSERT INTO {prefix}schedules (name, workflow, cron, every_ms, tz, input, format, options, missed, overlap, jitter_ms,
                               declared, paused, next_at, due_at, woken_at, last_at, last_run, error, created_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING;

-- name: change_schedules
-- What was decided of schedules. The last column is not written: a schedule is made once.
WITH n(name, workflow, cron, every_ms, tz, input, format, options, missed, overlap, jitter_ms, declared, paused, next_at,
       due_at, woken_at, last_at, last_run, error, created_at)
AS (VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?))
UPDATE {prefix}schedules AS s
SET workflow = n.workflow, cron = n.cron, every_ms = n.every_ms, tz = n.tz, input = n.input, format = n.format,
    options = n.options, missed = n.missed, overlap = n.overlap, jitter_ms = n.jitter_ms, declared = n.declared,
    paused = n.paused, next_at = n.next_at, due_at = n.due_at, woken_at = n.woken_at, last_at = n.last_at,
    last_run = n.last_run, error = n.error
FROM n WHERE s.name = n.name;

-- name: delete_schedules
-- Schedules that are no more. Their runs stay.
WITH gone(name) AS (VALUES (?))
DELETE FROM {prefix}schedules WHERE name IN (SELECT name FROM gone);

-- name: declaring
-- What the code of live workers declares; of one of them, those that came before it. Of several that come at the same
-- time one is the first.
SELECT w.schedules FROM {prefix}workers AS w LEFT JOIN {prefix}workers AS me ON me.id = ?1
WHERE w.state = 'live' AND w.expires_at >= {now}
  AND (?1 IS NULL OR me.id IS NULL OR (w.started_at, w.id) < (me.started_at, me.id));

-- name: wake_schedules
-- There was no worker that could have started these: what has passed by now was missed.
UPDATE {prefix}schedules SET woken_at = {now} WHERE declared = 0 AND next_at <= {now} RETURNING name;

-- name: runs_by_key
-- The runs that have these keys ([workflow, key] of each).
SELECT r.workflow, r.key, r.id FROM json_each(?) AS u CROSS JOIN {prefix}runs AS r
    ON r.workflow = json_extract(u.value, '$[0]') AND r.key = json_extract(u.value, '$[1]')
WHERE r.key IS NOT NULL;

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
