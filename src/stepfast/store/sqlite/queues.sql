-- Queues: what is said about them, and how they stand.

-- name: add_queue
-- The row of a queue that nothing was said about so far.
INSERT INTO {prefix}queues (name) VALUES (?) ON CONFLICT (name) DO NOTHING;

-- name: queue
-- What is said about one queue.
SELECT name, paused, paused_at, declared, declared_by, declared_at, chosen, limited_since, counted_at, pruned_at
FROM {prefix}queues WHERE name = ?;

-- name: lock_queue
-- The same, for whoever changes it or claims from it; there is one writer at a time.
SELECT name, paused, paused_at, declared, declared_by, declared_at, chosen, limited_since, counted_at, pruned_at
FROM {prefix}queues WHERE name = ?;

-- name: queues
-- What is said about all queues.
SELECT name, paused, paused_at, declared, declared_by, declared_at, chosen, limited_since, counted_at, pruned_at
FROM {prefix}queues ORDER BY name;

-- name: write_queue
-- What was decided about queues.
WITH u(name, paused, paused_at, declared, declared_by, declared_at, chosen, limited, limited_since, max_ready)
AS (VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?))
UPDATE {prefix}queues AS q
SET paused = u.paused, paused_at = u.paused_at, declared = u.declared, declared_by = u.declared_by,
    declared_at = u.declared_at, chosen = u.chosen, limited = u.limited, limited_since = u.limited_since,
    max_ready = u.max_ready
FROM u WHERE q.name = u.name;

-- name: queue_depths
-- How queues stand: what is ready (or due, and about to be), when the first became so, what workers hold, what
-- waits, and what was put off. A step of a dag counts where it is ready or held, because it takes a slot; one that waits
-- for others does not.
SELECT queue, sum(ready), sum(running), sum(waiting), sum(delayed), ({now} * 1000 - min(first)) / 1000000.0
FROM (
    SELECT queue, count(*) AS ready, 0 AS running, 0 AS waiting, 0 AS delayed, min(place) AS first
    FROM {prefix}runs WHERE place IS NOT NULL AND losses < 2 GROUP BY queue
    UNION ALL
    SELECT queue, count(*), 0, 0, 0, min(place) FROM {prefix}runs WHERE place IS NOT NULL AND losses >= 2 GROUP BY queue
    UNION ALL
    SELECT queue, 0, count(*), 0, 0, NULL FROM {prefix}runs WHERE worker IS NOT NULL GROUP BY queue
    UNION ALL
    SELECT queue, 0, 0, count(*), 0, NULL FROM {prefix}runs INDEXED BY {prefix}runs_at_rest
    WHERE status = 'waiting' AND status IN ('waiting', 'paused', 'failed', 'cancelled', 'compensating', 'compensated')
      AND dag_id IS NULL GROUP BY queue
    UNION ALL
    SELECT queue, sum(visible_at <= {now}), 0, 0, sum(visible_at > {now}),
           min(CASE WHEN visible_at <= {now} THEN visible_at * 1000 END)
    FROM {prefix}runs WHERE visible_at IS NOT NULL AND place IS NULL AND status = 'queued' GROUP BY queue
) GROUP BY queue;

-- name: queue_bounds
-- The queues that take no more than so many ready runs.
SELECT name, max_ready FROM {prefix}queues WHERE max_ready IS NOT NULL;

-- name: count_ready
-- How many runs of a queue are ready, counted no further than ?2.
SELECT count(*) FROM (
    SELECT 1 AS one FROM {prefix}runs WHERE queue = ?1 AND place IS NOT NULL AND losses < 2 LIMIT ?2
) AS ready;
