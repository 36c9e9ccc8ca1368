-- Workers: how they come and go, beat, ask which duties have work, and are declared dead.

-- name: held
-- What names a worker: the fence of a flush, and what a heartbeat brings back. Answered from the index alone.
SELECT id, claim, asked FROM {prefix}runs WHERE worker = ?;

-- name: beat
-- One heartbeat for all a worker holds. No row: it was declared dead.
UPDATE {prefix}workers SET beat_at = {now}, expires_at = {now} + lease_ms, running = ?
WHERE id = ? AND state <> 'dead' RETURNING id;

-- name: register
-- A worker comes to life.
INSERT INTO {prefix}workers (id, host, pid, queues, workflows, concurrency, lease_ms, modules, process, schedules, limits,
    state, started_at, beat_at, expires_at)
WITH w(id, host, pid, queues, workflows, concurrency, lease_ms, modules, process, schedules, limits)
AS (VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?))
SELECT w.*, 'live', {now}, {now}, {now} + w.lease_ms FROM w
WHERE true
ON CONFLICT (id) DO NOTHING;

-- name: worker_state
-- A worker is stopping.
WITH u(id, state) AS (VALUES (?, ?))
UPDATE {prefix}workers AS w SET state = u.state FROM u WHERE w.id = u.id AND w.state <> 'dead';

-- name: unregister
-- A worker has left in good order.
WITH worker(id) AS (VALUES (?))
DELETE FROM {prefix}workers WHERE id IN (SELECT id FROM worker);

-- name: workers
-- Every worker, for people.
SELECT id, host, pid, queues, workflows, concurrency, lease_ms,
       CASE WHEN expires_at < {now} THEN 'dead' ELSE state END AS state, running, started_at, beat_at,
       {now} - beat_at AS age_ms, modules, process, schedules, limits
FROM {prefix}workers ORDER BY started_at, id;

-- name: duties
-- The one question of an idle worker, but for the lanes and suspects. Of the schedules that code declares only those count
-- which the worker's own declares.
SELECT {now},
       (SELECT min(visible_at) FROM {prefix}runs WHERE visible_at IS NOT NULL),
       EXISTS (SELECT 1 FROM {prefix}mailbox INDEXED BY {prefix}mailbox_undelivered WHERE delivered = 0),
       (SELECT min(due_at) FROM (
            SELECT min(due_at) AS due_at FROM {prefix}schedules WHERE due_at IS NOT NULL AND declared = 0
            UNION ALL
            SELECT due_at FROM {prefix}schedules WHERE declared = 1 AND name IN (SELECT value FROM json_each(?)))),
       (SELECT min(due_at) FROM {prefix}remote_steps INDEXED BY {prefix}remote_steps_due WHERE due_at IS NOT NULL);

-- name: gates
-- The queues that are paused or limited, and which of the limited ones have runs that workers have died with.
SELECT g.name, g.paused, CASE WHEN g.limited THEN
           (SELECT json_group_array(DISTINCT r.workflow) FROM {prefix}runs r
            WHERE r.place IS NOT NULL AND r.losses >= 2 AND r.queue = g.name) ELSE '[]' END
FROM {prefix}queues g WHERE g.paused OR g.limited;

-- name: next_lane
-- The lane after a given one: asked again and again, it skips through the index from lane to lane.
SELECT queue, workflow, priority FROM {prefix}runs
WHERE place IS NOT NULL AND losses < 2 AND (queue, workflow, priority) > (?, ?, ?)
ORDER BY queue, workflow, priority LIMIT 1;

-- name: beats
-- The last beats of all other workers that live, for whoever watches over them.
SELECT id, beat_at, lease_ms, process FROM {prefix}workers WHERE state <> 'dead' AND id <> ?;

-- name: expire
-- The leases of workers whose processes are known to be gone are over.
WITH u(id) AS (VALUES (?))
UPDATE {prefix}workers SET expires_at = 0 WHERE id IN (SELECT id FROM u) AND state <> 'dead';

-- name: bury
-- Workers silent beyond their lease are dead, but only those of a list, if there is one: the machine's clock may have
-- stepped. From here on their heartbeats are refused.
UPDATE {prefix}workers SET state = 'dead'
WHERE expires_at < {now} AND state <> 'dead' AND id <> ?1
  AND (?2 IS NULL OR id IN (SELECT value FROM json_each(?2))) RETURNING id;

-- name: forget_dead
-- Dead workers with nothing left to reap.
DELETE FROM {prefix}workers WHERE state = 'dead'
AND NOT EXISTS (SELECT 1 FROM {prefix}runs r WHERE r.worker = {prefix}workers.id);
