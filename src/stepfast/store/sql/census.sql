-- The census: counts over all of the namespace, for monitoring. Every count stops at a bound.

-- name: long_at_work(lasted bigint, most)
-- What workers, of whose runs the first `most` are looked at, have been executing for `lasted` milliseconds or more: steps that are
-- listed as under way, and runs that have been in the same hands since they began.
SELECT r.id::text AS id, r.workflow, p.name AS step, {now} - COALESCE(p.started_at, r.started_at) AS lasted
FROM (SELECT id, workflow, claim, started_at FROM {runs} WHERE worker IS NOT NULL ORDER BY worker LIMIT :most) AS r
LEFT JOIN {progress} p ON p.run_id = r.id AND p.started_at <= {now} - :lasted
WHERE p.run_id IS NOT NULL OR (r.claim = 1 AND r.started_at <= {now} - :lasted)
ORDER BY 4 DESC LIMIT 20;

-- name: census_schedules(most)
-- Schedules whose time has come and that were not executed yet, those that wait longest first; and for how long.
SELECT name, declared, {now} - due_at AS late FROM {schedules}
WHERE due_at IS NOT NULL AND due_at <= (SELECT {now}) ORDER BY due_at LIMIT :most;

-- name: census(most)
-- Runs that workers hold, that wait, that are held and that are being undone; the timer that is due first; and mail that
-- was not delivered. What has ended is not counted: the tables may hold millions of that.
SELECT {now} AS now_ms,
       (SELECT count(*) FROM (SELECT 1 FROM {runs} WHERE worker IS NOT NULL LIMIT :most) AS x) AS running,
       (SELECT count(*) FROM (SELECT 1 FROM {runs} {index runs_at_rest} WHERE status = 'waiting'
            AND status IN ('waiting', 'paused', 'failed', 'cancelled', 'compensating', 'compensated')
            AND dag_id IS NULL LIMIT :most) AS x) AS waiting,
       (SELECT count(*) FROM (SELECT 1 FROM {runs} {index runs_at_rest} WHERE status = 'paused'
            AND status IN ('waiting', 'paused', 'failed', 'cancelled', 'compensating', 'compensated')
            AND dag_id IS NULL LIMIT :most) AS x) AS paused,
       (SELECT count(*) FROM (SELECT 1 FROM {runs} {index runs_at_rest} WHERE status = 'compensating'
            AND status IN ('waiting', 'paused', 'failed', 'cancelled', 'compensating', 'compensated')
            AND dag_id IS NULL LIMIT :most) AS x) AS compensating,
       (SELECT min(visible_at) FROM {runs} WHERE visible_at IS NOT NULL) AS next_due,
       (SELECT count(*) FROM (SELECT 1 FROM {mailbox} WHERE NOT delivered LIMIT :most) AS x) AS undelivered;
