-- Starting runs and reading them.

-- name: start(u(id uuid, input text, key text, place bigint, workflow text, version text, queue text, priority integer,
--     visible_at bigint, max_attempts integer, timeout_ms bigint, deadline_ms bigint, deadline_at bigint,
--     expires_at bigint, tags text, concurrency_key text, format smallint, seed text, created_at bigint))
-- Many starts; a repeated one finds its id taken, a keyed one perhaps its key, and changes nothing.
INSERT INTO {runs} (id, input, key, place, workflow, version, queue, priority, visible_at, max_attempts, timeout_ms,
                    deadline_ms, deadline_at, expires_at, tags, concurrency_key, format, seed, created_at, status)
SELECT u.*, 'queued'
FROM {rows u}
WHERE true
{skip_any id};

-- name: start_linked(u(id uuid, input text, key text, place bigint, workflow text, version text, queue text,
--     priority integer, visible_at bigint, max_attempts integer, timeout_ms bigint, deadline_ms bigint,
--     deadline_at bigint, expires_at bigint, tags text, concurrency_key text, format smallint, seed text,
--     created_at bigint, status text, waiting_for text, started_at bigint, ready_at bigint, parent_id uuid,
--     parent_branch text, parent_position integer, reply_to uuid, origin_id uuid, trace text, graph text, dag_id uuid,
--     dag_step text, pending integer, ordinal integer, unique_name text, awaits_name text))
-- The same for runs that belong to another one, as its child, as what continues it, or as a step of a dag; for dag runs;
-- for those of a trace; and for those of a name that one live run has alone.
INSERT INTO {runs} (id, input, key, place, workflow, version, queue, priority, visible_at, max_attempts, timeout_ms,
                    deadline_ms, deadline_at, expires_at, tags, concurrency_key, format, seed, created_at, status,
                    waiting_for, started_at, ready_at, parent_id, parent_branch, parent_position, reply_to, origin_id,
                    trace, graph, dag_id, dag_step, pending, ordinal, unique_name, awaits_name)
SELECT u.*
FROM {rows u}
WHERE true
{skip_any id};

-- name: start_tags(u(id uuid, tag text))
-- The tags of runs just started, for finding them again; none for a run that lost its key to an earlier one.
INSERT INTO {run_tags} (tag, run_id)
SELECT u.tag, r.id FROM {rows u} {join} {runs} r ON r.id = u.id
WHERE true
{skip_any tag};

-- name: start_graphs(u(id uuid, graph text))
-- Copies of graphs that may not be stored yet, for dag runs that were started in this transaction.
INSERT INTO {run_values} (run_id, key, value, format, updated_at)
SELECT r.id, '~graph', u.graph, 1, r.created_at FROM {rows u} {join} {runs} r ON r.id = u.id
WHERE true
{skip run_id, key};

-- name: by_keys(u(workflow text, key text, id uuid))
-- Which runs have these keys, ours or those of earlier starts.
SELECT u.id::text AS ours, r.id FROM {rows u}
{join} {runs} r ON r.workflow = u.workflow AND r.key = u.key AND r.key IS NOT NULL;

-- name: earlier(ids uuid[])
-- What runs were started with, where that is small, so that a key which is used again for something else is detected.
SELECT r.id, r.input, r.format FROM {runs} r WHERE r.id {in ids} AND octet_length(r.input) <= 4096;

-- name: outcomes(ids uuid[])
-- Those of the given runs that have ended: one question for all callers that wait in a process.
SELECT id::text, status, reason, output, error, COALESCE(output_format, format) FROM {runs}
WHERE id {in ids} AND status IN ({ended});

-- name: run(id)
-- One run, for people.
SELECT id::text, workflow, version, queue, status, reason, waiting_for, input, output, error, format, output_format, attempt, max_attempts,
       losses, claim, priority, COALESCE(key, debounced) AS key, tags, parent_id::text, worker::text, visible_at, created_at, started_at, completed_at,
       deadline_at, expires_at, asked, place IS NOT NULL AS ready, {now} AS now_ms, undoing, origin_id::text, graph,
       timeout_ms, deadline_ms, paused_at, dag_id::text, false AS large_output, concurrency_key, executed_by::text,
       (SELECT w.host FROM {known_workers} w WHERE w.id = executed_by) AS host,
       (SELECT w.pid FROM {known_workers} w WHERE w.id = executed_by) AS pid, COALESCE(unique_name, awaits_name) AS unique_name,
       {attributes id} AS attributes, unrecorded_losses
