-- Queues: what is said about them, and how they stand.

-- name: now
-- The server's time.
SELECT {now};

-- name: add_queue
-- The row of a queue that nothing was said about so far.
INSERT INTO {schema}.queues (name) SELECT u.name FROM unnest($1::text[]) AS u(name) ON CONFLICT (name) DO NOTHING;

-- name: queue
-- What is said about one queue.
SELECT name, paused, paused_at, declared, declared_by, declared_at, chosen, limited_since, counted_at, pruned_at
FROM {schema}.queues WHERE name = $1;

-- name: lock_queue
-- The same, for whoever changes it or claims from it: one at a time.
SELECT name, paused, paused_at, declared, declared_by, declared_at, chosen, limited_since, counted_at, pruned_at
FROM {schema}.queues WHERE name = $1 FOR NO KEY UPDATE;

-- name: queues
-- What is said about all queues.
SELECT name, paused, paused_at, declared, declared_by, declared_at, chosen, limited_since, counted_at, pruned_at
FROM {schema}.queues ORDER BY name;

-- name: write_queue
-- What was decided about queues.
UPDATE {schema}.queues q
SET paused = u.paused, paused_at = u.paused_at, declared = u.declared, declared_by = u.declared_by,
    declared_at = u.declared_at, chosen = u.chosen, limited = u.limited, limited_since = u.limited_since,
    max_ready = u.max_ready
FROM unnest($1::text[], $2::boolean[], $3::bigint[], $4::text[], $5::text[], $6::bigint[], $7::text[], $8::boolean[],
            $9::bigint[], $10::integer[])
     AS u(name, paused, paused_at, declared, declared_by, declared_at, chosen, limited, limited_since, max_ready)
WHERE q.name = u.name;

-- name: queue_depths
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

-- name: queue_bounds
-- The queues that take no more than so many ready runs.
SELECT name, max_ready FROM {schema}.queues WHERE max_ready IS NOT NULL;

-- name: lock_starts
-- One bounded start into a queue at a time. It needs no right to any table, and is held to the end of the transaction.
SELECT pg_advisory_xact_lock(hashtextextended('stepfast starts {schema} ' || $1::text, 0));

-- name: count_ready
-- How many runs of a queue are ready, counted no further than $2.
SELECT count(*) FROM (
    SELECT 1 AS one FROM {schema}.runs WHERE queue = $1 AND place IS NOT NULL AND losses < 2 LIMIT $2
) AS ready;
