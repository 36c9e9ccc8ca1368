-- Workers: how they come and go, beat, and are declared dead; and what an idle one asks.

-- name: duties(schedules text[])
-- Which duties have work, but for lanes and suspects. Of the schedules that code declares only those count which the
-- worker's own declares.
SELECT {now} AS now_ms,
       (SELECT min(r.visible_at) FROM {runs} r WHERE r.visible_at IS NOT NULL) AS next_due,
       (SELECT min(m.sent_at) FROM {mailbox} m {index mailbox_undelivered} WHERE NOT m.delivered) AS mail,
       (SELECT min(h.completed_at) FROM {runs} h WHERE h.hands_on AND h.completed_at IS NOT NULL) AS names,
       (SELECT min(d.due_at) FROM (
            SELECT min(s.due_at) AS due_at FROM {schedules} s WHERE s.due_at IS NOT NULL AND NOT s.declared
            UNION ALL
            SELECT s.due_at FROM {schedules} s WHERE s.declared AND s.name {in schedules}) AS d) AS next_schedule,
       (SELECT min(t.due_at) FROM {remote_steps} t {index remote_steps_due} WHERE t.due_at IS NOT NULL) AS next_remote,
       EXISTS (SELECT 1 FROM {events} e WHERE e.number IS NULL)
       OR EXISTS (SELECT 1 FROM {event_order} o WHERE o.matched < o.given) AS events,
       (SELECT min(a.due_at) FROM {event_starts} a WHERE a.due_at IS NOT NULL) AS next_start;

-- name: gates
-- The queues that are paused or limited.
SELECT name, paused, limited FROM {queues} q WHERE paused OR limited;

-- name: next_lane(queue, workflow, priority integer)
-- The lane after one, or several of them in their order: executed again and again, it skips through the index from lane to
-- lane.
SELECT queue, workflow, priority FROM {runs}
WHERE place IS NOT NULL AND losses < 2 AND (queue, workflow, priority) > (:queue, :workflow, :priority)
ORDER BY queue, workflow, priority LIMIT 1;

-- name: beat(worker, running)
-- One heartbeat for all a worker holds. No row: it was declared dead.
UPDATE {workers} SET beat_at = {stamp}, expires_at = {stamp} + lease_ms, running = :running
WHERE id = :worker AND state <> 'dead' RETURNING id;

-- name: held(worker)
-- What names a worker, so that it learns what it lost, what is asked of it, and what it holds without knowing.
SELECT id, claim, asked FROM {runs} WHERE worker = :worker;

-- name: register(w(id uuid, host text, pid integer, queues text, workflows text, concurrency integer, lease_ms bigint,
--     modules text, process text, schedules text, limits text))
-- A worker comes to life.
INSERT INTO {workers} (id, host, pid, queues, workflows, concurrency, lease_ms, modules, process, schedules, limits,
    state, started_at, beat_at, expires_at)
SELECT w.*, 'live', t.now, t.now, t.now + w.lease_ms
FROM {rows w}
CROSS JOIN (SELECT {now} AS now) AS t
WHERE true
{skip id};

-- name: worker_state(u(id uuid, state text))
-- A worker is stopping.
{update workers w, u} SET state = u.state {from u}
WHERE w.id = u.id AND w.state <> 'dead';

-- name: keep_workers(u(id uuid))
-- Where workers ran that are about to be forgotten: runs name them for as long as they are kept.
INSERT INTO {past_workers} (id, host, pid, left_at)
SELECT w.id, w.host, w.pid, {now} FROM {rows u} {join} {workers} w ON w.id = u.id
WHERE true
{skip id};

-- name: oldest_run
-- The first of all runs by their ids, which tell when they were started.
SELECT r.id::text FROM {runs} r ORDER BY r.id LIMIT 1;

-- name: forget_past_workers(before)
-- Workers that had left before this time, when no run was there that is kept now.
DELETE FROM {past_workers} WHERE left_at < :before;

-- name: unregister(u(id uuid))
-- A worker has left in good order.
{delete workers by u};

-- name: workers
-- Every worker, for people.
SELECT id::text, host, pid, queues, workflows, concurrency, lease_ms,
       CASE WHEN expires_at < {now} THEN 'dead' ELSE state END AS state, running, started_at, beat_at,
       {now} - beat_at AS age_ms, modules, process, schedules, limits
FROM {workers} ORDER BY started_at, id;

-- name: beats(worker)
-- The last beats of all other workers that live, for the worker that watches them.
SELECT id, beat_at, lease_ms, process FROM {workers} WHERE state <> 'dead' AND id <> :worker;

-- name: expire(u(id uuid))
-- The leases of workers whose processes are known to be gone are over.
{update workers w, u} SET expires_at = 0 {from u} WHERE w.id = u.id AND w.state <> 'dead';

-- name: declare_dead(worker, among uuid[])
-- Workers silent beyond their lease are dead, but only those of `among`, if that names any: the clock may have stepped. From
-- here on their heartbeats are refused.
UPDATE {workers} SET state = 'dead'
WHERE expires_at < {stamp} AND state <> 'dead' AND id <> :worker AND (:among IS NULL OR id {in among}) RETURNING id::text AS id;

-- name: keep_dead
-- The same of dead workers with nothing left to reap.
INSERT INTO {past_workers} (id, host, pid, left_at)
SELECT w.id, w.host, w.pid, {now} FROM {workers} w WHERE w.state = 'dead'
AND NOT EXISTS (SELECT 1 FROM {runs} r WHERE r.worker = w.id)
{skip id};

-- name: forget_dead
-- Dead workers with nothing left to reap.
DELETE FROM {workers} WHERE state = 'dead'
AND NOT EXISTS (SELECT 1 FROM {runs} r WHERE r.worker = {workers}.id);