FROM {runs} WHERE id = :id;

-- name: with_key(workflow, key)
-- The run of a workflow (`workflow`) that has a key (`key`), or that was debounced by it and has not begun.
SELECT id::text AS id, 0 AS n FROM {runs} WHERE workflow = :workflow AND key = :key AND key IS NOT NULL
UNION ALL
SELECT id::text, 1 FROM {runs}
WHERE workflow = :workflow AND debounced = :key AND debounced IS NOT NULL AND started_at IS NULL AND completed_at IS NULL
ORDER BY n LIMIT 1;

-- name: continuation(run_id)
-- The last of the runs that one went on as; itself, if it did not.
WITH RECURSIVE chain AS (
    SELECT r.id, 0 AS n, CASE WHEN r.reason = 'continued' THEN {went_on} END AS next
    FROM {runs} r WHERE r.id = :run_id
    UNION ALL
    SELECT r.id, c.n + 1, CASE WHEN r.reason = 'continued' THEN {went_on} END
    FROM chain c {join} {runs} r ON r.id = c.next
)
SELECT id::text FROM chain ORDER BY n DESC LIMIT 1;

-- name: continuations(u(id uuid))
-- Several runs, and of each the last of the runs that it went on as; itself, if it did not.
WITH RECURSIVE chain AS (
    SELECT r.id AS named, r.id, 0 AS n, CASE WHEN r.reason = 'continued' THEN {went_on} END AS next
    FROM {rows u} {join} {runs} r ON r.id = u.id
    UNION ALL
    SELECT c.named, r.id, c.n + 1, CASE WHEN r.reason = 'continued' THEN {went_on} END
    FROM chain c {join} {runs} r ON r.id = c.next
)
SELECT named::text, id::text
FROM (SELECT named, id, row_number() OVER (PARTITION BY named ORDER BY n DESC) AS back FROM chain) AS links
WHERE back = 1;

-- name: runs_named(ids uuid[])
-- Runs whose ids are known, as lists have them. Large payloads are left out: fifty of the largest would be 800 MB.
SELECT id::text, workflow, version, queue, status, reason, waiting_for,
       CASE WHEN octet_length(input) <= {listed} THEN input END AS input,
       CASE WHEN octet_length(output) <= {listed} THEN output END AS output, error, format, output_format, attempt, max_attempts,
       losses, claim, priority, COALESCE(key, debounced) AS key, tags, parent_id::text, worker::text, visible_at, created_at, started_at, completed_at,
       deadline_at, expires_at, asked, place IS NOT NULL AS ready, {now} AS now_ms, undoing, origin_id::text, graph,
       timeout_ms, deadline_ms, paused_at,
       NULL AS dag_id, COALESCE(octet_length(output) > {listed}, false) AS large_output, concurrency_key, executed_by::text,
       (SELECT w.host FROM {known_workers} w WHERE w.id = executed_by) AS host,
       (SELECT w.pid FROM {known_workers} w WHERE w.id = executed_by) AS pid, COALESCE(unique_name, awaits_name) AS unique_name,
       {attributes id} AS attributes
FROM {runs} WHERE id {in ids};

-- name: dags_shown(ids uuid[])
-- How dag runs are shown that are among these.
SELECT id::text, status, waiting_for, due_at FROM {dags_shown} WHERE id {in ids};

-- name: ids_between(low, high, most)
-- Runs by the beginning of their ids, for people who do not type them whole. Steps of dag runs are not meant.
-- Children of a run that is found itself are not meant either: their ids begin as its own does.
SELECT r.id::text FROM {runs} AS r
WHERE r.id >= :low AND r.id <= :high AND r.dag_id IS NULL
  AND NOT EXISTS (SELECT 1 FROM {runs} AS p WHERE p.id = r.parent_id AND p.id >= :low AND p.id <= :high)
ORDER BY r.id LIMIT :most;

-- name: unread(run_id, most)
-- Signals that a run has not taken, by name.
SELECT name, count(*) AS number FROM {mailbox} WHERE run_id = :run_id AND kind = 'signal'
GROUP BY name ORDER BY min(sent_at) LIMIT :most;

-- name: awaited(run_id, name)
-- What is kept of the open waits of one run for a signal.
SELECT output FROM {steps} WHERE run_id = :run_id AND name = :name AND kind = 'signal' AND status = 'waiting';

-- name: steps(run_id, branch, position, most)
-- A page of recorded outcomes of one run, by branch and position.
SELECT branch, position, seq, name, kind, status, output, error, arguments, attempts, started_at, completed_at, line,
       format, undo, claim, losses
