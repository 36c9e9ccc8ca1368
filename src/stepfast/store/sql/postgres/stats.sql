-- Statistics of the last hours, for people. There is no index on when a run ended, for every end would have to write it.
-- So what has ended is found among the newest runs, as many as are asked for; and each answer says how far back they go.

-- override: stats_open
-- Unfinished runs by workflow, queue and status, and the age of the oldest, from the indexes of what is ready, held, due,
-- and at rest: up to $1 of each. A run that stands in two of them is counted once.
SELECT workflow, queue, status, count(*) AS number, {now} - min(created_at) AS age FROM (
    (SELECT id, workflow, queue, status, created_at, dag_id FROM {schema}.runs WHERE place IS NOT NULL AND losses < 2
     ORDER BY queue, workflow, priority, place LIMIT $1)
    UNION
    (SELECT id, workflow, queue, status, created_at, dag_id FROM {schema}.runs WHERE place IS NOT NULL AND losses >= 2
     ORDER BY losses, priority DESC, place LIMIT $1)
    UNION
    (SELECT id, workflow, queue, status, created_at, dag_id FROM {schema}.runs WHERE worker IS NOT NULL
     ORDER BY worker LIMIT $1)
    UNION
    (SELECT id, workflow, queue, status, created_at, dag_id FROM {schema}.runs WHERE visible_at IS NOT NULL
     ORDER BY visible_at LIMIT $1)
    UNION
    (SELECT id, workflow, queue, status, created_at, dag_id FROM {schema}.runs
     WHERE status = 'waiting' AND dag_id IS NULL ORDER BY id LIMIT $1)
    UNION
    (SELECT id, workflow, queue, status, created_at, dag_id FROM {schema}.runs
     WHERE status = 'paused' AND dag_id IS NULL ORDER BY id LIMIT $1)
    UNION
    (SELECT id, workflow, queue, status, created_at, dag_id FROM {schema}.runs
     WHERE status = 'compensating' AND dag_id IS NULL ORDER BY id LIMIT $1)
    UNION
    (SELECT id, workflow, queue, status, created_at, dag_id FROM {schema}.runs
     WHERE status = 'running' AND graph IS NOT NULL AND dag_id IS NULL ORDER BY id LIMIT $1)
) AS r WHERE dag_id IS NULL GROUP BY workflow, queue, status;

-- override: stats_failures
-- Of the newest $1 runs that failed, and of as many that failed and were undone, those that ended within the last $2
-- milliseconds: by workflow, reason and the class of the error; how many, how long ago the last and the first,
-- and the newest of them. Where a step failed,
-- the class of what the step raised: in the try that stands last among its failed ones. Its other form also tells which
-- of them are still failed, and can be retried.
SELECT f.workflow, f.reason, f.step, f.error_type, count(*) AS number, {now} - max(f.completed_at) AS age,
       {now} - min(f.completed_at) AS first, max(f.id COLLATE "C") AS newest
-- only in glance_failed_alike
       , string_agg(f.id, ' ') FILTER (WHERE f.status = 'failed') AS ids
-- end
FROM (
    SELECT r.id::text AS id, r.status, r.workflow, r.reason, r.completed_at, t.name AS step,
           COALESCE(CASE WHEN t.error LIKE '{%' THEN {schema}.as_json(replace(t.error, '\u0000', '\u0001')) ->> 'type' END, r.error_type) AS error_type
    FROM (
        SELECT id, status, workflow, reason, completed_at,
               CASE WHEN error LIKE '{%' THEN {schema}.as_json(replace(error, '\u0000', '\u0001')) ->> 'type' END AS error_type
        FROM (
            (SELECT id, status, workflow, reason, completed_at, error FROM {schema}.runs
             WHERE status = 'failed' AND dag_id IS NULL ORDER BY id DESC LIMIT $1)
            UNION ALL
            (SELECT id, status, workflow, reason, completed_at, error FROM {schema}.runs
             WHERE status = 'compensated' AND dag_id IS NULL ORDER BY id DESC LIMIT $1)
        ) AS ended WHERE completed_at >= (SELECT {now}) - $2
    ) AS r LEFT JOIN LATERAL (
        SELECT name, error FROM {schema}.tries
        WHERE run_id = r.id AND position >= 0 AND branch <> '~undo' AND r.error_type = 'StepFailed'
        ORDER BY run_id DESC, branch DESC, position DESC, attempt DESC, number DESC LIMIT 1
    ) AS t ON true
) AS f GROUP BY f.workflow, f.reason, f.step, f.error_type;

-- name: stats_steps
-- How long steps took, in milliseconds: of the newest $1 runs, of each its first 200 records, of all these the first $3,
-- those that were completed within the last $2 milliseconds. A step of a dag is a run by itself.
(SELECT workflow, name, completed_at - started_at AS took
 FROM (SELECT r.workflow, s.name, s.kind, s.status, s.started_at, s.completed_at
       FROM (SELECT id, workflow FROM {schema}.runs ORDER BY id DESC LIMIT $1) AS r CROSS JOIN LATERAL (
           SELECT name, kind, status, started_at, completed_at FROM {schema}.steps
           WHERE run_id = r.id ORDER BY branch, position LIMIT 200
       ) AS s
       ORDER BY r.id DESC LIMIT $3) AS looked_at
 WHERE status = 'completed' AND kind IN ('step', 'transaction', 'remote') AND completed_at >= (SELECT {now}) - $2)
UNION ALL
(SELECT left(workflow, -length(dag_step) - 1), dag_step, completed_at - started_at
 FROM (SELECT workflow, dag_step, status, started_at, completed_at FROM {schema}.runs ORDER BY id DESC LIMIT $1) AS d
 WHERE dag_step IS NOT NULL AND status = 'completed' AND started_at IS NOT NULL AND completed_at >= (SELECT {now}) - $2
 LIMIT $3);
