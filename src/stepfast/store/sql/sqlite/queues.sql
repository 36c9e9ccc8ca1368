-- Queues: how they stand.

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
