-- Workers: how they come and go, beat, and are declared dead.

-- name: beat
-- One heartbeat for all a worker holds. No row: it was declared dead.
UPDATE {schema}.workers SET beat_at = {now}, expires_at = {now} + lease_ms, running = $2
WHERE id = $1 AND state <> 'dead' RETURNING id;

-- name: held
-- What names a worker, so that it learns what it lost, what is asked of it, and what it holds without knowing.
SELECT id, claim, asked FROM {schema}.runs WHERE worker = $1;

-- name: register
-- A worker comes to life.
INSERT INTO {schema}.workers (id, host, pid, queues, workflows, concurrency, lease_ms, modules, process, schedules, limits,
    state, started_at, beat_at, expires_at)
SELECT w.*, 'live', t.now, t.now, t.now + w.lease_ms
FROM unnest($1::uuid[], $2::text[], $3::integer[], $4::text[], $5::text[], $6::integer[], $7::bigint[], $8::text[], $9::text[],
            $10::text[], $11::text[])
     AS w(id, host, pid, queues, workflows, concurrency, lease_ms, modules, process, schedules, limits)
CROSS JOIN (SELECT {now} AS now) AS t
WHERE true
ON CONFLICT (id) DO NOTHING;

-- name: worker_state
-- A worker is stopping.
UPDATE {schema}.workers AS w SET state = u.state FROM unnest($1::uuid[], $2::text[]) AS u(id, state)
WHERE w.id = u.id AND w.state <> 'dead';

-- name: keep_workers
-- Where workers ran that are about to be forgotten: runs name them for as long as they are kept.
INSERT INTO {schema}.past_workers (id, host, pid, left_at)
SELECT w.id, w.host, w.pid, {now} FROM unnest($1::uuid[]) AS u(id) {join} {schema}.workers w ON w.id = u.id
WHERE true
ON CONFLICT (id) DO NOTHING;

-- name: oldest_run
-- The first of all runs by their ids, which tell when they were started.
SELECT r.id::text FROM {schema}.runs r ORDER BY r.id LIMIT 1;

-- name: forget_past_workers
-- Workers that had left before this time, when no run was there that is kept now.
DELETE FROM {schema}.past_workers WHERE left_at < $1;

-- name: unregister
-- A worker has left in good order.
DELETE FROM {schema}.workers WHERE id IN (SELECT u.id FROM unnest($1::uuid[]) AS u(id));

-- name: workers
-- Every worker, for people.
SELECT id::text, host, pid, queues, workflows, concurrency, lease_ms,
       CASE WHEN expires_at < {now} THEN 'dead' ELSE state END AS state, running, started_at, beat_at,
       {now} - beat_at AS age_ms, modules, process, schedules, limits
FROM {schema}.workers ORDER BY started_at, id;

-- name: beats
-- The last beats of all other workers that live, for whoever watches over them.
SELECT id, beat_at, lease_ms, process FROM {schema}.workers WHERE state <> 'dead' AND id <> $1;

-- name: expire
-- The leases of workers whose processes are known to be gone are over.
UPDATE {schema}.workers AS w SET expires_at = 0 FROM unnest($1::uuid[]) AS u(id) WHERE w.id = u.id AND w.state <> 'dead';

-- name: bury
-- Workers silent beyond their lease are dead, but only those of $2, if that names any: the clock may have stepped. From
-- here on their heartbeats are refused.
UPDATE {schema}.workers SET state = 'dead'
WHERE expires_at < {now} AND state <> 'dead' AND id <> $1 AND ($2::uuid[] IS NULL OR id = ANY($2::uuid[])) RETURNING id::text AS id;

-- name: keep_dead
-- The same of dead workers with nothing left to reap.
INSERT INTO {schema}.past_workers (id, host, pid, left_at)
SELECT w.id, w.host, w.pid, {now} FROM {schema}.workers w WHERE w.state = 'dead'
AND NOT EXISTS (SELECT 1 FROM {schema}.runs r WHERE r.worker = w.id)
ON CONFLICT (id) DO NOTHING;

-- name: forget_dead
-- Dead workers with nothing left to reap.
DELETE FROM {schema}.workers AS w WHERE w.state = 'dead'
AND NOT EXISTS (SELECT 1 FROM {schema}.runs r WHERE r.worker = w.id);
