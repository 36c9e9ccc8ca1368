-- Queues: how they stand, and how starts into one take turns.

-- override: queue_depths
-- How queues stand: what is ready (or due, and about to be), when the first became so, what workers hold, what
-- waits, and what was put off. A step of a dag counts where it is ready or held, because it takes a slot; one that waits
-- for others does not.
SELECT queue, sum(ready)::bigint, sum(running)::bigint, sum(waiting)::bigint, sum(delayed)::bigint,
       ({place} - min(first))::double precision / 1000000::double precision AS oldest
FROM (
    SELECT queue, count(*) AS ready, 0 AS running, 0 AS waiting, 0 AS delayed, min(place) AS first
    FROM {schema}.runs WHERE place IS NOT NULL AND losses < 2 GROUP BY queue
    UNION ALL
    SELECT queue, count(*), 0, 0, 0, min(place)
    FROM {schema}.runs WHERE place IS NOT NULL AND losses >= 2 GROUP BY queue
    UNION ALL
    SELECT queue, 0, count(*), 0, 0, NULL FROM {schema}.runs WHERE worker IS NOT NULL GROUP BY queue
    UNION ALL
    SELECT queue, 0, 0, count(*), 0, NULL FROM {schema}.runs WHERE status = 'waiting' AND dag_id IS NULL GROUP BY queue
    UNION ALL
    SELECT queue, count(*) FILTER (WHERE visible_at <= {now}), 0, 0, count(*) FILTER (WHERE visible_at > {now}),
           min(visible_at * 1000::bigint) FILTER (WHERE visible_at <= {now})
    FROM {schema}.runs WHERE visible_at IS NOT NULL AND place IS NULL AND status = 'queued' GROUP BY queue
) AS parts GROUP BY queue;

-- name: take_turn
-- Whose turn it is has locked the row of that name until its transaction ends. No row: it was never made.
SELECT name FROM {schema}.turns WHERE name = $1 FOR NO KEY UPDATE;

-- name: make_turn
-- The row.
INSERT INTO {schema}.turns (name) VALUES ($1) ON CONFLICT (name) DO NOTHING;
