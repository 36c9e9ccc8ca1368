-- Starting runs and reading them.

-- name: start_alike
-- Many starts of one shape. An immediate one is born ready; the ordinal (and $17, where a call takes several statements)
-- keeps the order of the call within its millisecond. A repeated call finds its ids taken and changes nothing.
INSERT INTO {schema}.runs (id, workflow, version, queue, status, priority, place, visible_at, input, key,
                           max_attempts, timeout_ms, deadline_ms, deadline_at, expires_at, tags, concurrency_key, format,
                           created_at, seed)
SELECT u.id, $4, $5, $6, 'queued', $7::integer,
       CASE WHEN t.due <= t.now THEN t.place + $17::bigint + u.n END,
       LEAST(CASE WHEN t.due > t.now THEN t.due END, t.due + $10::bigint, t.now + $11::bigint),
       u.input, u.key, $12::integer, $13::bigint, $11::bigint, t.now + $11::bigint, t.due + $10::bigint, $14, $15,
       $16::smallint, t.now, $18
FROM unnest($1::uuid[], $2::text[], $3::text[]) WITH ORDINALITY AS u(id, input, key, n)
CROSS JOIN (SELECT now, place, GREATEST(now + $8::bigint, COALESCE($9::bigint, now)) AS due
            FROM (SELECT {now} AS now, {place} AS place) AS clock) AS t
ORDER BY u.key, u.n
ON CONFLICT DO NOTHING;

-- name: start_linked_alike
-- The same for runs that have a parent, continue another, or are part of a trace.
INSERT INTO {schema}.runs (id, workflow, version, queue, status, priority, place, visible_at, input, key,
                           max_attempts, timeout_ms, deadline_ms, deadline_at, expires_at, tags, concurrency_key, format,
                           created_at, parent_id, parent_branch, parent_position, reply_to, origin_id, trace, seed)
SELECT u.id, $4, $5, $6, 'queued', $7::integer,
       CASE WHEN t.due <= t.now THEN t.place + $17::bigint + u.n END,
       LEAST(CASE WHEN t.due > t.now THEN t.due END, t.due + $10::bigint, t.now + $11::bigint),
       u.input, u.key, $12::integer, $13::bigint, $11::bigint, t.now + $11::bigint, t.due + $10::bigint, $14, $15,
       $16::smallint, t.now, u.parent_id, u.parent_branch, u.parent_position, u.reply_to, u.origin_id, u.trace, $24
FROM unnest($1::uuid[], $2::text[], $3::text[], $18::uuid[], $19::text[], $20::integer[], $21::uuid[], $22::uuid[],
            $23::text[])
     WITH ORDINALITY AS u(id, input, key, parent_id, parent_branch, parent_position, reply_to, origin_id, trace, n)
CROSS JOIN (SELECT now, place, GREATEST(now + $8::bigint, COALESCE($9::bigint, now)) AS due
            FROM (SELECT {now} AS now, {place} AS place) AS clock) AS t
ORDER BY u.key, u.n
ON CONFLICT DO NOTHING;

-- override: by_keys(u(workflow text, key text, id uuid))
-- Which runs have these keys, ours or those of earlier starts; and whether the caller may read inputs.
SELECT u.id::text AS ours, r.id, (SELECT has_column_privilege('{schema}.runs', 'input', 'SELECT')) AS reads
FROM {rows u} JOIN {runs} r ON r.workflow = u.workflow AND r.key = u.key;

-- override: runs
-- A page of runs, newest first, or (with the words in braces put the other way round) oldest first. Each filter is left
-- out by passing null; the last two are spans of time by the server's clock. Large payloads are left out: fifty of the
-- largest would be 800 MB.
SELECT id::text, workflow, version, queue, status, reason, waiting_for,
       CASE WHEN octet_length(input) <= {listed} THEN input END AS input,
       CASE WHEN octet_length(output) <= {listed} THEN output END AS output, error, format, output_format, attempt, max_attempts,
       losses, claim, priority, COALESCE(key, debounced) AS key, tags, parent_id::text, worker::text, visible_at, created_at, started_at, completed_at,
       deadline_at, expires_at, asked, place IS NOT NULL AS ready, {now} AS now_ms, undoing, origin_id::text, graph,
       timeout_ms, deadline_ms, paused_at,
       NULL AS dag_id, COALESCE(octet_length(output) > {listed}, false) AS large_output, concurrency_key, executed_by::text,
       (SELECT w.host FROM {schema}.known_workers w WHERE w.id = executed_by) AS host,
       (SELECT w.pid FROM {schema}.known_workers w WHERE w.id = executed_by) AS pid, COALESCE(unique_name, awaits_name) AS unique_name,
       {attributes r.id} AS attributes
FROM {schema}.runs r
WHERE dag_id IS NULL
  AND ($1::text IS NULL OR workflow = $1)
  AND ($2::text IS NULL OR status = $2)
  AND ($3::text IS NULL OR queue = $3)
  AND ($4::uuid IS NULL OR id {beyond} $4)
  AND ($5::text IS NULL OR reason = $5)
  AND ($6::text IS NULL OR key = $6 OR debounced = $6)
  AND ($8::bigint IS NULL OR created_at >= {now} - $8)
  AND ($9::bigint IS NULL OR created_at < {now} - $9)
