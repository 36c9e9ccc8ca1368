-- Which runs ended long enough ago, and taking them away with all that belongs to them.
--
-- There is no index of ends: every completion would have to write it. Ids sort by the time of the start, and who ended
-- long ago was started long ago, so that looking from the oldest id on finds them.

-- name: ended_page
-- A look at the next $2 runs after one ($1): the last of them, how many there were, when the first and the last were started; and of
-- those that ended at least $3 (failed: $4) milliseconds ago, and so ($5, if it is given), the first $6.
WITH page AS MATERIALIZED (
    SELECT r.id, r.status, r.completed_at, r.created_at FROM {schema}.runs r
    WHERE r.id > $1::uuid AND r.dag_id IS NULL
    ORDER BY r.id LIMIT $2
), looked AS MATERIALIZED (
    SELECT {now} AS now, count(*) AS seen, min(created_at) AS oldest, max(created_at) AS newest,
           (SELECT id::text FROM page ORDER BY id DESC LIMIT 1) AS last
    FROM page
)
SELECT l.now, l.seen, l.oldest, l.newest, l.last, e.id
FROM looked l LEFT JOIN LATERAL (
    SELECT p.id::text AS id FROM page p
    WHERE p.status IN ('completed', 'failed', 'cancelled', 'compensated')
      AND p.completed_at <= l.now - CASE WHEN p.status = 'failed' THEN $4::bigint ELSE $3::bigint END
      AND ($5::text IS NULL OR p.status = $5)
    ORDER BY p.id LIMIT $6
) AS e ON true;

-- name: ended_kin
-- The first $6 of those that were kept for the sake of runs that are gone now ($1 their ids, $2 which runs those continued)
-- and ended long enough ago: their children, and what went on as them.
WITH clock AS MATERIALIZED (
    SELECT {now} AS now
)
SELECT r.id::text AS id
FROM (SELECT c.id FROM unnest($1::uuid[]) AS u(id)
      CROSS JOIN LATERAL (SELECT k.id FROM {schema}.runs k WHERE k.parent_id = u.id OFFSET 0) AS c
      UNION
      SELECT b.id FROM unnest($2::uuid[]) AS u(id) JOIN {schema}.runs b ON b.id = u.id WHERE b.reason = 'continued') AS kin
JOIN {schema}.runs r ON r.id = kin.id
WHERE r.dag_id IS NULL AND r.status IN ('completed', 'failed', 'cancelled', 'compensated')
  AND r.completed_at <= (SELECT now FROM clock) - CASE WHEN r.status = 'failed' THEN $4::bigint ELSE $3::bigint END
  AND ($5::text IS NULL OR r.status = $5)
ORDER BY r.id LIMIT $6;

-- name: ended
-- Runs that have ended, and who may still need them.
SELECT r.id::text, r.status, r.reason, r.completed_at, r.claim, r.parent_id::text, p.status AS parent_status,
       b.id::text AS before, h.id::text AS heir
FROM unnest($1::uuid[]) AS u(id) JOIN {schema}.runs r ON r.id = u.id
LEFT JOIN {schema}.runs p ON p.id = r.parent_id
LEFT JOIN {schema}.runs b ON b.id = r.origin_id AND b.reason = 'continued' AND b.output = '"' || r.id::text || '"'
LEFT JOIN {schema}.runs h ON h.id = CASE WHEN r.reason = 'continued'
    THEN CASE WHEN r.output ~ '^"[0-9a-f-]{36}"$' THEN substr(r.output, 2, 36)::uuid END END
WHERE r.dag_id IS NULL AND r.completed_at IS NOT NULL
  AND r.status IN ('completed', 'failed', 'cancelled', 'compensated')
ORDER BY r.id;

-- name: weigh
-- How much is recorded of runs: rows, and bytes as they are stored.
SELECT u.id::text AS id, count(s.run_id) AS rows,
       COALESCE(sum(COALESCE(pg_column_size(s.output), 0) + COALESCE(pg_column_size(s.arguments), 0)), 0)::bigint AS bytes
FROM unnest($1::uuid[]) AS u(id)
CROSS JOIN LATERAL (SELECT u.id UNION ALL SELECT k.id FROM {schema}.runs k WHERE k.dag_id = u.id) AS r(id)
LEFT JOIN {schema}.steps s ON s.run_id = r.id
GROUP BY u.id;

