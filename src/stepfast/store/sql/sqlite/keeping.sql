-- Which runs ended long enough ago, and taking them away with all that belongs to them.
--
-- There is no index of ends: every completion would have to write it. Ids sort by the time of the start, and who ended
-- long ago was started long ago, so that looking from the oldest id on finds them.

-- name: ended_page
-- A look at the next ?2 runs after one (?1): whether anybody executes anything just now, the last of the runs, how many there
-- were, when the first and the last were started; and of those that ended at least ?3 (failed: ?4) milliseconds ago, and
-- so (?5, if it is given), the first ?6, with who may still need them.
WITH page AS MATERIALIZED (
    SELECT id, status, reason, completed_at, created_at, claim, parent_id, origin_id, graph IS NOT NULL AS dag,
           CASE WHEN reason = 'continued' THEN output END AS went_on
    FROM {prefix}runs
    WHERE id > ?1 AND dag_id IS NULL
    ORDER BY id LIMIT ?2
), looked AS MATERIALIZED (
    SELECT {now} AS now,
           EXISTS (SELECT 1 FROM {prefix}runs INDEXED BY {prefix}runs_worker WHERE worker IS NOT NULL) AS busy,
           count(*) AS seen, min(created_at) AS oldest, max(created_at) AS newest, max(id) AS last
    FROM page
), old AS MATERIALIZED (
    SELECT p.* FROM page AS p CROSS JOIN looked AS l
    WHERE p.status IN ({ended})
      AND p.completed_at <= l.now - CASE WHEN p.status = 'failed' THEN ?4 ELSE ?3 END
      AND (?5 IS NULL OR p.status = ?5)
    ORDER BY p.id LIMIT ?6
)
SELECT l.now, l.busy, l.seen, l.oldest, l.newest, l.last,
       e.id, e.status, e.reason, e.completed_at, e.claim, e.parent_id, p.status AS parent_status,
       b.id AS before, h.id AS continuation, e.origin_id, e.dag
FROM looked AS l LEFT JOIN old AS e
LEFT JOIN {prefix}runs AS p ON p.id = e.parent_id
LEFT JOIN {prefix}runs AS b ON b.id = e.origin_id AND b.reason = 'continued' AND b.output = '"' || e.id || '"'
LEFT JOIN {prefix}runs AS h ON h.id = trim(e.went_on, '"')
ORDER BY e.id;

-- name: ended_kin
-- The first ?6 of those that were kept for the sake of runs that are gone now (?1 their ids, ?2 which runs those continued)
-- and ended long enough ago: their children, and what went on as them.
SELECT r.id
FROM (SELECT c.id FROM json_each(?1) AS u CROSS JOIN {prefix}runs AS c ON c.parent_id = u.value AND c.parent_id IS NOT NULL
      UNION
      SELECT b.id FROM json_each(?2) AS u CROSS JOIN {prefix}runs AS b ON b.id = u.value WHERE b.reason = 'continued') AS kin
CROSS JOIN {prefix}runs AS r ON r.id = kin.id
WHERE r.dag_id IS NULL AND r.status IN ({ended})
  AND r.completed_at <= {now} - CASE WHEN r.status = 'failed' THEN ?4 ELSE ?3 END
  AND (?5 IS NULL OR r.status = ?5)
ORDER BY r.id LIMIT ?6;

-- name: weigh
-- How much is recorded of runs: rows, and bytes.
SELECT u.value AS id, count(s.run_id) AS rows,
       COALESCE(sum(COALESCE(octet_length(s.output), 0) + COALESCE(octet_length(s.arguments), 0)), 0) AS bytes
FROM json_each(?) AS u
LEFT JOIN {prefix}steps AS s
    ON s.run_id IN (SELECT u.value UNION ALL SELECT k.id FROM {prefix}runs AS k WHERE k.dag_id = u.value AND k.dag_id IS NOT NULL)
GROUP BY u.value;

-- name: remover_turn
-- Whether nobody else takes runs away just now: there is one writer.
SELECT 1 AS ours;

-- name: join_links
-- A chain is closed where links were taken out: each run before them went on as the one after them.
WITH pair(before, after) AS (VALUES (?, ?))
UPDATE {prefix}runs AS r
SET output = CASE WHEN r.id = pair.before THEN '"' || pair.after || '"' ELSE r.output END,
    origin_id = CASE WHEN r.id = pair.after THEN pair.before ELSE r.origin_id END
FROM pair WHERE r.id IN (pair.before, pair.after);

-- name: remove_run_tags
-- Their tags, which are looked up by what their rows say: the table is sorted by tag. The rows go after this.
WITH gone(id) AS (VALUES (?))
DELETE FROM {prefix}run_tags WHERE (tag, run_id) IN (
    SELECT tag.value, r.id FROM gone CROSS JOIN {prefix}runs AS r ON r.id = gone.id
    CROSS JOIN json_each(CASE WHEN NOT json_valid(r.tags) THEN '[]' WHEN json_type(r.tags) = 'array' THEN r.tags ELSE '[]' END) AS tag
    WHERE r.tags IS NOT NULL);
