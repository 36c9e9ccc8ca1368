-- Glances: what people who watch ask for, again and again, beside those who work. Each looks at no more rows than it is told
-- to, however many there are; none reads a payload that it was not asked for.
--
-- Those that find runs are given all filters ($1 workflow, $2 status, $3 queue, $4 the run they go on from, $5 reason,
-- $6 key, $7 how many, $8 since, $9 older, $10 how far, $11 tag), walk $10 rows along an index from the newest back (or, with
-- the words in braces the other way round, from the oldest on), and stop when they have $7. They bring ids, and whether the run is a dag run under way, which may be shown otherwise than its row
-- says. The casts of filters that a statement does not use let the server know what they are.

-- override: glance_runs
-- Along the ids of all runs.
SELECT r.id::text, r.status = 'running' AND r.graph IS NOT NULL AS dag
FROM (SELECT id, workflow, status, queue, reason, key, debounced, created_at, graph, dag_id FROM {schema}.runs
      WHERE id {beyond} COALESCE($4::uuid, '{brink}'::uuid) ORDER BY id {direction} LIMIT $10) AS r
WHERE r.dag_id IS NULL
  AND ($1::text IS NULL OR r.workflow = $1)
  AND ($2::text IS NULL OR r.status = $2)
  AND ($3::text IS NULL OR r.queue = $3)
  AND ($5::text IS NULL OR r.reason = $5)
  AND ($6::text IS NULL OR r.key = $6 OR r.debounced = $6)
  AND ($8::bigint IS NULL OR r.created_at >= (SELECT {now}) - $8)
  AND ($9::bigint IS NULL OR r.created_at < (SELECT {now}) - $9)
  AND $11::text IS NULL
ORDER BY r.id {direction} LIMIT $7;

-- override: glance_at_rest
-- Along the index of a status in which runs stay.
SELECT r.id::text, false AS dag
FROM (SELECT id, workflow, queue, reason, key, debounced, created_at FROM {schema}.runs
      WHERE status = $2::text AND dag_id IS NULL
        AND status IN ('waiting', 'paused', 'failed', 'cancelled', 'compensating', 'compensated')
        AND id {beyond} COALESCE($4::uuid, '{brink}'::uuid) ORDER BY id {direction} LIMIT $10) AS r
WHERE ($1::text IS NULL OR r.workflow = $1)
  AND ($3::text IS NULL OR r.queue = $3)
  AND ($5::text IS NULL OR r.reason = $5)
  AND ($6::text IS NULL OR r.key = $6 OR r.debounced = $6)
  AND ($8::bigint IS NULL OR r.created_at >= (SELECT {now}) - $8)
  AND ($9::bigint IS NULL OR r.created_at < (SELECT {now}) - $9)
  AND $11::text IS NULL
ORDER BY r.id {direction} LIMIT $7;

-- override: glance_running
-- Those that workers hold, and dag runs under way: few beside all others.
SELECT r.id::text, r.graph IS NOT NULL AS dag
FROM (SELECT id FROM (SELECT id FROM {schema}.runs WHERE worker IS NOT NULL ORDER BY worker LIMIT $10) AS w
      UNION
      SELECT id FROM (SELECT id FROM {schema}.runs WHERE status = 'running' AND graph IS NOT NULL AND dag_id IS NULL
                      ORDER BY id {direction} LIMIT $10) AS d) AS h
CROSS JOIN LATERAL (SELECT * FROM {schema}.runs k WHERE k.id = h.id OFFSET 0) AS r
WHERE r.dag_id IS NULL AND r.status = $2::text
  AND r.id {beyond} COALESCE($4::uuid, '{brink}'::uuid)
  AND ($1::text IS NULL OR r.workflow = $1)
  AND ($3::text IS NULL OR r.queue = $3)
  AND ($5::text IS NULL OR r.reason = $5)
  AND ($6::text IS NULL OR r.key = $6 OR r.debounced = $6)
  AND ($8::bigint IS NULL OR r.created_at >= (SELECT {now}) - $8)
  AND ($9::bigint IS NULL OR r.created_at < (SELECT {now}) - $9)
  AND $11::text IS NULL
