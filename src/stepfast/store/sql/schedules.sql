-- Schedules: how they are stored and read. {schedule} are the columns of a schedule, in the order of its fields
-- (model/schedules.py).

-- name: schedules(names text[])
-- All of them, or those of some names.
SELECT {schedule}, {now} AS now_ms FROM {schedules} s WHERE :names IS NULL OR name {in names} ORDER BY name;

-- name: lock_schedules(names text[])
-- Schedules by name, waited for. The clock is read when the locks are there.
WITH locked {once} (
    SELECT s.* FROM {schedules} s WHERE s.name {in names} ORDER BY s.name {lock s}
)
SELECT {schedule}, {now} AS now_ms FROM locked s;

-- name: lock_free_schedules(names text[])
-- The same, but those that are locked are stepped over: another process starts their runs just now.
WITH locked {once} (
    SELECT s.* FROM {schedules} s WHERE s.name {in names} ORDER BY s.name {lock s skip}
)
SELECT {schedule}, {now} AS now_ms FROM locked s;

-- name: schedule_clock
-- The time, for schedules that are to be made.
SELECT {now} AS now_ms;

-- name: insert_schedules(n(name text, workflow text, cron text, every_ms bigint, tz text, input text, format smallint,
--     options text, missed text, overlap text, jitter_ms bigint, declared boolean, paused boolean, next_at bigint,
--     due_at bigint, woken_at bigint, last_at bigint, last_run uuid, error text, created_at bigint))
-- New ones. If one of the name is there, it stays as it is.
INSERT INTO {schedules} (name, workflow, cron, every_ms, tz, input, format, options, missed, overlap, jitter_ms,
                                declared, paused, next_at, due_at, woken_at, last_at, last_run, error, created_at)
SELECT * FROM {rows n}
ORDER BY name
{skip name};

-- name: change_schedules(n(name text, workflow text, cron text, every_ms bigint, tz text, input text, format smallint,
--     options text, missed text, overlap text, jitter_ms bigint, declared boolean, paused boolean, next_at bigint,
--     due_at bigint, woken_at bigint, last_at bigint, last_run uuid, error text, created_at bigint))
-- What was decided of schedules that are locked in this transaction. The last column is not written: a schedule is made once.
{update schedules s, n}
SET workflow = n.workflow, cron = n.cron, every_ms = n.every_ms, tz = n.tz, input = n.input, format = n.format,
    options = n.options, missed = n.missed, overlap = n.overlap, jitter_ms = n.jitter_ms, declared = n.declared,
    paused = n.paused, next_at = n.next_at, due_at = n.due_at, woken_at = n.woken_at, last_at = n.last_at,
    last_run = n.last_run, error = n.error
{from n}
WHERE s.name = n.name;

-- name: delete_schedules(u(name text))
-- Schedules that are no more. Their runs stay.
{delete schedules by u};

-- name: declaring(worker uuid)
-- What the code of live workers declares; of one of them (`worker`), those that came before it. Of several that come at the same
-- time one is the first.
SELECT w.schedules FROM {workers} w LEFT JOIN {workers} me ON me.id = :worker
WHERE w.state = 'live' AND w.expires_at >= {now}
  AND (:worker IS NULL OR me.id IS NULL OR (w.started_at, w.id) < (me.started_at, me.id));

-- name: runs_by_key(u(workflow text, key text))
-- The runs that have these keys.
SELECT r.workflow, r.key, r.id::text FROM {rows u}
{join} {runs} r ON r.workflow = u.workflow AND r.key = u.key AND r.key IS NOT NULL;

-- name: open_runs(ids uuid[])
-- Those of some runs that have not ended; one that went on as another ends with that one.
WITH RECURSIVE chain AS (
    SELECT r.id AS named, r.id, r.status, CASE WHEN r.reason = 'continued' THEN {went_on} END AS next
    FROM {runs} r WHERE r.id {in ids}
    UNION ALL
    SELECT c.named, r.id, r.status, CASE WHEN r.reason = 'continued' THEN {went_on} END
    FROM chain c {join} {runs} r ON r.id = c.next
)
SELECT DISTINCT named::text FROM chain
WHERE status NOT IN ({ended});

-- name: due_schedules(names text[], most)
-- Those that a worker has to come to: of those that code declares only the ones that its own declares.
SELECT {schedule}, {now} FROM {schedules} s
WHERE s.name IN (
    SELECT o.name FROM (
        SELECT name FROM {schedules} WHERE due_at IS NOT NULL AND NOT declared AND due_at <= {now}
        ORDER BY due_at LIMIT :most) AS o
    UNION ALL
    SELECT d.name FROM {schedules} d WHERE d.declared AND d.name {in names} AND d.due_at <= {now})
ORDER BY s.due_at LIMIT :most;
