-- Queues: what is said about them.

-- name: add_queue(u(name text))
-- The row of a queue that nothing was said about so far.
INSERT INTO {queues} (name) SELECT u.name FROM {rows u} WHERE true {skip name};

-- name: queue(name)
-- What is said about one queue.
SELECT name, paused, paused_at, declared, declared_by, declared_at, chosen, limited_since, counted_at, pruned_at
FROM {queues} WHERE name = :name;

-- name: lock_queue(name)
-- The same, locked for a change or a claim; and the time, which may be from before the lock was waited for.
SELECT name, paused, paused_at, declared, declared_by, declared_at, chosen, limited_since, counted_at, pruned_at, {now}
FROM {queues} q WHERE name = :name {lock q};

-- name: queues
-- What is said about all queues.
SELECT name, paused, paused_at, declared, declared_by, declared_at, chosen, limited_since, counted_at, pruned_at
FROM {queues} ORDER BY name;

-- name: write_queue(u(name text, paused boolean, paused_at bigint, declared text, declared_by text, declared_at bigint,
--     chosen text, limited boolean, limited_since bigint, max_ready integer))
-- What was decided about queues.
{update queues q, u}
SET paused = u.paused, paused_at = u.paused_at, declared = u.declared, declared_by = u.declared_by,
    declared_at = u.declared_at, chosen = u.chosen, limited = u.limited, limited_since = u.limited_since,
    max_ready = u.max_ready
{from u}
WHERE q.name = u.name;

-- name: queue_bounds
-- The queues that take no more than so many ready runs.
SELECT name, max_ready FROM {queues} WHERE max_ready IS NOT NULL;

-- name: count_ready(queue, most)
-- How many runs of a queue are ready, counted no further than `most`.
SELECT count(*) FROM (
    SELECT 1 AS one FROM {runs} WHERE queue = :queue AND place IS NOT NULL AND losses < 2 LIMIT :most
) AS ready;

-- name: queue_depths
-- How queues stand: what is ready (or due, and about to be), when the first became so, what workers hold, what
-- waits, and what was put off. A step of a dag counts where it is ready or held, because it takes a slot; one that waits
-- for others does not.
SELECT queue, sum(ready), sum(running), sum(waiting), sum(delayed), ({now} * 1000 - min(first)) / 1000000.0
FROM (
    SELECT queue, count(*) AS ready, 0 AS running, 0 AS waiting, 0 AS delayed, min(place) AS first
    FROM {runs} WHERE place IS NOT NULL AND losses < 2 GROUP BY queue
    UNION ALL
    SELECT queue, count(*), 0, 0, 0, min(place) FROM {runs} WHERE place IS NOT NULL AND losses >= 2 GROUP BY queue
    UNION ALL
    SELECT queue, 0, count(*), 0, 0, NULL FROM {runs} WHERE worker IS NOT NULL GROUP BY queue
    UNION ALL
    SELECT queue, 0, 0, count(*), 0, NULL FROM {runs} {index runs_at_rest}
    WHERE status = 'waiting' AND status IN ('waiting', 'paused', 'failed', 'cancelled', 'compensating', 'compensated')
      AND dag_id IS NULL GROUP BY queue
    UNION ALL
    SELECT queue, sum(visible_at <= {now}), 0, 0, sum(visible_at > {now}),
           min(CASE WHEN visible_at <= {now} THEN visible_at * 1000 END)
    FROM {runs} WHERE visible_at IS NOT NULL AND place IS NULL AND status = 'queued' GROUP BY queue
) AS parts GROUP BY queue;
