-- Statistics of the last hours, for people. There is no index on when a run ended, for every end would have to write it.
-- So what has ended is found among the newest runs, as many as are asked for; and each answer says how far back they go.

-- name: stats_ended(most, within)
-- Of the newest `most` runs those that ended within the last `within` milliseconds, by workflow, queue and status. The first row is
-- about all that were looked at: how many, and how old the oldest is.
WITH newest {once} (
    SELECT workflow, queue, status, dag_id, created_at, completed_at FROM {runs} ORDER BY id DESC LIMIT :most
)
SELECT NULL::text AS workflow, NULL::text AS queue, NULL::text AS status, count(*) AS number,
       {now} - min(created_at) AS age FROM newest
UNION ALL
SELECT workflow, queue, status, count(*), NULL FROM newest
WHERE dag_id IS NULL AND completed_at >= (SELECT {now}) - :within GROUP BY workflow, queue, status;

-- name: stats_open(most)
-- Unfinished runs by workflow, queue and status, and the age of the oldest, from the indexes of what is ready, held, due,
-- and at rest: up to `most` of each. A run that stands in two of them is counted once.
SELECT workflow, queue, status, count(*) AS number, {now} - min(created_at) AS age FROM (
    SELECT * FROM (SELECT id, workflow, queue, status, created_at, dag_id FROM {runs}
                   WHERE place IS NOT NULL AND losses < 2 LIMIT :most) AS a
    UNION
    SELECT * FROM (SELECT id, workflow, queue, status, created_at, dag_id FROM {runs}
                   WHERE place IS NOT NULL AND losses >= 2 LIMIT :most) AS b
    UNION
    SELECT * FROM (SELECT id, workflow, queue, status, created_at, dag_id FROM {runs}
                   WHERE worker IS NOT NULL LIMIT :most) AS c
    UNION
    SELECT * FROM (SELECT id, workflow, queue, status, created_at, dag_id FROM {runs}
                   WHERE visible_at IS NOT NULL ORDER BY visible_at LIMIT :most) AS d
    UNION
    SELECT * FROM (SELECT id, workflow, queue, status, created_at, dag_id FROM {runs} {index runs_at_rest}
                   WHERE status = 'waiting'
                     AND status IN ('waiting', 'paused', 'failed', 'cancelled', 'compensating', 'compensated')
                     AND dag_id IS NULL LIMIT :most) AS e
    UNION
    SELECT * FROM (SELECT id, workflow, queue, status, created_at, dag_id FROM {runs} {index runs_at_rest}
                   WHERE status = 'paused'
                     AND status IN ('waiting', 'paused', 'failed', 'cancelled', 'compensating', 'compensated')
                     AND dag_id IS NULL LIMIT :most) AS f
    UNION
    SELECT * FROM (SELECT id, workflow, queue, status, created_at, dag_id FROM {runs} {index runs_at_rest}
                   WHERE status = 'compensating'
                     AND status IN ('waiting', 'paused', 'failed', 'cancelled', 'compensating', 'compensated')
                     AND dag_id IS NULL LIMIT :most) AS g
    UNION
    SELECT * FROM (SELECT id, workflow, queue, status, created_at, dag_id FROM {runs} {index runs_dags}
                   WHERE status = 'running' AND graph IS NOT NULL AND dag_id IS NULL LIMIT :most) AS h
) AS found WHERE dag_id IS NULL GROUP BY workflow, queue, status;

-- name: stats_failures(most, within)
-- Of the newest `most` runs that failed, and of as many that failed and were undone, those that ended within the last
-- `within` milliseconds: by workflow, reason and the class of the error; how many, how long ago the last and the first,
-- and the newest of them. Where a step failed, the class of what the step raised: in the try that stands last among its
-- failed ones. Its other form also tells which of them are still failed, and can be retried.
WITH ended {once} (
    SELECT * FROM (
        SELECT id, status, workflow, reason, completed_at, error FROM {runs} {index runs_at_rest}
        WHERE status = 'failed' AND status IN ('waiting', 'paused', 'failed', 'cancelled', 'compensating', 'compensated')
          AND dag_id IS NULL ORDER BY id DESC LIMIT :most) AS a
    UNION ALL
    SELECT * FROM (
        SELECT id, status, workflow, reason, completed_at, error FROM {runs} {index runs_at_rest}
        WHERE status = 'compensated' AND status IN ('waiting', 'paused', 'failed', 'cancelled', 'compensating', 'compensated')
          AND dag_id IS NULL ORDER BY id DESC LIMIT :most) AS b
), typed {once} (
    SELECT id, status, workflow, reason, completed_at,
           CASE WHEN json_valid(error) THEN {field error, '$.type'} END AS error_type
    FROM ended WHERE completed_at >= {now} - :within
), traced {once} (
    SELECT r.id, r.status, r.workflow, r.reason, r.completed_at, r.error_type,
           (SELECT json_array(t.name, CASE WHEN json_valid(t.error) THEN {field t.error, '$.type'} END)
            FROM {tries} t
            WHERE t.run_id = r.id AND t.position >= 0 AND t.branch <> '~undo' AND r.error_type = 'StepFailed'
            ORDER BY t.branch DESC, t.position DESC, t.attempt DESC, t.number DESC LIMIT 1) AS latest
    FROM typed r
)
SELECT workflow, reason, {field latest, '$[0]'} AS step, COALESCE({field latest, '$[1]'}, error_type) AS error_type,
       count(*) AS number, {now} - max(completed_at) AS age, {now} - min(completed_at) AS first, max(id) AS newest
-- only in glance_failed_alike
       , {joined CASE WHEN status = 'failed' THEN id END} AS ids
-- end
FROM traced GROUP BY 1, 2, 3, 4;
