-- Starting runs and reading them.

-- name: runs_of_workflow(workflow, status, queue, before, reason, key, most, since, older)
-- The same, for one workflow.
SELECT id, workflow, version, queue, status, reason, waiting_for,
       CASE WHEN octet_length(input) <= {listed} THEN input END AS input,
       CASE WHEN octet_length(output) <= {listed} THEN output END AS output, error, format, output_format, attempt,
       max_attempts, losses, claim, priority, COALESCE(key, debounced) AS key, tags, parent_id, worker, visible_at, created_at, started_at,
       completed_at, deadline_at, expires_at, asked, place IS NOT NULL AS ready, {now} AS now_ms,
       undoing, origin_id, graph, timeout_ms, deadline_ms, paused_at,
       NULL AS dag_id, COALESCE(octet_length(output) > {listed}, false) AS large_output, concurrency_key, executed_by,
       (SELECT w.host FROM {prefix}known_workers w WHERE w.id = executed_by) AS host,
       (SELECT w.pid FROM {prefix}known_workers w WHERE w.id = executed_by) AS pid, COALESCE(unique_name, awaits_name) AS unique_name,
       {attributes id} AS attributes
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
ORDER BY id {direction} LIMIT :most;
