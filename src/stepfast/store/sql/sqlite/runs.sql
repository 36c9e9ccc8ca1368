-- Starting runs and reading them.

-- name: runs
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
       (SELECT w.host FROM {prefix}known_workers w WHERE w.id = executed_by) AS host,
       (SELECT w.pid FROM {prefix}known_workers w WHERE w.id = executed_by) AS pid
FROM {prefix}runs
WHERE id {beyond} COALESCE(:before, '{edge}')  -- which sorts behind every id, or before
  AND dag_id IS NULL
  AND (:workflow IS NULL OR workflow = :workflow)
  AND (:status IS NULL OR status = :status)
  AND (:queue IS NULL OR queue = :queue)
  AND (:reason IS NULL OR reason = :reason)
  AND (:key IS NULL OR key = :key OR debounced = :key)
  AND (:since IS NULL OR created_at >= {now} - :since)
  AND (:older IS NULL OR created_at < {now} - :older)
ORDER BY id {direction} LIMIT :limit;

-- name: runs_of_workflow
-- The same, for one workflow.
SELECT id, workflow, version, queue, status, reason, waiting_for,
       CASE WHEN octet_length(input) <= {listed} THEN input END AS input,
       CASE WHEN octet_length(output) <= {listed} THEN output END AS output, error, format, output_format, attempt,
       max_attempts, losses, claim, priority, COALESCE(key, debounced) AS key, tags, parent_id, worker, visible_at, created_at, started_at,
       completed_at, deadline_at, expires_at, asked, place IS NOT NULL AS ready, {now} AS now_ms,
       undoing, origin_id, graph, timeout_ms, deadline_ms, paused_at,
       NULL AS dag_id, COALESCE(octet_length(output) > {listed}, false) AS large_output, concurrency_key, executed_by,
       (SELECT w.host FROM {prefix}known_workers w WHERE w.id = executed_by) AS host,
       (SELECT w.pid FROM {prefix}known_workers w WHERE w.id = executed_by) AS pid
FROM {prefix}runs
WHERE workflow = :workflow
  AND id {beyond} COALESCE(:before, '{edge}')
  AND dag_id IS NULL
  AND (:status IS NULL OR status = :status)
  AND (:queue IS NULL OR queue = :queue)
  AND (:reason IS NULL OR reason = :reason)
  AND (:key IS NULL OR key = :key OR debounced = :key)
  AND (:since IS NULL OR created_at >= {now} - :since)
  AND (:older IS NULL OR created_at < {now} - :older)
ORDER BY id {direction} LIMIT :limit;

-- name: runs_running
-- The same, for runs that are being executed: few beside all others, and known by their workers or as dag runs under way.
SELECT id, workflow, version, queue, status, reason, waiting_for,
       CASE WHEN octet_length(input) <= {listed} THEN input END AS input,
       CASE WHEN octet_length(output) <= {listed} THEN output END AS output, error, format, output_format, attempt,
       max_attempts, losses, claim, priority, COALESCE(key, debounced) AS key, tags, parent_id, worker, visible_at, created_at, started_at,
       completed_at, deadline_at, expires_at, asked, place IS NOT NULL AS ready, {now} AS now_ms,
       undoing, origin_id, graph, timeout_ms, deadline_ms, paused_at,
       NULL AS dag_id, COALESCE(octet_length(output) > {listed}, false) AS large_output, concurrency_key, executed_by,
       (SELECT w.host FROM {prefix}known_workers w WHERE w.id = executed_by) AS host,
       (SELECT w.pid FROM {prefix}known_workers w WHERE w.id = executed_by) AS pid
FROM {prefix}runs
WHERE id IN (SELECT w.id FROM {prefix}runs AS w INDEXED BY {prefix}runs_worker WHERE w.worker IS NOT NULL
             UNION
             SELECT d.id FROM {prefix}runs AS d INDEXED BY {prefix}runs_dags
             WHERE d.status = 'running' AND d.graph IS NOT NULL AND d.dag_id IS NULL)
  AND status = :status
  AND id {beyond} COALESCE(:before, '{edge}')
  AND dag_id IS NULL
  AND (:workflow IS NULL OR workflow = :workflow)
  AND (:queue IS NULL OR queue = :queue)
  AND (:reason IS NULL OR reason = :reason)
  AND (:key IS NULL OR key = :key OR debounced = :key)
  AND (:since IS NULL OR created_at >= {now} - :since)
  AND (:older IS NULL OR created_at < {now} - :older)
