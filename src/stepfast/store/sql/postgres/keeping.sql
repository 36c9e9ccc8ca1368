-- Which runs ended long enough ago, and taking them away with all that belongs to them.
--
-- There is no index of ends: every completion would have to write it. Ids sort by the time of the start, and who ended
-- long ago was started long ago, so that looking from the oldest id on finds them.

-- override: ended_page
-- Read the next $2 runs after one ($1): whether any worker executes anything, the last of the runs, how many there
-- were, when the first and the last were started; and of those that ended at least $3 (failed: $4) milliseconds ago, and
-- so ($5, if it is given), the first $6, with those that may still need them. These are looked up run by run: most have
-- none, and the planner would rather read a whole table for a list whose length it does not know.
WITH page AS MATERIALIZED (
    SELECT r.id, r.status, r.reason, r.completed_at, r.created_at, r.claim, r.parent_id, r.origin_id,
           r.graph IS NOT NULL AS dag, CASE WHEN r.reason = 'continued' THEN r.output END AS went_on
    FROM {schema}.runs r
    WHERE r.id > $1::uuid AND r.dag_id IS NULL
    ORDER BY r.id LIMIT $2
), looked AS MATERIALIZED (
    SELECT {now} AS now,
           COALESCE((SELECT true FROM {schema}.runs w WHERE w.worker IS NOT NULL ORDER BY w.worker LIMIT 1), false) AS busy,
           count(*) AS seen, min(created_at) AS oldest, max(created_at) AS newest,
           (SELECT id::text FROM page ORDER BY id DESC LIMIT 1) AS last
    FROM page
), old AS MATERIALIZED (
    SELECT p.* FROM page p
    WHERE p.status IN ({ended})
      AND p.completed_at <= (SELECT now FROM looked) - CASE WHEN p.status = 'failed' THEN $4::bigint ELSE $3::bigint END
      AND ($5::text IS NULL OR p.status = $5)
    ORDER BY p.id LIMIT $6
)
SELECT l.now, l.busy, l.seen, l.oldest, l.newest, l.last,
       e.id::text AS id, e.status, e.reason, e.completed_at, e.claim, e.parent_id::text AS parent_id,
       p.status AS parent_status, b.id::text AS before, h.id::text AS continuation, e.origin_id::text AS origin_id, e.dag
FROM looked l LEFT JOIN old e ON true
LEFT JOIN LATERAL (SELECT k.status FROM {schema}.runs k WHERE k.id = e.parent_id OFFSET 0) AS p ON true
LEFT JOIN LATERAL (SELECT k.id FROM {schema}.runs k WHERE k.id = e.origin_id AND k.reason = 'continued'
                   AND k.output = '"' || e.id::text || '"' OFFSET 0) AS b ON true
LEFT JOIN LATERAL (SELECT k.id FROM {schema}.runs k WHERE k.id = CASE WHEN e.went_on ~ '^"[0-9a-f-]{36}"$'
                   THEN substr(e.went_on, 2, 36)::uuid END OFFSET 0) AS h ON true
ORDER BY e.id;

-- override: ended_kin
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
WHERE r.dag_id IS NULL AND r.status IN ({ended})
  AND r.completed_at <= (SELECT now FROM clock) - CASE WHEN r.status = 'failed' THEN $4::bigint ELSE $3::bigint END
  AND ($5::text IS NULL OR r.status = $5)
ORDER BY r.id LIMIT $6;

-- override: weigh
-- How much is recorded of runs: rows, and bytes as they are stored.
SELECT u.id::text AS id, w.rows, COALESCE(w.bytes, 0)::bigint AS bytes
FROM unnest($1::uuid[]) AS u(id)
CROSS JOIN LATERAL (
    SELECT count(*) AS rows, sum(COALESCE(pg_column_size(s.output), 0) + COALESCE(pg_column_size(s.arguments), 0)) AS bytes
    FROM (SELECT u.id UNION ALL SELECT k.id FROM {schema}.runs k WHERE k.dag_id = u.id) AS r(id)
    JOIN {schema}.steps s ON s.run_id = r.id
) AS w;

-- name: remover_turn
-- Whether no other worker removes old runs now. Then it is this one's turn until the end of its transaction. If the row
-- of this turn was deleted, all may: each run is removed once, because its row is locked.
WITH turn AS MATERIALIZED (
    SELECT name FROM {schema}.turns WHERE name = 'removal' FOR NO KEY UPDATE SKIP LOCKED
)
SELECT EXISTS (SELECT 1 FROM turn) OR NOT EXISTS (SELECT 1 FROM {schema}.turns WHERE name = 'removal') AS ours;

-- name: join_links
-- A chain is closed where links were taken out: each of $1 went on as what stands in $2, with $3 between them.
WITH pairs AS MATERIALIZED (
    SELECT u.before, u.after, u.gone FROM unnest($1::uuid[], $2::uuid[], $3::integer[]) AS u(before, after, gone)
), forwards AS (
    UPDATE {schema}.runs r SET output = '"' || p.after::text || '"', links_gone = COALESCE(r.links_gone, 0) + p.gone
    FROM pairs p WHERE r.id = p.before
)
UPDATE {schema}.runs r SET origin_id = p.before FROM pairs p WHERE r.id = p.after;

-- name: remove_run_tags
-- Their tags, which are looked up by what their rows say: the table is sorted by tag. The rows go after this, or by the
-- same statement. Both are looked up one by one: where few runs have tags, the planner would rather read whole tables.
DELETE FROM {schema}.run_tags t WHERE t.ctid = ANY (ARRAY(
    SELECT g.place
    FROM unnest($1::uuid[]) AS u(id)
    CROSS JOIN LATERAL (SELECT k.tags FROM {schema}.runs k WHERE k.id = u.id OFFSET 0) AS r
    CROSS JOIN LATERAL (SELECT {schema}.as_json(r.tags) AS tags WHERE r.tags IS NOT NULL OFFSET 0) AS j
    CROSS JOIN LATERAL (SELECT json_array_elements_text(CASE WHEN json_typeof(j.tags) = 'array' THEN j.tags END) AS tag
                        OFFSET 0) AS e
    CROSS JOIN LATERAL (SELECT k.ctid AS place FROM {schema}.run_tags k
                        WHERE k.tag = e.tag AND k.run_id = u.id OFFSET 0) AS g));