ORDER BY r.id {direction} LIMIT $7;

-- override: runs_running
-- The same, for runs that are being executed: few beside all others, and known by their workers or as dag runs under way.
-- (OFFSET 0 keeps the planner from walking through all runs in the order of their ids instead.)
WITH held AS MATERIALIZED (
    SELECT w.id FROM {schema}.runs w WHERE w.worker IS NOT NULL
    UNION
    SELECT d.id FROM {schema}.runs d WHERE d.status = 'running' AND d.graph IS NOT NULL AND d.dag_id IS NULL
)
SELECT r.id::text, workflow, version, queue, status, reason, waiting_for,
       CASE WHEN octet_length(input) <= {listed} THEN input END AS input,
       CASE WHEN octet_length(output) <= {listed} THEN output END AS output, error, format, output_format, attempt, max_attempts,
       losses, claim, priority, COALESCE(key, debounced) AS key, tags, parent_id::text, worker::text, visible_at, created_at, started_at, completed_at,
       deadline_at, expires_at, asked, place IS NOT NULL AS ready, {now} AS now_ms, undoing, origin_id::text, graph,
       timeout_ms, deadline_ms, paused_at,
       NULL AS dag_id, COALESCE(octet_length(output) > {listed}, false) AS large_output, concurrency_key, executed_by::text,
       (SELECT w.host FROM {schema}.known_workers w WHERE w.id = executed_by) AS host,
       (SELECT w.pid FROM {schema}.known_workers w WHERE w.id = executed_by) AS pid, COALESCE(unique_name, awaits_name) AS unique_name,
       {attributes r.id} AS attributes
FROM held h CROSS JOIN LATERAL (SELECT * FROM {schema}.runs k WHERE k.id = h.id OFFSET 0) AS r
WHERE r.dag_id IS NULL
  AND ($1::text IS NULL OR r.workflow = $1)
  AND r.status = $2::text
  AND ($3::text IS NULL OR r.queue = $3)
  AND ($4::uuid IS NULL OR r.id {beyond} $4)
  AND ($5::text IS NULL OR r.reason = $5)
  AND ($6::text IS NULL OR r.key = $6 OR r.debounced = $6)
  AND ($8::bigint IS NULL OR r.created_at >= {now} - $8)
  AND ($9::bigint IS NULL OR r.created_at < {now} - $9)
ORDER BY r.id {direction} LIMIT $7;

-- override: dags_shown_as
-- Dag runs that are shown as having another status than their rows have. The conditions are those of an index.
SELECT d.id::text, d.status, d.waiting_for, d.due_at FROM {schema}.runs r JOIN {schema}.dags_shown d ON d.id = r.id
WHERE r.status = 'running' AND r.graph IS NOT NULL AND r.dag_id IS NULL
  AND ($2::uuid IS NULL OR r.id {beyond} $2) AND d.status = $1
ORDER BY r.id {direction} LIMIT $3;

-- override: runs_tagged
-- The same, starting from a tag.
SELECT r.id::text, r.workflow, r.version, r.queue, r.status, r.reason, r.waiting_for,
       CASE WHEN octet_length(r.input) <= {listed} THEN r.input END AS input,
       CASE WHEN octet_length(r.output) <= {listed} THEN r.output END AS output, r.error, r.format,
       r.output_format, r.attempt, r.max_attempts, r.losses, r.claim, r.priority, COALESCE(r.key, r.debounced) AS key, r.tags, r.parent_id::text, r.worker::text, r.visible_at,
       r.created_at, r.started_at, r.completed_at, r.deadline_at, r.expires_at, r.asked,
       r.place IS NOT NULL AS ready, {now} AS now_ms, r.undoing, r.origin_id::text, r.graph, r.timeout_ms, r.deadline_ms,
       r.paused_at, NULL AS dag_id, COALESCE(octet_length(r.output) > {listed}, false) AS large_output, r.concurrency_key, r.executed_by::text,
       (SELECT w.host FROM {schema}.known_workers w WHERE w.id = r.executed_by) AS host,
       (SELECT w.pid FROM {schema}.known_workers w WHERE w.id = r.executed_by) AS pid, COALESCE(r.unique_name, r.awaits_name) AS unique_name,
       {attributes r.id} AS attributes
FROM {schema}.run_tags t JOIN {schema}.runs r ON r.id = t.run_id
WHERE t.tag = $10
  AND ($1::text IS NULL OR r.workflow = $1)
  AND ($2::text IS NULL OR r.status = $2)
  AND ($3::text IS NULL OR r.queue = $3)
  AND ($4::uuid IS NULL OR t.run_id {beyond} $4)
  AND ($5::text IS NULL OR r.reason = $5)
  AND ($6::text IS NULL OR r.key = $6 OR r.debounced = $6)
  AND ($8::bigint IS NULL OR r.created_at >= {now} - $8)
  AND ($9::bigint IS NULL OR r.created_at < {now} - $9)
ORDER BY t.run_id {direction} LIMIT $7;