FROM {steps} WHERE run_id = :run_id AND (branch, position) > (:branch, :position) ORDER BY branch, position LIMIT :most;

-- name: steps_since(run_id, seq, most)
-- Recorded outcomes of one run that were recorded after another, in their order.
SELECT branch, position, seq, name, kind, status, output, error, arguments, attempts, started_at, completed_at, line,
       format, undo, claim, losses
FROM {steps} WHERE run_id = :run_id AND seq > :seq ORDER BY seq, branch, position LIMIT :most;

-- name: executors(ids uuid[])
-- Who executed some runs: for each stretch of claims the last one, and the worker.
SELECT c.run_id::text, c.claim, c.worker::text,
       (SELECT w.host FROM {known_workers} w WHERE w.id = c.worker) AS host,
       (SELECT w.pid FROM {known_workers} w WHERE w.id = c.worker) AS pid
FROM (SELECT id AS run_id, 2147483647 AS claim, executed_by AS worker FROM {runs}
      WHERE id {in ids} AND executed_by IS NOT NULL
      UNION ALL
      SELECT run_id, claim, worker FROM {claims} WHERE run_id {in ids}) AS c
ORDER BY c.claim;

-- name: progress(run_id)
-- What is under way in one run.
SELECT branch, position, name, detail, data, started_at, format
FROM {progress} p
WHERE run_id = :run_id AND NOT EXISTS (
    SELECT 1 FROM {steps} s
    WHERE s.run_id = p.run_id AND s.branch = p.branch AND s.position = p.position AND s.status <> 'waiting')
ORDER BY branch, position;

-- name: last_words(run_id, branch, position, last_branch, last_position)
-- What steps of one run have told of their progress, from one address to another, whether they have ended or not.
SELECT branch, position, name, detail, data, started_at, format
FROM {progress} p
WHERE run_id = :run_id AND (branch, position) >= (:branch, :position) AND (branch, position) <= (:last_branch, :last_position)
  AND (detail IS NOT NULL OR data IS NOT NULL);

-- name: failed_calls(run_id, attempt)
-- How often steps of one run have failed in an attempt.
SELECT branch, position, count(*) AS number FROM {tries}
WHERE run_id = :run_id AND attempt = :attempt AND position >= 0 GROUP BY branch, position;

-- name: value(run_id, key)
-- A value that a run lets others read.
SELECT value, format FROM {run_values} WHERE run_id = :run_id AND key = :key;

-- name: awaited_values(u(run_id uuid, key text))
-- Values that are waited for, as far as they are set, and whether the runs are over that were to set them.
SELECT u.run_id::text AS run_id, u.key, v.value, v.format, r.id IS NULL OR r.completed_at IS NOT NULL AS over, r.status,
       CASE WHEN r.reason = 'continued' THEN {went_on} END AS continuation
FROM {rows u} LEFT JOIN {runs} r ON r.id = u.run_id
LEFT JOIN {run_values} v ON v.run_id = u.run_id AND v.key = u.key;

-- name: values(run_id)
-- All values that a run lets others read.
SELECT key, value, format FROM {run_values} WHERE run_id = :run_id AND key NOT LIKE '~signal/%' ORDER BY key;

-- name: seed(run_id)
-- The secret of a run, for a replay outside of a worker.
SELECT seed FROM {runs} WHERE id = :run_id;

-- name: activity(run_id, branch, position, attempt, number, most)
-- A page of the calls of one run, by address and try.
SELECT branch, position, name, attempt, number, status, arguments, output, error, started_at, completed_at, format, claim, losses
FROM {activity} WHERE run_id = :run_id AND (branch, position, attempt, number) > (:branch, :position, :attempt, :number)
ORDER BY branch, position, attempt, number LIMIT :most;

-- name: put_definitions(d(name text, version text, kind text, queue text, options text, input_schema text, graph text))
-- What the database knows of workflows; the newest sight of a version makes it the current one.
INSERT INTO {definitions} (name, version, kind, queue, options, input_schema, graph, registered_at, seen_at)
SELECT d.*, t.now, t.now
FROM {rows d}
CROSS JOIN (SELECT {now} AS now) AS t
WHERE true
{upsert name, version} kind = {new.kind}, queue = {new.queue}, options = {new.options}, input_schema = {new.input_schema},
    graph = {new.graph}, seen_at = {new.seen_at};

