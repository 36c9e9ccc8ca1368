-- Statistics of the last hours, for people. There is no index on when a run ended, for every end would have to write it.
-- So what has ended is found among the newest runs, as many as are asked for; and each answer says how far back they go.

-- name: stats_steps
-- How long steps took, in milliseconds: of the newest ?1 runs, of each its first 200 records, of all these the first ?3,
-- those that were completed within the last ?2 milliseconds. A step of a dag is a run by itself.
SELECT workflow, name, took FROM (
    SELECT r.workflow, s.name, s.kind, s.status, s.completed_at, s.completed_at - s.started_at AS took
    FROM (SELECT id, workflow FROM {prefix}runs ORDER BY id DESC LIMIT ?1) AS r
         CROSS JOIN {prefix}steps AS s ON s.run_id = r.id AND (s.branch, s.position) IN (
             SELECT f.branch, f.position FROM {prefix}steps AS f
             WHERE f.run_id = r.id ORDER BY f.branch, f.position LIMIT 200)
    LIMIT ?3)
WHERE status = 'completed' AND kind IN ('step', 'transaction', 'remote') AND completed_at >= {now} - ?2
UNION ALL
SELECT * FROM (
    SELECT substr(workflow, 1, length(workflow) - length(dag_step) - 1), dag_step, completed_at - started_at
    FROM (SELECT workflow, dag_step, status, started_at, completed_at FROM {prefix}runs ORDER BY id DESC LIMIT ?1)
    WHERE dag_step IS NOT NULL AND status = 'completed' AND started_at IS NOT NULL AND completed_at >= {now} - ?2
    LIMIT ?3);
