-- The census: counts over all of the namespace, for monitoring. Every count stops at a bound, and what has ended is
-- not counted at all: the tables may hold millions of that.

-- name: census_queues
-- How many runs are ready in each queue, ?1 at most, and for how many microseconds its first run has been. The lanes
-- are found by skipping from one to the next in the index, and the first of each is the oldest of it: the next priority of
-- the same workflow, else the next workflow of the queue, else the next queue; compared as one row of three values, all of
-- a lane would be walked through. Suspects stand in no lane, and are counted apart.
WITH RECURSIVE lanes(queue, workflow, priority, place) AS (
    SELECT queue, workflow, priority, place FROM {prefix}runs WHERE id = (
        SELECT id FROM {prefix}runs WHERE place IS NOT NULL AND losses < 2
        ORDER BY queue, workflow, priority, place LIMIT 1)
    UNION ALL
    SELECT r.queue, r.workflow, r.priority, r.place FROM lanes AS l CROSS JOIN {prefix}runs AS r ON r.id = COALESCE(
        (SELECT n.id FROM {prefix}runs AS n INDEXED BY {prefix}runs_ready
         WHERE n.place IS NOT NULL AND n.losses < 2
           AND n.queue = l.queue AND n.workflow = l.workflow AND n.priority > l.priority
         ORDER BY n.priority, n.place LIMIT 1),
        (SELECT n.id FROM {prefix}runs AS n INDEXED BY {prefix}runs_ready
         WHERE n.place IS NOT NULL AND n.losses < 2 AND n.queue = l.queue AND n.workflow > l.workflow
         ORDER BY n.workflow, n.priority, n.place LIMIT 1),
        (SELECT n.id FROM {prefix}runs AS n INDEXED BY {prefix}runs_ready
         WHERE n.place IS NOT NULL AND n.losses < 2 AND n.queue > l.queue
         ORDER BY n.queue, n.workflow, n.priority, n.place LIMIT 1))
    LIMIT ?1
), queues AS (
    SELECT queue, min(place) AS first FROM lanes GROUP BY queue
)
SELECT q.queue, (SELECT count(*) FROM (SELECT 1 FROM {prefix}runs AS r INDEXED BY {prefix}runs_ready
                                       WHERE r.place IS NOT NULL AND r.losses < 2 AND r.queue = q.queue
                                       LIMIT ?1)) AS ready,
       {now} * 1000 - q.first AS oldest
FROM queues AS q
UNION ALL
SELECT queue, count(*), {now} * 1000 - min(place)
FROM (SELECT queue, place FROM {prefix}runs WHERE place IS NOT NULL AND losses >= 2 LIMIT ?1) GROUP BY queue;
