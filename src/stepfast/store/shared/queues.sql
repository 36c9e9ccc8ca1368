-- Queues: what is said about them.

-- name: add_queue
-- The row of a queue that nothing was said about so far.
INSERT INTO {schema}.queues (name) SELECT u.name FROM unnest($1::text[]) AS u(name) WHERE true ON CONFLICT (name) DO NOTHING;

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
UPDATE {schema}.queues AS q
SET paused = u.paused, paused_at = u.paused_at, declared = u.declared, declared_by = u.declared_by,
    declared_at = u.declared_at, chosen = u.chosen, limited = u.limited, limited_since = u.limited_since,
    max_ready = u.max_ready
FROM unnest($1::text[], $2::boolean[], $3::bigint[], $4::text[], $5::text[], $6::bigint[], $7::text[], $8::boolean[],
            $9::bigint[], $10::integer[])
     AS u(name, paused, paused_at, declared, declared_by, declared_at, chosen, limited, limited_since, max_ready)
WHERE q.name = u.name;

-- name: queue_bounds
-- The queues that take no more than so many ready runs.
SELECT name, max_ready FROM {schema}.queues WHERE max_ready IS NOT NULL;

-- name: count_ready
-- How many runs of a queue are ready, counted no further than $2.
SELECT count(*) FROM (
    SELECT 1 AS one FROM {schema}.runs WHERE queue = $1 AND place IS NOT NULL AND losses < 2 LIMIT $2
) AS ready;