ORDER BY r.id {direction} LIMIT $7;

-- override: glance_tagged
-- Along the runs that have a tag.
SELECT r.id::text, r.status = 'running' AND r.graph IS NOT NULL AS dag
FROM (SELECT run_id FROM {schema}.run_tags
      WHERE tag = $11::text AND run_id {beyond} COALESCE($4::uuid, '{brink}'::uuid)
      ORDER BY run_id {direction} LIMIT $10) AS t
CROSS JOIN LATERAL (SELECT * FROM {schema}.runs k WHERE k.id = t.run_id OFFSET 0) AS r
WHERE r.dag_id IS NULL
  AND ($1::text IS NULL OR r.workflow = $1)
  AND ($2::text IS NULL OR r.status = $2)
  AND ($3::text IS NULL OR r.queue = $3)
  AND ($5::text IS NULL OR r.reason = $5)
  AND ($6::text IS NULL OR r.key = $6 OR r.debounced = $6)
  AND ($8::bigint IS NULL OR r.created_at >= (SELECT {now}) - $8)
  AND ($9::bigint IS NULL OR r.created_at < (SELECT {now}) - $9)
ORDER BY t.run_id {direction} LIMIT $7;

-- override: glance_keyed
-- By a key, of every workflow that is known: the key of a run, or one that starts are debounced by. Of the latter those
-- that have begun are in no index.
SELECT r.id::text, r.status = 'running' AND r.graph IS NOT NULL AS dag
FROM (SELECT DISTINCT name FROM {schema}.definitions) AS d
CROSS JOIN LATERAL (
    SELECT * FROM {schema}.runs k WHERE k.workflow = d.name AND k.key = $6::text AND k.key IS NOT NULL
    UNION ALL
    SELECT * FROM {schema}.runs k WHERE k.workflow = d.name AND k.debounced = $6::text AND k.debounced IS NOT NULL
        AND k.started_at IS NULL AND k.completed_at IS NULL
) AS r
WHERE r.dag_id IS NULL AND r.id {beyond} COALESCE($4::uuid, '{brink}'::uuid)
  AND ($1::text IS NULL OR r.workflow = $1)
  AND ($2::text IS NULL OR r.status = $2)
  AND ($3::text IS NULL OR r.queue = $3)
  AND ($5::text IS NULL OR r.reason = $5)
  AND ($8::bigint IS NULL OR r.created_at >= (SELECT {now}) - $8)
  AND ($9::bigint IS NULL OR r.created_at < (SELECT {now}) - $9)
  AND $10::bigint IS NOT NULL AND $11::text IS NULL
ORDER BY r.id {direction} LIMIT $7;

-- override: glance_queued
-- Those that are ready or put off, found by the indexes of both: $10 of each at most. The last column says whether these were
-- all; if not, others of the same status are found only along the ids.
WITH ready AS MATERIALIZED (
    SELECT id FROM (SELECT id FROM {schema}.runs WHERE place IS NOT NULL AND losses < 2
                    ORDER BY queue, workflow, priority, place LIMIT $10) AS p
    UNION ALL
    SELECT id FROM (SELECT id FROM {schema}.runs WHERE place IS NOT NULL AND losses >= 2
                    ORDER BY losses, priority DESC, place LIMIT $10) AS s
), due AS MATERIALIZED (
    SELECT id FROM {schema}.runs WHERE visible_at IS NOT NULL ORDER BY visible_at LIMIT $10
)
SELECT r.id::text, false AS dag,
       (SELECT count(*) FROM ready) < $10 AND (SELECT count(*) FROM due) < $10 AS every
FROM (SELECT id FROM ready UNION SELECT id FROM due) AS h
CROSS JOIN LATERAL (SELECT * FROM {schema}.runs k WHERE k.id = h.id OFFSET 0) AS r
WHERE r.dag_id IS NULL AND r.status = $2::text
  AND r.id {beyond} COALESCE($4::uuid, '{brink}'::uuid)
  AND ($1::text IS NULL OR r.workflow = $1)
  AND ($3::text IS NULL OR r.queue = $3)
  AND ($5::text IS NULL OR r.reason = $5)
  AND ($6::text IS NULL OR r.key = $6 OR r.debounced = $6)
  AND ($8::bigint IS NULL OR r.created_at >= (SELECT {now}) - $8)
  AND ($9::bigint IS NULL OR r.created_at < (SELECT {now}) - $9)
  AND $11::text IS NULL
