-- Starting runs and reading them.

-- name: start
-- Many starts of one shape. An immediate one is born ready; the ordinal (and $17, where a call takes several statements)
-- keeps the order of the call within its millisecond. A repeated call finds its ids taken and changes nothing.
INSERT INTO {schema}.runs (id, workflow, version, queue, status, priority, place, visible_at, input, key,
                           max_attempts, timeout_ms, deadline_ms, deadline_at, expires_at, tags, concurrency_key, format,
                           created_at)
SELECT u.id, $4, $5, $6, 'queued', $7::integer,
       CASE WHEN t.due <= t.now THEN t.place + $17::bigint + u.n END,
       LEAST(CASE WHEN t.due > t.now THEN t.due END, t.due + $10::bigint, t.now + $11::bigint),
       u.input, u.key, $12::integer, $13::bigint, $11::bigint, t.now + $11::bigint, t.due + $10::bigint, $14, $15,
       $16::smallint, t.now
FROM unnest($1::uuid[], $2::text[], $3::text[]) WITH ORDINALITY AS u(id, input, key, n)
CROSS JOIN (SELECT now, place, GREATEST(now + $8::bigint, COALESCE($9::bigint, now)) AS due
            FROM (SELECT {now} AS now, {place} AS place) AS clock) AS t
ORDER BY u.key
ON CONFLICT DO NOTHING;

-- name: start_tags
-- The tags of the runs just started, for finding them again.
INSERT INTO {schema}.run_tags (tag, run_id)
SELECT tag, r.id FROM {schema}.runs r CROSS JOIN unnest($2::text[]) AS tag
WHERE r.id = ANY($1::uuid[])
ON CONFLICT DO NOTHING;

-- name: by_keys
-- Which runs stand behind these keys, ours or those of an earlier start.
SELECT id, key FROM {schema}.runs WHERE workflow = $1 AND key = ANY($2::text[]);

-- name: outcomes
-- Those of the given runs that have ended: one question for everybody who waits in a process.
SELECT id, status, reason, output, error, COALESCE(output_format, format) AS format FROM {schema}.runs
WHERE id = ANY($1::uuid[]) AND status IN ('completed', 'failed', 'cancelled', 'compensated');

-- name: run
-- One run, for people.
SELECT id, workflow, version, queue, status, reason, waiting_for, input, output, error, format, output_format, attempt, max_attempts,
       losses, claim, priority, key, tags, parent_id, worker, visible_at, created_at, started_at, completed_at,
       deadline_at, expires_at, asked, place IS NOT NULL AS ready, {now} AS now_ms
FROM {schema}.runs WHERE id = $1;

-- name: runs
-- A page of runs, newest first. Each filter is left out by passing null.
SELECT id, workflow, version, queue, status, reason, waiting_for, input, output, error, format, output_format, attempt, max_attempts,
       losses, claim, priority, key, tags, parent_id, worker, visible_at, created_at, started_at, completed_at,
       deadline_at, expires_at, asked, place IS NOT NULL AS ready, {now} AS now_ms
FROM {schema}.runs
WHERE dag_id IS NULL
  AND ($1::text IS NULL OR workflow = $1)
  AND ($2::text IS NULL OR status = $2)
  AND ($3::text IS NULL OR queue = $3)
  AND ($4::uuid IS NULL OR id < $4)
  AND ($5::text IS NULL OR reason = $5)
  AND ($6::text IS NULL OR key = $6)
ORDER BY id DESC LIMIT $7;

-- name: runs_tagged
-- The same, starting from a tag.
SELECT r.id, r.workflow, r.version, r.queue, r.status, r.reason, r.waiting_for, r.input, r.output, r.error, r.format,
       r.output_format, r.attempt, r.max_attempts, r.losses, r.claim, r.priority, r.key, r.tags, r.parent_id, r.worker, r.visible_at,
       r.created_at, r.started_at, r.completed_at, r.deadline_at, r.expires_at, r.asked,
       r.place IS NOT NULL AS ready, {now} AS now_ms
FROM {schema}.run_tags t JOIN {schema}.runs r ON r.id = t.run_id
WHERE t.tag = $8
  AND ($1::text IS NULL OR r.workflow = $1)
  AND ($2::text IS NULL OR r.status = $2)
  AND ($3::text IS NULL OR r.queue = $3)
  AND ($4::uuid IS NULL OR t.run_id < $4)
  AND ($5::text IS NULL OR r.reason = $5)
  AND ($6::text IS NULL OR r.key = $6)
ORDER BY t.run_id DESC LIMIT $7;

-- name: steps
-- A page of recorded outcomes of one run, by branch and position.
SELECT branch, position, seq, name, kind, status, output, error, arguments, attempts, started_at, completed_at, line, format
FROM {schema}.steps WHERE run_id = $1 AND (branch, position) > ($2, $3) ORDER BY branch, position LIMIT $4;

-- name: progress
-- What is under way in one run.
SELECT branch, position, name, detail, data, started_at, format
FROM {schema}.progress p
WHERE run_id = $1 AND NOT EXISTS (
    SELECT 1 FROM {schema}.steps s
    WHERE s.run_id = p.run_id AND s.branch = p.branch AND s.position = p.position)
ORDER BY branch, position;

-- name: activity
-- Every call of one run, in start order; quick ones that share a millisecond in the order of the code.
SELECT branch, position, name, attempt, number, status, arguments, output, error, started_at, completed_at, format
FROM {schema}.activity WHERE run_id = $1 ORDER BY started_at, completed_at, position, number LIMIT $2;

-- name: retry
-- An operator's retry: a new budget of attempts, a new deadline of the old length, and the claim number moved on, so
-- that no worker trusts what it remembers of the run.
UPDATE {schema}.runs
SET status = 'queued', reason = NULL, error = NULL, output = NULL, forget = NULL, completed_at = NULL, waiting_for = NULL,
    place = {place}, losses = 0, claim = claim + 1, attempt = attempt + 1, first_attempt = attempt + 1,
    deadline_at = {now} + deadline_ms, visible_at = {now} + deadline_ms,
    expires_at = NULL, asked = NULL
WHERE id = $1 AND status IN ('failed', 'cancelled')
RETURNING queue, workflow, priority;

-- name: lock_failed
-- What the run to be retried has to forget.
SELECT status, forget FROM {schema}.runs WHERE id = $1 FOR NO KEY UPDATE;

-- name: forget
-- Records that the next attempt is to make anew.
DELETE FROM {schema}.steps s
USING unnest($1::uuid[], $2::text[], $3::integer[]) AS f(run_id, branch, position)
WHERE s.run_id = f.run_id AND s.branch = f.branch AND s.position = f.position;

-- name: put_definition
-- What the database knows of a workflow; the newest sight of a version makes it the current one.
INSERT INTO {schema}.definitions (name, version, kind, queue, options, input_schema, graph, registered_at, seen_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, {now}, {now})
ON CONFLICT (name, version) DO UPDATE
SET kind = excluded.kind, queue = excluded.queue, options = excluded.options, input_schema = excluded.input_schema,
    graph = excluded.graph, seen_at = excluded.seen_at;

-- name: definitions
-- The current definition of every workflow.
SELECT DISTINCT ON (name) name, version, kind, queue, options, input_schema, graph
FROM {schema}.definitions ORDER BY name, seen_at DESC;
