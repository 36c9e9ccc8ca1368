-- Glances: what people who watch ask for, again and again, beside those who work. Each looks at no more rows than it is told
-- to, however many there are; none reads a payload that it was not asked for.
--
-- Those that find runs are given all filters (?1 workflow, ?2 status, ?3 queue, ?4 the run they go on from, ?5 reason,
-- ?6 key, ?7 how many, ?8 since, ?9 older, ?10 how far, ?11 tag), walk ?10 rows along an index from the newest back (or, with
-- the words in braces the other way round, from the oldest on), and stop when they have ?7. They bring ids, and whether the run is a dag run under way, which may be shown otherwise than its row
-- says. The walk is a query of its own with an order; the one around it has none, for SQLite would then walk to the end
-- and sort. It passes rows on as they come.

-- name: glance_of_workflow
-- Along the ids of one workflow, for which there is an index here.
SELECT r.id, r.status = 'running' AND r.graph IS NOT NULL AS dag
FROM (SELECT id, status, queue, reason, key, debounced, created_at, graph, dag_id FROM {prefix}runs
      WHERE workflow = ?1 AND id {beyond} COALESCE(?4, '{edge}') ORDER BY id {direction} LIMIT ?10) AS r
WHERE r.dag_id IS NULL
  AND (?2 IS NULL OR r.status = ?2)
  AND (?3 IS NULL OR r.queue = ?3)
  AND (?5 IS NULL OR r.reason = ?5)
  AND (?6 IS NULL OR r.key = ?6 OR r.debounced = ?6)
  AND (?8 IS NULL OR r.created_at >= {now} - ?8)
  AND (?9 IS NULL OR r.created_at < {now} - ?9)
  AND ?11 IS NULL
LIMIT ?7;

-- name: glance_end_of_workflow
-- The same of one workflow (?3).
SELECT {last}(id), count(*) AS seen
FROM (SELECT id FROM {prefix}runs WHERE workflow = ?3 AND id {beyond} COALESCE(?1, '{edge}') ORDER BY id {direction} LIMIT ?2);

-- name: glance_children
-- Up to ?2 children of each of these runs (?1), in no order.
WITH RECURSIVE walk(parent, number, n) AS (
    SELECT u.value, (SELECT min(k.rowid) FROM {prefix}runs AS k WHERE k.parent_id = u.value AND k.parent_id IS NOT NULL), 1
    FROM json_each(?1) AS u
    UNION ALL
    SELECT w.parent, (SELECT min(k.rowid) FROM {prefix}runs AS k
                      WHERE k.parent_id = w.parent AND k.parent_id IS NOT NULL AND k.rowid > w.number), w.n + 1
    FROM walk AS w WHERE w.n < ?2 AND w.number IS NOT NULL
)
SELECT w.parent, c.id AS child FROM walk AS w CROSS JOIN {prefix}runs AS c ON c.rowid = w.number WHERE w.number IS NOT NULL;

-- name: glance_news
-- Whether something has happened to runs (?1), or to the newest ?2 of all: texts that differ when it has. Of what a run
-- holds no more is looked at than its page shows.
SELECT r.id AS run, json_array(
           r.status, r.reason, r.waiting_for, r.worker, r.asked, r.claim, r.attempt, r.losses, r.wakes, r.ends, r.visible_at,
           r.completed_at, r.paused_at,
           (SELECT json_array(count(*), max(k.seq), sum(k.status = 'waiting'))
            FROM (SELECT seq, status FROM {prefix}steps WHERE run_id = r.id ORDER BY branch, position LIMIT 501) AS k),
           (SELECT count(*) FROM (SELECT 1 FROM {prefix}tries WHERE run_id = r.id LIMIT 501)),
           (SELECT json_array(count(*), max(k.updated_at))
            FROM (SELECT updated_at FROM {prefix}progress WHERE run_id = r.id LIMIT 501) AS k),
           (SELECT json_array(count(*), max(k.updated_at))
            FROM (SELECT updated_at FROM {prefix}run_values WHERE run_id = r.id LIMIT 501) AS k),
           (SELECT count(*) FROM (SELECT 1 FROM {prefix}mailbox WHERE run_id = r.id LIMIT 21)),
           (SELECT group_concat(k.status || k.claim, ' ')
            FROM (SELECT status, claim FROM {prefix}runs WHERE parent_id = r.id AND parent_id IS NOT NULL LIMIT 21) AS k),
           (SELECT group_concat(k.status || k.claim, ' ')
            FROM (SELECT status, claim FROM {prefix}runs WHERE dag_id = r.id AND dag_id IS NOT NULL
                  ORDER BY dag_step LIMIT 501) AS k)) AS stands
FROM json_each(?1) AS u CROSS JOIN {prefix}runs AS r ON r.id = u.value
UNION ALL
SELECT '', json_array(n.id, n.status, n.reason, n.waiting_for, n.claim, n.attempt)
FROM (SELECT * FROM {prefix}runs ORDER BY id DESC LIMIT ?2) AS n;

-- name: glance_sizes
-- The tables of the namespace (?1 is what their names begin with), without those of another one that begins like it.
-- How many rows there are is known of none, and for `runs` guessed from the numbers that SQLite gives its rows.
SELECT substr(name, length(?1) + 1),
       CASE WHEN name = ?1 || 'runs' THEN (SELECT COALESCE(max(rowid) - min(rowid) + 1, 0) FROM {prefix}runs) END AS number,
       NULL AS bytes, NULL AS of_indexes, NULL AS dead
FROM sqlite_master t WHERE type = 'table' AND substr(name, 1, length(?1)) = ?1 AND NOT EXISTS (
    SELECT 1 FROM sqlite_master other
    WHERE other.type = 'table' AND substr(other.name, -5) = '_meta' AND length(other.name) - 4 > length(?1)
      AND substr(other.name, 1, length(?1)) = ?1
      AND substr(t.name, 1, length(other.name) - 4) = substr(other.name, 1, length(other.name) - 4)
) ORDER BY 1 LIMIT 100;
