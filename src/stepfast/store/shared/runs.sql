-- Reading runs.

-- name: outcomes
-- Those of the given runs that have ended: one question for everybody who waits in a process.
SELECT id::text, status, reason, output, error, COALESCE(output_format, format) FROM {schema}.runs
WHERE id = ANY($1::uuid[]) AND status IN ({ended});

-- name: run
-- One run, for people.
SELECT id::text, workflow, version, queue, status, reason, waiting_for, input, output, error, format, output_format, attempt, max_attempts,
       losses, claim, priority, COALESCE(key, debounced) AS key, tags, parent_id::text, worker::text, visible_at, created_at, started_at, completed_at,
       deadline_at, expires_at, asked, place IS NOT NULL AS ready, {now} AS now_ms, undoing, origin_id::text, graph,
       timeout_ms, deadline_ms, paused_at, dag_id::text, false AS large_output, concurrency_key, executed_by::text,
       (SELECT w.host FROM {schema}.known_workers w WHERE w.id = executed_by) AS host,
       (SELECT w.pid FROM {schema}.known_workers w WHERE w.id = executed_by) AS pid, unrecorded_losses
FROM {schema}.runs WHERE id = $1;

-- name: with_key
-- The run of a workflow ($1) that has a key ($2), or that was debounced by it and has not begun.
SELECT id::text AS id, 0 AS n FROM {schema}.runs WHERE workflow = $1 AND key = $2 AND key IS NOT NULL
UNION ALL
SELECT id::text, 1 FROM {schema}.runs
WHERE workflow = $1 AND debounced = $2 AND debounced IS NOT NULL AND started_at IS NULL AND completed_at IS NULL
ORDER BY n LIMIT 1;

-- name: continuation
-- The last of the runs that one went on as; itself, if it did not.
WITH RECURSIVE chain AS (
    SELECT r.id, 0 AS n, CASE WHEN r.reason = 'continued' THEN {went_on} END AS next
    FROM {schema}.runs r WHERE r.id = $1
    UNION ALL
    SELECT r.id, c.n + 1, CASE WHEN r.reason = 'continued' THEN {went_on} END
    FROM chain c {join} {schema}.runs r ON r.id = c.next
)
SELECT id::text FROM chain ORDER BY n DESC LIMIT 1;

-- name: continuations
-- Several runs, and of each the last of the runs that it went on as; itself, if it did not.
WITH RECURSIVE chain AS (
    SELECT r.id AS named, r.id, 0 AS n, CASE WHEN r.reason = 'continued' THEN {went_on} END AS next
    FROM unnest($1::uuid[]) AS u(id) {join} {schema}.runs r ON r.id = u.id
    UNION ALL
    SELECT c.named, r.id, c.n + 1, CASE WHEN r.reason = 'continued' THEN {went_on} END
    FROM chain c {join} {schema}.runs r ON r.id = c.next
)
SELECT named::text, id::text
FROM (SELECT named, id, row_number() OVER (PARTITION BY named ORDER BY n DESC) AS back FROM chain) AS links
WHERE back = 1;

-- name: runs_named
-- Runs whose ids are known, as lists have them. Large payloads are left out: fifty of the largest would be 800 MB.
SELECT id::text, workflow, version, queue, status, reason, waiting_for,
       CASE WHEN octet_length(input) <= {listed} THEN input END AS input,
       CASE WHEN octet_length(output) <= {listed} THEN output END AS output, error, format, output_format, attempt, max_attempts,
       losses, claim, priority, COALESCE(key, debounced) AS key, tags, parent_id::text, worker::text, visible_at, created_at, started_at, completed_at,
       deadline_at, expires_at, asked, place IS NOT NULL AS ready, {now} AS now_ms, undoing, origin_id::text, graph,
       timeout_ms, deadline_ms, paused_at,
       NULL AS dag_id, COALESCE(octet_length(output) > {listed}, false) AS large_output, concurrency_key, executed_by::text,
       (SELECT w.host FROM {schema}.known_workers w WHERE w.id = executed_by) AS host,
       (SELECT w.pid FROM {schema}.known_workers w WHERE w.id = executed_by) AS pid
FROM {schema}.runs WHERE id = ANY($1::uuid[]);

-- name: dags_shown
-- How dag runs are shown that are among these.
SELECT id::text, status, waiting_for, due_at FROM {schema}.dags_shown WHERE id = ANY($1::uuid[]);

