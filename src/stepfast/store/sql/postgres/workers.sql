-- What an idle worker asks.

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
       EXISTS (SELECT 1 FROM {schema}.runs WHERE hands_on AND completed_at IS NOT NULL) AS names,
       LEAST((SELECT min(due_at) FROM {schema}.schedules WHERE due_at IS NOT NULL AND NOT declared),
             (SELECT min(due_at) FROM {schema}.schedules WHERE declared AND name = ANY($4::text[]))) AS next_schedule,
       (SELECT min(due_at) FROM {schema}.remote_steps WHERE due_at IS NOT NULL) IS NOT NULL AS remote,
       EXISTS (SELECT 1 FROM {schema}.events WHERE number IS NULL)
       OR EXISTS (SELECT 1 FROM {schema}.event_order WHERE matched < given) AS events,
       (SELECT min(due_at) FROM {schema}.event_starts WHERE due_at IS NOT NULL) AS next_start,
       (SELECT array_agg(queue) FROM known) AS queues,
       (SELECT array_agg(workflow) FROM known) AS workflows,
       (SELECT array_agg(priority) FROM known) AS priorities,
       (SELECT array_agg(limited) FROM known) AS limited;
