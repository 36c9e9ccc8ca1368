-- Schedules: how they are stored and read. {schedule} are the columns of a schedule, in the order of its fields
-- (model/schedules.py).

-- name: schedules
-- All of them, or those of some names.
SELECT {schedule}, {now} AS now_ms FROM {schema}.schedules s WHERE $1::text[] IS NULL OR name = ANY($1::text[]) ORDER BY name;

-- name: lock_schedules
-- Schedules by name, waited for. The clock is read when the locks are there.
WITH locked AS MATERIALIZED (
    SELECT s.* FROM {schema}.schedules s WHERE s.name = ANY($1::text[]) ORDER BY s.name FOR NO KEY UPDATE OF s
)
SELECT {schedule}, {now} AS now_ms FROM locked s;

-- name: lock_free_schedules
-- The same, but those that somebody else holds are stepped over: who holds one starts its runs just now.
WITH locked AS MATERIALIZED (
    SELECT s.* FROM {schema}.schedules s WHERE s.name = ANY($1::text[]) ORDER BY s.name FOR NO KEY UPDATE OF s SKIP LOCKED
)
SELECT {schedule}, {now} AS now_ms FROM locked s;

-- name: schedule_clock
-- The time, for schedules that are to be made.
SELECT {now} AS now_ms;

-- name: insert_schedules
-- New ones. If one of the name is there, it stays as it is.
INSERT INTO {schema}.schedules (name, workflow, cron, every_ms, tz, input, format, options, missed, overlap, jitter_ms,
                                declared, paused, next_at, due_at, woken_at, last_at, last_run, error, created_at)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::text[], $7::smallint[], $8::text[],
                     $9::text[], $10::text[], $11::bigint[], $12::boolean[], $13::boolean[], $14::bigint[], $15::bigint[],
                     $16::bigint[], $17::bigint[], $18::uuid[], $19::text[], $20::bigint[])
     AS n(name, workflow, cron, every_ms, tz, input, format, options, missed, overlap, jitter_ms, declared, paused, next_at,
          due_at, woken_at, last_at, last_run, error, created_at)
ORDER BY name
ON CONFLICT (name) DO NOTHING;

-- name: change_schedules
-- What was decided of schedules that are locked in this transaction. The last column is not written: a schedule is made once.
UPDATE {schema}.schedules AS s
SET workflow = n.workflow, cron = n.cron, every_ms = n.every_ms, tz = n.tz, input = n.input, format = n.format,
    options = n.options, missed = n.missed, overlap = n.overlap, jitter_ms = n.jitter_ms, declared = n.declared,
    paused = n.paused, next_at = n.next_at, due_at = n.due_at, woken_at = n.woken_at, last_at = n.last_at,
    last_run = n.last_run, error = n.error
FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::text[], $7::smallint[], $8::text[], $9::text[],
            $10::text[], $11::bigint[], $12::boolean[], $13::boolean[], $14::bigint[], $15::bigint[], $16::bigint[],
            $17::bigint[], $18::uuid[], $19::text[], $20::bigint[])
     AS n(name, workflow, cron, every_ms, tz, input, format, options, missed, overlap, jitter_ms, declared, paused, next_at,
          due_at, woken_at, last_at, last_run, error, created_at)
WHERE s.name = n.name;

-- name: delete_schedules
-- Schedules that are no more. Their runs stay.
DELETE FROM {schema}.schedules WHERE name IN (SELECT u.name FROM unnest($1::text[]) AS u(name));

-- name: declaring
-- What the code of live workers declares; of one of them ($1), those that came before it. Of several that come at the same
-- time one is the first.
SELECT w.schedules FROM {schema}.workers w LEFT JOIN {schema}.workers me ON me.id = $1::uuid
WHERE w.state = 'live' AND w.expires_at >= {now}
  AND ($1::uuid IS NULL OR me.id IS NULL OR (w.started_at, w.id) < (me.started_at, me.id));

-- name: runs_by_key
-- The runs that have these keys.
SELECT r.workflow, r.key, r.id::text FROM unnest($1::text[], $2::text[]) AS u(workflow, key)
{join} {schema}.runs r ON r.workflow = u.workflow AND r.key = u.key AND r.key IS NOT NULL;

-- name: open_runs
-- Those of some runs that have not ended; one that went on as another ends with that one.
WITH RECURSIVE chain AS (
    SELECT r.id AS named, r.id, r.status, CASE WHEN r.reason = 'continued' THEN {went_on} END AS next
    FROM {schema}.runs r WHERE r.id = ANY($1::uuid[])
    UNION ALL
    SELECT c.named, r.id, r.status, CASE WHEN r.reason = 'continued' THEN {went_on} END
    FROM chain c {join} {schema}.runs r ON r.id = c.next
)
SELECT DISTINCT named::text FROM chain
WHERE status NOT IN ({ended});
