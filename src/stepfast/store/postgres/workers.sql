-- Workers: how they come and go, beat, ask which duties have work, and are declared dead.

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
ON CONFLICT (id) DO NOTHING;

-- name: worker_state
-- A worker is stopping.
UPDATE {schema}.workers w SET state = u.state FROM unnest($1::uuid[], $2::text[]) AS u(id, state)
WHERE w.id = u.id AND w.state <> 'dead';

-- name: unregister
-- A worker has left in good order.
DELETE FROM {schema}.workers WHERE id = ANY($1::uuid[]);

-- name: workers
-- Every worker, for people.
SELECT id::text, host, pid, queues, workflows, concurrency, lease_ms,
       CASE WHEN expires_at < {now} THEN 'dead' ELSE state END AS state, running, started_at, beat_at,
       {now} - beat_at AS age_ms, modules, process, schedules, limits
FROM {schema}.workers ORDER BY started_at, id;

-- name: tick
-- The one question of an idle worker: which duties have work? The lanes are found by skipping from one to the next in
-- the index, so that their number counts and not the number of runs in them. Undelivered mail is looked for as the
-- oldest of it, which is the first entry of an index and never a walk through the table. Lanes of paused queues are left
-- out, those of limited ones told apart. Of the schedules that code declares only those count which the worker's own
-- declares ($4).
WITH RECURSIVE lanes AS (
    (SELECT queue, workflow, priority FROM {schema}.runs WHERE place IS NOT NULL AND losses < 2
     ORDER BY queue, workflow, priority LIMIT 1)
    UNION ALL
    SELECT n.queue, n.workflow, n.priority FROM lanes l CROSS JOIN LATERAL (
        SELECT r.queue, r.workflow, r.priority FROM {schema}.runs r
        WHERE r.place IS NOT NULL AND r.losses < 2
          AND (r.queue, r.workflow, r.priority) > (l.queue, l.workflow, l.priority)
        ORDER BY r.queue, r.workflow, r.priority LIMIT 1
    ) AS n
), known AS (
    SELECT l.queue, l.workflow, l.priority, COALESCE(g.limited, false) AS limited
    FROM lanes l LEFT JOIN {schema}.queues g ON g.name = l.queue
    WHERE $1 AND ($2::text[] IS NULL OR l.workflow = ANY($2::text[])) AND g.paused IS NOT TRUE
), gates AS (
    SELECT name, paused FROM {schema}.queues WHERE paused OR limited
)
SELECT {now} AS now_ms, {server} AS server,
       (SELECT min(visible_at) FROM {schema}.runs WHERE visible_at IS NOT NULL) AS next_due,
       EXISTS (SELECT 1 FROM {schema}.runs WHERE place IS NOT NULL AND losses >= 2
               AND ($2::text[] IS NULL OR workflow = ANY($2::text[]))
               AND ($3::text[] IS NULL OR queue = ANY($3::text[]))
               AND queue <> ALL (ARRAY(SELECT name FROM gates))) AS suspects,
       (SELECT array_agg(name) FROM gates) AS gated,
       (SELECT array_agg(name) FROM gates WHERE paused) AS paused,
       (SELECT array_agg(g.name) FROM gates g WHERE NOT g.paused AND EXISTS (
            SELECT 1 FROM {schema}.runs r WHERE r.place IS NOT NULL AND r.losses >= 2 AND r.queue = g.name
            AND ($2::text[] IS NULL OR r.workflow = ANY($2::text[])))) AS limited_suspects,
       (SELECT min(sent_at) FROM {schema}.mailbox WHERE NOT delivered) IS NOT NULL AS mail,
       LEAST((SELECT min(due_at) FROM {schema}.schedules WHERE due_at IS NOT NULL AND NOT declared),
             (SELECT min(due_at) FROM {schema}.schedules WHERE declared AND name = ANY($4::text[]))) AS next_schedule,
       (SELECT min(due_at) FROM {schema}.remote_steps WHERE due_at IS NOT NULL) IS NOT NULL AS remote,
       (SELECT array_agg(queue) FROM known) AS queues,
       (SELECT array_agg(workflow) FROM known) AS workflows,
       (SELECT array_agg(priority) FROM known) AS priorities,
       (SELECT array_agg(limited) FROM known) AS limited;

-- name: beats
-- The last beats of all other workers that live, for whoever watches over them.
SELECT id, beat_at, lease_ms, process FROM {schema}.workers WHERE state <> 'dead' AND id <> $1;

-- name: expire
-- The leases of workers whose processes are known to be gone are over.
UPDATE {schema}.workers SET expires_at = 0 WHERE id = ANY($1::uuid[]) AND state <> 'dead';

-- name: bury
-- Workers silent beyond their lease are dead, but only those of $2, if that names any: the server's clock may have
-- stepped. From here on their heartbeats are refused.
UPDATE {schema}.workers SET state = 'dead'
WHERE expires_at < {now} AND state <> 'dead' AND id <> $1 AND ($2::uuid[] IS NULL OR id = ANY($2::uuid[])) RETURNING id::text AS id;

-- name: forget_dead
-- Dead workers with nothing left to reap.
DELETE FROM {schema}.workers w WHERE w.state = 'dead'
AND NOT EXISTS (SELECT 1 FROM {schema}.runs r WHERE r.worker = w.id);