ORDER BY id {direction} LIMIT :limit;

-- name: runs_at_rest
-- The same, for a status in which runs stay. These are few beside the completed ones, so it is asked before the workflow.
SELECT id, workflow, version, queue, status, reason, waiting_for,
       CASE WHEN octet_length(input) <= {listed} THEN input END AS input,
       CASE WHEN octet_length(output) <= {listed} THEN output END AS output, error, format, output_format, attempt,
       max_attempts, losses, claim, priority, COALESCE(key, debounced) AS key, tags, parent_id, worker, visible_at, created_at, started_at,
       completed_at, deadline_at, expires_at, asked, place IS NOT NULL AS ready, {now} AS now_ms,
       undoing, origin_id, graph, timeout_ms, deadline_ms, paused_at,
       NULL AS dag_id, COALESCE(octet_length(output) > {listed}, false) AS large_output, concurrency_key, executed_by,
       (SELECT w.host FROM {prefix}known_workers w WHERE w.id = executed_by) AS host,
       (SELECT w.pid FROM {prefix}known_workers w WHERE w.id = executed_by) AS pid
FROM {prefix}runs INDEXED BY {prefix}runs_at_rest
WHERE status = :status
  AND status IN ('waiting', 'paused', 'failed', 'cancelled', 'compensating', 'compensated')
  AND id {beyond} COALESCE(:before, '{edge}')
  AND dag_id IS NULL
  AND (:workflow IS NULL OR workflow = :workflow)
  AND (:queue IS NULL OR queue = :queue)
  AND (:reason IS NULL OR reason = :reason)
  AND (:key IS NULL OR key = :key OR debounced = :key)
  AND (:since IS NULL OR created_at >= {now} - :since)
  AND (:older IS NULL OR created_at < {now} - :older)
ORDER BY id {direction} LIMIT :limit;

-- name: runs_tagged
-- The same, starting from a tag. CROSS JOIN keeps SQLite from turning the order of the two tables round.
SELECT r.id, r.workflow, r.version, r.queue, r.status, r.reason, r.waiting_for,
       CASE WHEN octet_length(r.input) <= {listed} THEN r.input END AS input,
       CASE WHEN octet_length(r.output) <= {listed} THEN r.output END AS output, r.error, r.format, r.output_format,
       r.attempt, r.max_attempts, r.losses, r.claim, r.priority, COALESCE(r.key, r.debounced) AS key, r.tags, r.parent_id, r.worker, r.visible_at,
       r.created_at, r.started_at, r.completed_at, r.deadline_at, r.expires_at, r.asked,
       r.place IS NOT NULL AS ready, {now} AS now_ms, r.undoing, r.origin_id, r.graph, r.timeout_ms, r.deadline_ms,
       r.paused_at, NULL AS dag_id, COALESCE(octet_length(r.output) > {listed}, false) AS large_output, r.concurrency_key, r.executed_by,
       (SELECT w.host FROM {prefix}known_workers w WHERE w.id = r.executed_by) AS host,
       (SELECT w.pid FROM {prefix}known_workers w WHERE w.id = r.executed_by) AS pid
FROM {prefix}run_tags t CROSS JOIN {prefix}runs r ON r.id = t.run_id
WHERE t.tag = :tag
  AND t.run_id {beyond} COALESCE(:before, '{edge}')
  AND r.dag_id IS NULL
  AND (:workflow IS NULL OR r.workflow = :workflow)
  AND (:status IS NULL OR r.status = :status)
  AND (:queue IS NULL OR r.queue = :queue)
  AND (:reason IS NULL OR r.reason = :reason)
  AND (:key IS NULL OR r.key = :key OR r.debounced = :key)
  AND (:since IS NULL OR r.created_at >= {now} - :since)
  AND (:older IS NULL OR r.created_at < {now} - :older)
ORDER BY t.run_id {direction} LIMIT :limit;
