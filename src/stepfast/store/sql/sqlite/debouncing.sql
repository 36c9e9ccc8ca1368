-- Debounced starts: the run that a key stands for until a worker claims it. All in the writer's transaction.

-- name: lock_debounced
-- The run of a key that nobody has claimed yet.
SELECT r.created_at, {now}, {standing} FROM {prefix}runs AS r
WHERE r.workflow = ? AND r.debounced = ? AND r.debounced IS NOT NULL AND r.started_at IS NULL AND r.completed_at IS NULL;

-- name: start_debounced
-- One start that waits for more of its key. No row: another has the key, or the id is there already.
INSERT INTO {prefix}runs (id, input, debounced, workflow, version, queue, status, priority, visible_at, expires_at,
                          deadline_ms, deadline_at, max_attempts, timeout_ms, tags, concurrency_key, format, seed, created_at,
                          trace)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, 'queued', ?7,
       min(t.now + ?8, COALESCE(t.now + ?8 + ?9, t.now + ?8), COALESCE(t.now + ?10, t.now + ?8)), t.now + ?8 + ?9,
       ?10, t.now + ?10, ?11, ?12, ?13, ?14, ?15, ?16, t.now, ?17
FROM (SELECT {now} AS now) AS t
WHERE true
ON CONFLICT DO NOTHING
RETURNING id;
