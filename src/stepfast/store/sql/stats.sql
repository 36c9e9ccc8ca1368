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