ORDER BY r.id {direction} LIMIT $7;

-- override: glance_end_runs
-- The last of $2 runs from one ($1) back, and how many there are, up to so many.
SELECT w.id::text, count(*) OVER () AS seen
FROM (SELECT id FROM {schema}.runs WHERE id {beyond} COALESCE($1::uuid, '{brink}'::uuid) ORDER BY id {direction} LIMIT $2) AS w ORDER BY w.id {back} LIMIT 1;

-- override: glance_end_at_rest
-- The same of those that stand in a status ($3).
SELECT w.id::text, count(*) OVER () AS seen
FROM (SELECT id FROM {schema}.runs
      WHERE status = $3::text AND dag_id IS NULL
        AND status IN ('waiting', 'paused', 'failed', 'cancelled', 'compensating', 'compensated')
        AND id {beyond} COALESCE($1::uuid, '{brink}'::uuid) ORDER BY id {direction} LIMIT $2) AS w ORDER BY w.id {back} LIMIT 1;

-- override: glance_end_tagged
-- The same of those that have a tag ($3).
SELECT w.run_id::text, count(*) OVER () AS seen
FROM (SELECT run_id FROM {schema}.run_tags
      WHERE tag = $3::text AND run_id {beyond} COALESCE($1::uuid, '{brink}'::uuid) ORDER BY run_id {direction} LIMIT $2) AS w ORDER BY w.run_id {back} LIMIT 1;

-- override: glance_dags_as
-- Dag runs that are shown with a status ($1) which their rows do not have, among the newest $4 under way.
SELECT d.id::text, d.status, d.waiting_for, d.due_at
FROM (SELECT id FROM {schema}.runs WHERE status = 'running' AND graph IS NOT NULL AND dag_id IS NULL
        AND id {beyond} COALESCE($2::uuid, '{brink}'::uuid) ORDER BY id {direction} LIMIT $4) AS r
CROSS JOIN LATERAL (SELECT * FROM {schema}.dags_shown s WHERE s.id = r.id OFFSET 0) AS d
WHERE d.status = $1 ORDER BY r.id {direction} LIMIT $3;

-- override: glance_id_ends
-- Runs whose ids end like this ($1), among the newest $2. No index knows how ids end.
SELECT r.id::text FROM (
    SELECT id FROM {schema}.runs ORDER BY id DESC LIMIT $2
) AS n JOIN {schema}.runs r ON r.id = n.id
WHERE right(replace(n.id::text, '-', ''), length($1::text)) = $1::text AND r.dag_id IS NULL ORDER BY n.id DESC LIMIT $3;

-- override: glance_inputs
-- Which of these runs ($1) have one of two texts ($2, $3) in their inputs, and which of them cannot be looked into, because
-- they passed through a codec (2) or are larger than $4 bytes (1); 0: it was found.
SELECT id::text, CASE WHEN format <> 1 THEN 2 WHEN octet_length(input) > $4::bigint THEN 1 ELSE 0 END AS closed
FROM {schema}.runs
WHERE id = ANY($1::uuid[])
  AND CASE WHEN format <> 1 OR octet_length(input) > $4::bigint THEN true
           ELSE strpos(input, $2::text) > 0 OR strpos(input, $3::text) > 0 END;

-- name: glance_children
-- Up to $2 children of each of these runs ($1), in no order.
SELECT u.id::text AS parent, c.id::text AS child FROM unnest($1::uuid[]) AS u(id)
CROSS JOIN LATERAL (SELECT k.id FROM {schema}.runs k WHERE k.parent_id = u.id LIMIT $2) AS c;

