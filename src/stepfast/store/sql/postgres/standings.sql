-- Where runs stand: read under a lock, decided by the functions of model/, and written back. {standing} are the columns of
-- a standing, in its order (model/run_state.py).

-- override: lock_runs
-- Runs by their ids, waited for. The clock is read outside, when the lock is there: who becomes ready by a time from before
-- a long wait would stand where claims have looked already.
WITH locked AS MATERIALIZED (
    SELECT r.* FROM unnest($1::uuid[]) AS u(id) JOIN {schema}.runs r ON r.id = u.id
    ORDER BY r.id
    FOR NO KEY UPDATE OF r
)
SELECT {now} AS now_ms, {standing} FROM locked r;

-- override: inherit_tags
-- The tags of runs that went on as another are their successors' as well, for finding them.
INSERT INTO {schema}.run_tags (tag, run_id)
SELECT t.tag, u.successor
FROM unnest($1::uuid[], $2::uuid[]) AS u(ended, successor) JOIN {schema}.runs r ON r.id = u.ended
CROSS JOIN LATERAL (SELECT {schema}.as_json(r.tags) AS tags OFFSET 0) AS j
CROSS JOIN LATERAL json_array_elements_text(CASE WHEN json_typeof(j.tags) = 'array' THEN j.tags END) AS t(tag)
WHERE r.tags IS NOT NULL
ON CONFLICT DO NOTHING;

-- name: lock_due
-- Runs whose timer has gone off. What is paused only if it is late. The clock is a subquery, because a volatile function is
-- no index condition: all sleepers would be walked.
WITH clock AS MATERIALIZED (
    SELECT {now} AS now
)
SELECT (SELECT now FROM clock) AS now_ms, {standing}
FROM {schema}.runs r
WHERE r.visible_at <= (SELECT now FROM clock)
  AND (r.status <> 'paused' OR r.deadline_at <= (SELECT now FROM clock))
ORDER BY r.visible_at LIMIT $1
FOR NO KEY UPDATE OF r SKIP LOCKED;

-- name: lock_lost
-- A bounded batch of runs that name no living worker. Only to lock them: a row that was changed since this
-- statement began is looked at again as it is by now, but the workers are still seen as they were then; one that was
-- reaped and claimed in between, by a worker that has come since, would be taken for lost.
SELECT r.id::text AS id FROM {schema}.runs r
WHERE r.worker IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM {schema}.workers w WHERE w.id = r.worker AND w.state <> 'dead')
ORDER BY r.id LIMIT $1
FOR NO KEY UPDATE OF r SKIP LOCKED;
