-- The census: counts over all of the namespace, for monitoring. Every count stops at a bound, and what has ended is
-- not counted at all: the tables may hold millions of that.

-- override: census
-- Runs that workers hold, that wait, that are held and that are being undone; the timer that is due first; and mail that
-- was not delivered. The orders are those of the indexes, so that none of it is a walk through the table.
SELECT {now} AS now_ms,
       (SELECT count(*) FROM (SELECT 1 FROM {schema}.runs WHERE worker IS NOT NULL ORDER BY worker LIMIT $1) AS s) AS running,
       (SELECT count(*) FROM (SELECT 1 FROM {schema}.runs WHERE status = 'waiting' AND dag_id IS NULL
                              ORDER BY id LIMIT $1) AS s) AS waiting,
       (SELECT count(*) FROM (SELECT 1 FROM {schema}.runs WHERE status = 'paused' AND dag_id IS NULL
                              ORDER BY id LIMIT $1) AS s) AS paused,
       (SELECT count(*) FROM (SELECT 1 FROM {schema}.runs WHERE status = 'compensating' AND dag_id IS NULL
                              ORDER BY id LIMIT $1) AS s) AS compensating,
       (SELECT min(visible_at) FROM {schema}.runs WHERE visible_at IS NOT NULL) AS next_due,
       (SELECT count(*) FROM (SELECT 1 FROM {schema}.mailbox WHERE NOT delivered ORDER BY sent_at LIMIT $1) AS s)
           AS undelivered;

-- name: census_queues
-- How many runs are ready in each queue, $1 at most, and for how many microseconds its first run has been. The lanes
-- are found by skipping from one to the next in the index, and the first of each is the oldest of it. Suspects stand in
-- no lane, and are counted apart.
WITH RECURSIVE lanes AS (
    (SELECT queue, workflow, priority, place FROM {schema}.runs WHERE place IS NOT NULL AND losses < 2
     ORDER BY queue, workflow, priority, place LIMIT 1)
    UNION ALL
    SELECT n.queue, n.workflow, n.priority, n.place FROM lanes l CROSS JOIN LATERAL (
        SELECT r.queue, r.workflow, r.priority, r.place FROM {schema}.runs r
        WHERE r.place IS NOT NULL AND r.losses < 2
          AND (r.queue, r.workflow, r.priority) > (l.queue, l.workflow, l.priority)
        ORDER BY r.queue, r.workflow, r.priority, r.place LIMIT 1
    ) AS n
), queues AS (
    SELECT queue, min(place) AS first FROM (SELECT queue, place FROM lanes LIMIT $1) AS l GROUP BY queue
)
SELECT q.queue, (SELECT count(*) FROM (SELECT 1 FROM {schema}.runs r
                                       WHERE r.place IS NOT NULL AND r.losses < 2 AND r.queue = q.queue
                                       ORDER BY r.workflow, r.priority, r.place LIMIT $1) AS s) AS ready,
       {place} - q.first AS oldest
FROM queues q
UNION ALL
SELECT queue, count(*), {place} - min(place)
FROM (SELECT queue, place FROM {schema}.runs WHERE place IS NOT NULL AND losses >= 2
      ORDER BY losses, priority DESC, place LIMIT $1) AS s GROUP BY queue;