-- name: definitions
-- The current definition of every workflow.
SELECT name, version, kind, queue, options, input_schema, graph FROM (
    SELECT name, version, kind, queue, options, input_schema, graph,
           row_number() OVER (PARTITION BY name ORDER BY seen_at DESC) AS n
    FROM {definitions}
) AS known WHERE n = 1 ORDER BY name;

-- name: dags_shown_as(status, before, most)
-- Dag runs that are shown as having another status than their rows have. The index is that of the rows.
SELECT d.id, d.status, d.waiting_for, d.due_at FROM {runs} r {index runs_dags}
{join} {dags_shown} d ON d.id = r.id
WHERE r.status = 'running' AND r.graph IS NOT NULL AND r.dag_id IS NULL
  AND r.id {beyond} COALESCE(:before, '{edge}') AND d.status = :status
ORDER BY r.id {direction} LIMIT :most;

-- name: runs(workflow, status, queue, before uuid, reason, key, most, since, older)
-- A page of runs, newest first, or (with the words in braces put the other way round) oldest first. Each filter is left
-- out by passing null; `since` and `older` are spans of time by the database's clock. The three statements after this one ask the
-- same, but name the filter that an index serves: a plan made for "null or equal" could use none. Large payloads are left
-- out: fifty of the largest would be 800 MB.
SELECT id, workflow, version, queue, status, reason, waiting_for,
       CASE WHEN octet_length(input) <= {listed} THEN input END AS input,
       CASE WHEN octet_length(output) <= {listed} THEN output END AS output, error, format, output_format, attempt,
       max_attempts, losses, claim, priority, COALESCE(key, debounced) AS key, tags, parent_id, worker, visible_at, created_at, started_at,
       completed_at, deadline_at, expires_at, asked, place IS NOT NULL AS ready, {now} AS now_ms,
       undoing, origin_id, graph, timeout_ms, deadline_ms, paused_at,
       NULL AS dag_id, COALESCE(octet_length(output) > {listed}, false) AS large_output, concurrency_key, executed_by,
       (SELECT w.host FROM {known_workers} w WHERE w.id = executed_by) AS host,
       (SELECT w.pid FROM {known_workers} w WHERE w.id = executed_by) AS pid, COALESCE(unique_name, awaits_name) AS unique_name,
       {attributes id} AS attributes
FROM {runs}
WHERE id {beyond} COALESCE(:before, '{brink}')  -- which sorts behind every id, or before
  AND dag_id IS NULL
  AND (:workflow IS NULL OR workflow = :workflow)
  AND (:status IS NULL OR status = :status)
  AND (:queue IS NULL OR queue = :queue)
  AND (:reason IS NULL OR reason = :reason)
  AND (:key IS NULL OR key = :key OR debounced = :key)
  AND (:since IS NULL OR created_at >= {now} - :since)
  AND (:older IS NULL OR created_at < {now} - :older)
ORDER BY id {direction} LIMIT :most;

-- name: runs_running(workflow, status, queue, before uuid, reason, key, most, since, older)
-- The same, for runs that are being executed: few beside all others, and known by their workers or as dag runs under way.
SELECT id, workflow, version, queue, status, reason, waiting_for,
       CASE WHEN octet_length(input) <= {listed} THEN input END AS input,
       CASE WHEN octet_length(output) <= {listed} THEN output END AS output, error, format, output_format, attempt,
       max_attempts, losses, claim, priority, COALESCE(key, debounced) AS key, tags, parent_id, worker, visible_at, created_at, started_at,
       completed_at, deadline_at, expires_at, asked, place IS NOT NULL AS ready, {now} AS now_ms,
       undoing, origin_id, graph, timeout_ms, deadline_ms, paused_at,
       NULL AS dag_id, COALESCE(octet_length(output) > {listed}, false) AS large_output, concurrency_key, executed_by,
       (SELECT w.host FROM {known_workers} w WHERE w.id = executed_by) AS host,
       (SELECT w.pid FROM {known_workers} w WHERE w.id = executed_by) AS pid, COALESCE(unique_name, awaits_name) AS unique_name,
       {attributes id} AS attributes
