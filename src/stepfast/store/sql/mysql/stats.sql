-- Statistics of the last hours, for people.

-- name: stats_steps(most, within, steps)
-- How long steps took, in milliseconds: of the newest `most` runs, of each its first 200 records, of all these the first
-- `steps`, those that were completed within the last `within` milliseconds. A step of a dag is a run by itself.
SELECT workflow, name, took FROM (
    SELECT * FROM (
        SELECT r.id, r.workflow, s.name, s.kind, s.status, s.completed_at, s.completed_at - s.started_at AS took,
               row_number() OVER (PARTITION BY s.run_id ORDER BY s.branch, s.position) AS n
        FROM (SELECT id, workflow FROM {runs} ORDER BY id DESC LIMIT :most) AS r {join} {steps} s ON s.run_id = r.id
    ) AS numbered WHERE n <= 200 ORDER BY id DESC, n LIMIT :steps) AS looked_at
WHERE status = 'completed' AND kind IN ('step', 'transaction', 'remote') AND completed_at >= {now} - :within
UNION ALL
SELECT * FROM (
    SELECT substr(workflow, 1, char_length(workflow) - char_length(dag_step) - 1) AS workflow, dag_step,
           completed_at - started_at AS took
    FROM (SELECT workflow, dag_step, status, started_at, completed_at FROM {runs} ORDER BY id DESC LIMIT :most) AS d
    WHERE dag_step IS NOT NULL AND status = 'completed' AND started_at IS NOT NULL AND completed_at >= {now} - :within
    LIMIT :steps) AS of_dags;
