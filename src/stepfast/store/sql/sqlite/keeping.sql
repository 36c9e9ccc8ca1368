-- Which runs ended long enough ago, and taking them away with all that belongs to them.
--
-- There is no index of ends: every completion would have to write it. Ids sort by the time of the start, and who ended
-- long ago was started long ago, so that looking from the oldest id on finds them.

-- name: remover_turn
-- Whether no other process removes runs just now: there is one writer.
SELECT 1 AS ours;

-- name: join_links
-- A chain is closed where links were taken out: each run before them went on as the one after them.
WITH pair(before, after, gone) AS (VALUES (?, ?, ?))
UPDATE {prefix}runs AS r
SET output = CASE WHEN r.id = pair.before THEN '"' || pair.after || '"' ELSE r.output END,
    links_gone = CASE WHEN r.id = pair.before THEN COALESCE(r.links_gone, 0) + pair.gone ELSE r.links_gone END,
    origin_id = CASE WHEN r.id = pair.after THEN pair.before ELSE r.origin_id END
FROM pair WHERE r.id IN (pair.before, pair.after);

-- name: remove_run_tags
-- Their tags, which are looked up by what their rows say: the table is sorted by tag. The rows go after this.
WITH gone(id) AS (VALUES (?))
DELETE FROM {prefix}run_tags WHERE (tag, run_id) IN (
    SELECT tag.value, r.id FROM gone CROSS JOIN {prefix}runs AS r ON r.id = gone.id
    CROSS JOIN json_each(CASE WHEN NOT json_valid(r.tags) THEN '[]' WHEN json_type(r.tags) = 'array' THEN r.tags ELSE '[]' END) AS tag
    WHERE r.tags IS NOT NULL);