-- name: ids_between
-- Runs by the beginning of their ids, for people who do not type them whole. Steps of dag runs are not meant.
-- Children of a run that is found itself are not meant either: their ids begin as its own does.
SELECT r.id::text FROM {schema}.runs AS r
WHERE r.id >= $1 AND r.id <= $2 AND r.dag_id IS NULL
  AND NOT EXISTS (SELECT 1 FROM {schema}.runs AS p WHERE p.id = r.parent_id AND p.id >= $1 AND p.id <= $2)
ORDER BY r.id LIMIT $3;

-- name: unread
-- Signals that a run has not taken, by name.
SELECT name, count(*) AS number FROM {schema}.mailbox WHERE run_id = $1 AND kind = 'signal'
GROUP BY name ORDER BY min(sent_at) LIMIT $2;

-- name: awaited
-- What is kept of the open waits of one run for a signal.
SELECT output FROM {schema}.steps WHERE run_id = $1 AND name = $2 AND kind = 'signal' AND status = 'waiting';

-- name: steps
-- A page of recorded outcomes of one run, by branch and position.
SELECT branch, position, seq, name, kind, status, output, error, arguments, attempts, started_at, completed_at, line,
       format, undo, claim, losses
FROM {schema}.steps WHERE run_id = $1 AND (branch, position) > ($2, $3) ORDER BY branch, position LIMIT $4;

-- name: executors
-- Who executed some runs: for each stretch of claims the last one, and the worker.
SELECT c.run_id::text, c.claim, c.worker::text,
       (SELECT w.host FROM {schema}.known_workers w WHERE w.id = c.worker) AS host,
       (SELECT w.pid FROM {schema}.known_workers w WHERE w.id = c.worker) AS pid
FROM (SELECT id AS run_id, 2147483647 AS claim, executed_by AS worker FROM {schema}.runs
      WHERE id = ANY($1::uuid[]) AND executed_by IS NOT NULL
      UNION ALL
      SELECT run_id, claim, worker FROM {schema}.claims WHERE run_id = ANY($1::uuid[])) AS c
ORDER BY c.claim;

-- name: progress
-- What is under way in one run.
SELECT branch, position, name, detail, data, started_at, format
FROM {schema}.progress p
WHERE run_id = $1 AND NOT EXISTS (
    SELECT 1 FROM {schema}.steps s
    WHERE s.run_id = p.run_id AND s.branch = p.branch AND s.position = p.position AND s.status <> 'waiting')
ORDER BY branch, position;

-- name: last_words
-- What steps of one run have told of their progress, from one address to another, whether they have ended or not.
SELECT branch, position, name, detail, data, started_at, format
FROM {schema}.progress p
WHERE run_id = $1 AND (branch, position) >= ($2, $3) AND (branch, position) <= ($4, $5)
  AND (detail IS NOT NULL OR data IS NOT NULL);

-- name: failed_calls
-- How often steps of one run have failed in an attempt.
SELECT branch, position, count(*) AS number FROM {schema}.tries
WHERE run_id = $1 AND attempt = $2 AND position >= 0 GROUP BY branch, position;

-- name: value
-- A value that a run lets others read.
SELECT value, format FROM {schema}.run_values WHERE run_id = $1 AND key = $2;

-- name: values
-- All values that a run lets others read.
SELECT key, value, format FROM {schema}.run_values WHERE run_id = $1 ORDER BY key;

-- name: seed
-- The secret of a run, for a replay outside of a worker.
SELECT seed FROM {schema}.runs WHERE id = $1;

-- name: activity
-- A page of the calls of one run, by address and try.
SELECT branch, position, name, attempt, number, status, arguments, output, error, started_at, completed_at, format, claim, losses
FROM {schema}.activity WHERE run_id = $1 AND (branch, position, attempt, number) > ($2, $3, $4, $5)
ORDER BY branch, position, attempt, number LIMIT $6;

-- name: put_definitions
-- What the database knows of workflows; the newest sight of a version makes it the current one.
INSERT INTO {schema}.definitions (name, version, kind, queue, options, input_schema, graph, registered_at, seen_at)
SELECT d.*, t.now, t.now
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[])
     AS d(name, version, kind, queue, options, input_schema, graph)
CROSS JOIN (SELECT {now} AS now) AS t
WHERE true
ON CONFLICT (name, version) DO UPDATE
SET kind = excluded.kind, queue = excluded.queue, options = excluded.options, input_schema = excluded.input_schema,
    graph = excluded.graph, seen_at = excluded.seen_at;

-- name: definitions
-- The current definition of every workflow.
SELECT name, version, kind, queue, options, input_schema, graph FROM (
    SELECT name, version, kind, queue, options, input_schema, graph,
           row_number() OVER (PARTITION BY name ORDER BY seen_at DESC) AS n
    FROM {schema}.definitions
) AS known WHERE n = 1 ORDER BY name;