-- name: glance_news
-- Whether something has happened to runs ($1), or to the newest $2 of all: texts that differ when it has. Of what a run
-- holds no more is looked at than its page shows.
SELECT r.id::text AS run, json_build_array(
           r.status, r.reason, r.waiting_for, r.worker, r.asked, r.claim, r.attempt, r.losses, r.wakes, r.ends, r.visible_at,
           r.completed_at, r.paused_at, s.number, s.latest, s.open, t.number, p.number, p.latest, v.number, v.latest, m.number,
           c.stand, d.stand)::text AS stands
FROM unnest($1::uuid[]) AS u(id)
CROSS JOIN LATERAL (SELECT * FROM {schema}.runs w WHERE w.id = u.id) AS r
CROSS JOIN LATERAL (SELECT count(*) AS number, max(k.seq) AS latest, count(*) FILTER (WHERE k.status = 'waiting') AS open
                    FROM (SELECT seq, status FROM {schema}.steps WHERE run_id = u.id ORDER BY branch, position LIMIT 501) k) AS s
CROSS JOIN LATERAL (SELECT count(*) AS number FROM (SELECT FROM {schema}.tries WHERE run_id = u.id LIMIT 501) k) AS t
CROSS JOIN LATERAL (SELECT count(*) AS number, max(k.updated_at) AS latest
                    FROM (SELECT updated_at FROM {schema}.progress WHERE run_id = u.id LIMIT 501) k) AS p
CROSS JOIN LATERAL (SELECT count(*) AS number, max(k.updated_at) AS latest
                    FROM (SELECT updated_at FROM {schema}.run_values WHERE run_id = u.id LIMIT 501) k) AS v
CROSS JOIN LATERAL (SELECT count(*) AS number FROM (SELECT FROM {schema}.mailbox WHERE run_id = u.id LIMIT 21) k) AS m
CROSS JOIN LATERAL (SELECT string_agg(k.status || k.claim::text, ' ' ORDER BY k.id) AS stand
                    FROM (SELECT id, status, claim FROM {schema}.runs WHERE parent_id = u.id LIMIT 21) k) AS c
CROSS JOIN LATERAL (SELECT md5(string_agg(k.status || k.claim::text, ' ' ORDER BY k.dag_step)) AS stand
                    FROM (SELECT dag_step, status, claim FROM {schema}.runs WHERE dag_id = u.id
                          ORDER BY dag_step LIMIT 501) k) AS d
UNION ALL
SELECT '', json_build_array(n.id, n.status, n.reason, n.waiting_for, n.claim, n.attempt)::text
FROM (SELECT * FROM {schema}.runs ORDER BY id DESC LIMIT $2::integer) AS n;

-- override: glance_depths
-- Of each queue: how many runs workers hold, how many wait, how many were put off; counted up to $1 of each over all queues.
SELECT queue, 'running' AS stands, count(*) AS number
FROM (SELECT queue FROM {schema}.runs WHERE worker IS NOT NULL ORDER BY worker LIMIT $1) AS s GROUP BY queue
UNION ALL
SELECT queue, 'waiting', count(*)
FROM (SELECT queue FROM {schema}.runs WHERE status = 'waiting' AND dag_id IS NULL ORDER BY id DESC LIMIT $1) AS s GROUP BY queue
UNION ALL
SELECT queue, CASE WHEN visible_at > (SELECT {now}) THEN 'delayed' ELSE 'due' END, count(*)
FROM (SELECT queue, visible_at, place, status FROM {schema}.runs WHERE visible_at IS NOT NULL ORDER BY visible_at LIMIT $1) AS s
WHERE place IS NULL AND status = 'queued' GROUP BY 1, 2;

-- name: glance_sizes
-- The tables of the namespace ($1): rows as the server estimates them, bytes with all indexes, bytes of the indexes alone,
-- and rows that a vacuum will take away.
SELECT c.relname::text, GREATEST(c.reltuples, 0::real)::bigint AS number, pg_total_relation_size(c.oid) AS bytes,
       pg_indexes_size(c.oid) AS of_indexes, pg_stat_get_dead_tuples(c.oid) AS dead
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE '"' || n.nspname::text || '"' = $1::text AND c.relkind = 'r'::"char" ORDER BY 3 DESC LIMIT 100;
