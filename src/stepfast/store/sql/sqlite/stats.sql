-- Statistics of the last hours, for people. There is no index on when a run ended, for every end would have to write it.
-- So what has ended is found among the newest runs, as many as are asked for; and each answer says how far back they go.

-- name: stats_open
-- Unfinished runs by workflow, queue and status, and the age of the oldest, from the indexes of what is ready, held, due,
-- and at rest: up to ?1 of each. A run that stands in two of them is counted once.
SELECT workflow, queue, status, count(*) AS number, {now} - min(created_at) AS age FROM (
    SELECT * FROM (SELECT id, workflow, queue, status, created_at, dag_id FROM {prefix}runs
                   WHERE place IS NOT NULL AND losses < 2 LIMIT ?1)
    UNION
    SELECT * FROM (SELECT id, workflow, queue, status, created_at, dag_id FROM {prefix}runs
                   WHERE place IS NOT NULL AND losses >= 2 LIMIT ?1)
    UNION
    SELECT * FROM (SELECT id, workflow, queue, status, created_at, dag_id FROM {prefix}runs
                   WHERE worker IS NOT NULL LIMIT ?1)
    UNION
    SELECT * FROM (SELECT id, workflow, queue, status, created_at, dag_id FROM {prefix}runs
                   WHERE visible_at IS NOT NULL ORDER BY visible_at LIMIT ?1)
    UNION
    SELECT * FROM (SELECT id, workflow, queue, status, created_at, dag_id FROM {prefix}runs INDEXED BY {prefix}runs_at_rest
                   WHERE status = 'waiting'
                     AND status IN ('waiting', 'paused', 'failed', 'cancelled', 'compensating', 'compensated')
                     AND dag_id IS NULL LIMIT ?1)
    UNION
    SELECT * FROM (SELECT id, workflow, queue, status, created_at, dag_id FROM {prefix}runs INDEXED BY {prefix}runs_at_rest
                   WHERE status = 'paused'
                     AND status IN ('waiting', 'paused', 'failed', 'cancelled', 'compensating', 'compensated')
                     AND dag_id IS NULL LIMIT ?1)
    UNION
    SELECT * FROM (SELECT id, workflow, queue, status, created_at, dag_id FROM {prefix}runs INDEXED BY {prefix}runs_at_rest
                   WHERE status = 'compensating'
                     AND status IN ('waiting', 'paused', 'failed', 'cancelled', 'compensating', 'compensated')
                     AND dag_id IS NULL LIMIT ?1)
    UNION
    SELECT * FROM (SELECT id, workflow, queue, status, created_at, dag_id FROM {prefix}runs INDEXED BY {prefix}runs_dags
                   WHERE status = 'running' AND graph IS NOT NULL AND dag_id IS NULL LIMIT ?1)
) WHERE dag_id IS NULL GROUP BY workflow, queue, status;

-- name: stats_failures
-- Of the newest ?1 runs that failed, and of as many that failed and were undone, those that ended within the last ?2
-- milliseconds: by workflow, reason and the class of the error; how many, how long ago the last and the first,
-- and the newest of them. Where a step failed,
-- the class of what the step raised: in the try that stands last among its failed ones. Its other form also tells which
-- of them are still failed, and can be retried.
WITH ended AS MATERIALIZED (
    SELECT * FROM (
        SELECT id, status, workflow, reason, completed_at, error FROM {prefix}runs INDEXED BY {prefix}runs_at_rest
        WHERE status = 'failed' AND status IN ('waiting', 'paused', 'failed', 'cancelled', 'compensating', 'compensated')
          AND dag_id IS NULL ORDER BY id DESC LIMIT ?1)
    UNION ALL
    SELECT * FROM (
        SELECT id, status, workflow, reason, completed_at, error FROM {prefix}runs INDEXED BY {prefix}runs_at_rest
        WHERE status = 'compensated' AND status IN ('waiting', 'paused', 'failed', 'cancelled', 'compensating', 'compensated')
          AND dag_id IS NULL ORDER BY id DESC LIMIT ?1)
), typed AS MATERIALIZED (
    SELECT id, status, workflow, reason, completed_at, CASE WHEN json_valid(error) THEN json_extract(error, '$.type') END AS error_type
    FROM ended WHERE completed_at >= {now} - ?2
), traced AS MATERIALIZED (
    SELECT r.id, r.status, r.workflow, r.reason, r.completed_at, r.error_type,
           (SELECT json_array(t.name, CASE WHEN json_valid(t.error) THEN json_extract(t.error, '$.type') END)
            FROM {prefix}tries AS t
            WHERE t.run_id = r.id AND t.position >= 0 AND t.branch <> '~undo' AND r.error_type = 'StepFailed'
            ORDER BY t.branch DESC, t.position DESC, t.attempt DESC, t.number DESC LIMIT 1) AS last
    FROM typed AS r
)
SELECT workflow, reason, json_extract(last, '$[0]') AS step, COALESCE(json_extract(last, '$[1]'), error_type) AS error_type,
       count(*) AS number, {now} - max(completed_at) AS age, {now} - min(completed_at) AS first, max(id) AS newest
-- only in glance_failed_alike
       , group_concat(CASE WHEN status = 'failed' THEN id END, ' ') AS ids
-- end
FROM traced GROUP BY 1, 2, 3, 4;

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
