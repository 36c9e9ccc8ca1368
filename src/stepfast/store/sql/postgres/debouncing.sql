-- Debounced starts: the run that a key stands for until a worker claims it.

-- name: lock_debounced
-- The run of a key that nobody has claimed yet, waited for: if that is a claim, there is none when it is over. The clock is
-- read when the lock is there.
WITH locked AS MATERIALIZED (
    SELECT r.* FROM {schema}.runs r
    WHERE r.workflow = $1 AND r.debounced = $2 AND r.debounced IS NOT NULL AND r.started_at IS NULL AND r.completed_at IS NULL
    FOR NO KEY UPDATE OF r
)
SELECT r.created_at, {now} AS now_ms, {standing} FROM locked r;

-- name: start_debounced
-- One start that waits for more of its key. No row: another has the key, or the id is there already.
INSERT INTO {schema}.runs (id, input, debounced, workflow, version, queue, status, priority, visible_at, expires_at,
                           deadline_ms, deadline_at, max_attempts, timeout_ms, tags, concurrency_key, format, seed, created_at,
                           trace)
SELECT $1::uuid, $2, $3, $4, $5, $6, 'queued', $7::integer,
       LEAST(t.now + $8::bigint, t.now + $8::bigint + $9::bigint, t.now + $10::bigint), t.now + $8::bigint + $9::bigint,
       $10::bigint, t.now + $10::bigint, $11::integer, $12::bigint, $13, $14, $15::smallint, $16, t.now, $17
FROM (SELECT {now} AS now) AS t
ON CONFLICT DO NOTHING
RETURNING id::text AS id;