-- name: remover_turn
-- Whether nobody else takes runs away just now because they are old. Until the end of this transaction it is our turn.
SELECT pg_try_advisory_xact_lock(hashtextextended('stepfast keeping {schema}', 0)) AS ours;

-- name: lock_ended
-- Of runs that ended under a claim at a time ($1, $2, $3) those that still stand so. Rows that somebody holds are stepped
-- over.
SELECT r.id::text AS id
FROM unnest($1::uuid[], $2::integer[], $3::bigint[]) AS u(id, claim, completed_at)
JOIN {schema}.runs r ON r.id = u.id AND r.claim = u.claim AND r.completed_at = u.completed_at
ORDER BY r.id
FOR UPDATE OF r SKIP LOCKED;

-- name: lock_links
-- The runs before and after links that are to be taken out of their chains, if nobody holds them.
SELECT r.id::text AS id FROM unnest($1::uuid[]) AS u(id) JOIN {schema}.runs r ON r.id = u.id
ORDER BY r.id
FOR NO KEY UPDATE OF r SKIP LOCKED;

-- name: join_links
-- A chain is closed where links were taken out: each of $1 went on as what stands in $2.
WITH pairs AS MATERIALIZED (
    SELECT u.before, u.after FROM unnest($1::uuid[], $2::uuid[]) AS u(before, after)
), forwards AS (
    UPDATE {schema}.runs r SET output = '"' || p.after::text || '"' FROM pairs p WHERE r.id = p.before
)
UPDATE {schema}.runs r SET origin_id = p.before FROM pairs p WHERE r.id = p.after;

-- name: origins
-- Which runs these continue, if any.
SELECT r.origin_id::text AS id FROM unnest($1::uuid[]) AS u(id) JOIN {schema}.runs r ON r.id = u.id
WHERE r.origin_id IS NOT NULL;

-- name: steps_of_dags
-- The rows of the steps of dag runs.
SELECT k.id::text AS id FROM unnest($1::uuid[]) AS u(id) JOIN {schema}.runs k ON k.dag_id = u.id;

-- name: remove_steps
-- What runs have recorded.
DELETE FROM {schema}.steps s USING unnest($1::uuid[]) AS u(id) WHERE s.run_id = u.id;

-- name: remove_tries
-- Their failed tries.
DELETE FROM {schema}.tries t USING unnest($1::uuid[]) AS u(id) WHERE t.run_id = u.id;

-- name: remove_progress
-- What they told of their progress.
DELETE FROM {schema}.progress p USING unnest($1::uuid[]) AS u(id) WHERE p.run_id = u.id;

-- name: remove_mailbox
-- What was sent to them and not taken.
DELETE FROM {schema}.mailbox m USING unnest($1::uuid[]) AS u(id) WHERE m.run_id = u.id;

-- name: remove_run_values
-- What they let others read.
DELETE FROM {schema}.run_values v USING unnest($1::uuid[]) AS u(id) WHERE v.run_id = u.id;

-- name: remove_run_tags
-- Their tags, which are looked up by what their rows say: the table is sorted by tag. The rows go after this.
DELETE FROM {schema}.run_tags t
USING (SELECT r.id, e.tag
       FROM unnest($1::uuid[]) AS u(id) JOIN {schema}.runs r ON r.id = u.id
       CROSS JOIN LATERAL (SELECT {schema}.as_json(r.tags) AS tags OFFSET 0) AS j
       CROSS JOIN LATERAL json_array_elements_text(CASE WHEN json_typeof(j.tags) = 'array' THEN j.tags END) AS e(tag)
       WHERE r.tags IS NOT NULL) AS g
WHERE t.tag = g.tag AND t.run_id = g.id;

-- name: remove_runs
-- The runs themselves.
DELETE FROM {schema}.runs r USING unnest($1::uuid[]) AS u(id) WHERE r.id = u.id;

-- name: tries_of
-- The failed tries of one run, for its archive.
SELECT branch, position, attempt, number, name, error, arguments, format, started_at, completed_at
FROM {schema}.tries WHERE run_id = $1 ORDER BY branch, position, attempt, number;

-- name: missing
-- Those of these runs that are not there.
SELECT u.id::text AS id FROM unnest($1::uuid[]) AS u(id)
WHERE (SELECT true FROM {schema}.runs r WHERE r.id = u.id) IS NULL;