FROM {runs}
WHERE id IN (SELECT w.id FROM {runs} w {index runs_worker} WHERE w.worker IS NOT NULL
             UNION
             SELECT d.id FROM {runs} d {index runs_dags}
             WHERE d.status = 'running' AND d.graph IS NOT NULL AND d.dag_id IS NULL)
  AND status = :status
  AND id {beyond} COALESCE(:before, '{brink}')
  AND dag_id IS NULL
  AND (:workflow IS NULL OR workflow = :workflow)
  AND (:queue IS NULL OR queue = :queue)
  AND (:reason IS NULL OR reason = :reason)
  AND (:key IS NULL OR key = :key OR debounced = :key)
  AND (:since IS NULL OR created_at >= {now} - :since)
  AND (:older IS NULL OR created_at < {now} - :older)
ORDER BY id {direction} LIMIT :most;

-- name: runs_at_rest(workflow text, status, queue text, before uuid, reason text, key text, most, since bigint, older bigint)
-- The same, for a status in which runs stay. These are few beside the completed ones, so it is asked before the workflow.
SELECT id, workflow, version, queue, status, reason, waiting_for,
       CASE WHEN octet_length(input) <= {listed} THEN input END AS input,
       CASE WHEN octet_length(output) <= {listed} THEN output END AS output, error, format, output_format, attempt,
       max_attempts, losses, claim, priority, COALESCE(key, debounced) AS key, tags, parent_id, worker, visible_at, created_at, started_at,
       completed_at, deadline_at, expires_at, asked, place IS NOT NULL AS ready, {now} AS now_ms,
       undoing, origin_id, graph, timeout_ms, deadline_ms, paused_at,
       NULL AS dag_id, COALESCE(octet_length(output) > {listed}, false) AS large_output, concurrency_key, executed_by,
       (SELECT w.host FROM {known_workers} w WHERE w.id = executed_by) AS host,
       (SELECT w.pid FROM {known_workers} w WHERE w.id = executed_by) AS pid, COALESCE(unique_name, awaits_name) AS unique_name,
       {attributes id} AS attributes
FROM {runs} {index runs_at_rest}
WHERE status = :status
  AND status IN ('waiting', 'paused', 'failed', 'cancelled', 'compensating', 'compensated')
  AND id {beyond} COALESCE(:before, '{brink}')
  AND dag_id IS NULL
  AND (:workflow IS NULL OR workflow = :workflow)
  AND (:queue IS NULL OR queue = :queue)
  AND (:reason IS NULL OR reason = :reason)
  AND (:key IS NULL OR key = :key OR debounced = :key)
  AND (:since IS NULL OR created_at >= {now} - :since)
  AND (:older IS NULL OR created_at < {now} - :older)
ORDER BY id {direction} LIMIT :most;

-- name: runs_tagged(workflow, status, queue, before uuid, reason, key, most, since, older, tag)
-- The same, starting from a tag.
SELECT r.id, r.workflow, r.version, r.queue, r.status, r.reason, r.waiting_for,
       CASE WHEN octet_length(r.input) <= {listed} THEN r.input END AS input,
       CASE WHEN octet_length(r.output) <= {listed} THEN r.output END AS output, r.error, r.format, r.output_format,
       r.attempt, r.max_attempts, r.losses, r.claim, r.priority, COALESCE(r.key, r.debounced) AS key, r.tags, r.parent_id, r.worker, r.visible_at,
       r.created_at, r.started_at, r.completed_at, r.deadline_at, r.expires_at, r.asked,
       r.place IS NOT NULL AS ready, {now} AS now_ms, r.undoing, r.origin_id, r.graph, r.timeout_ms, r.deadline_ms,
       r.paused_at, NULL AS dag_id, COALESCE(octet_length(r.output) > {listed}, false) AS large_output, r.concurrency_key, r.executed_by,
       (SELECT w.host FROM {known_workers} w WHERE w.id = r.executed_by) AS host,
       (SELECT w.pid FROM {known_workers} w WHERE w.id = r.executed_by) AS pid, COALESCE(r.unique_name, r.awaits_name) AS unique_name,
       {attributes r.id} AS attributes
FROM {run_tags} t {join} {runs} r ON r.id = t.run_id
WHERE t.tag = :tag
  AND t.run_id {beyond} COALESCE(:before, '{brink}')
  AND r.dag_id IS NULL
  AND (:workflow IS NULL OR r.workflow = :workflow)
  AND (:status IS NULL OR r.status = :status)
  AND (:queue IS NULL OR r.queue = :queue)
  AND (:reason IS NULL OR r.reason = :reason)
  AND (:key IS NULL OR r.key = :key OR r.debounced = :key)
  AND (:since IS NULL OR r.created_at >= {now} - :since)
  AND (:older IS NULL OR r.created_at < {now} - :older)
ORDER BY t.run_id {direction} LIMIT :most;
