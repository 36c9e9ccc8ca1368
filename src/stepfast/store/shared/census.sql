-- The census: how things stand, for whoever watches over all of it. Every count stops at a bound.

-- name: long_at_work
-- What workers, of whose runs the first $2 are looked at, have been executing for $1 milliseconds or more: steps that are
-- listed as under way, and runs that have been in the same hands since they began.
SELECT r.id::text AS id, r.workflow, p.name AS step, {now} - COALESCE(p.started_at, r.started_at) AS lasted
FROM (SELECT id, workflow, claim, started_at FROM {schema}.runs WHERE worker IS NOT NULL ORDER BY worker LIMIT $2) AS r
LEFT JOIN {schema}.progress p ON p.run_id = r.id AND p.started_at <= {now} - $1::bigint
WHERE p.run_id IS NOT NULL OR (r.claim = 1 AND r.started_at <= {now} - $1::bigint)
ORDER BY 4 DESC LIMIT 20;

-- name: census_schedules
-- Schedules whose time has come and that nobody has come to yet, those that wait longest first; and for how long.
SELECT name, declared, {now} - due_at AS late FROM {schema}.schedules
WHERE due_at IS NOT NULL AND due_at <= (SELECT {now}) ORDER BY due_at LIMIT $1;
