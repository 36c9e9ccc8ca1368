-- Where runs stand: read under a lock, decided by the functions of model/, and written back. {standing} are the columns of
-- a standing, in its order (model/standing.py).

-- name: lock_runs
-- Runs by their ids, waited for. The clock is read outside, when the lock is there: who becomes ready by a time from before
-- a long wait would stand where claims have looked already.
WITH locked AS MATERIALIZED (
    SELECT r.* FROM unnest($1::uuid[]) AS u(id) JOIN {schema}.runs r ON r.id = u.id
    ORDER BY r.id
    FOR NO KEY UPDATE OF r
)
SELECT {now} AS now_ms, {standing} FROM locked r;

-- name: lock_free
-- The same, but those that somebody else holds are stepped over.
SELECT {now} AS now_ms, {standing}
FROM unnest($1::uuid[]) AS u(id) JOIN {schema}.runs r ON r.id = u.id
ORDER BY r.id
FOR NO KEY UPDATE OF r SKIP LOCKED;

-- name: fence
-- The runs of a flush that carries more than the usual freight: those that are still this worker's, under the claim that
-- it knows.
SELECT {server} AS server, {now} AS now_ms, {standing}
FROM unnest($2::uuid[], $3::integer[]) AS f(id, claim) JOIN {schema}.runs r ON r.id = f.id
WHERE r.worker IS NOT DISTINCT FROM $1 AND r.claim = f.claim
ORDER BY r.id
FOR NO KEY UPDATE OF r SKIP LOCKED;

-- name: change
-- What was decided of runs that are locked in this transaction. Payloads are not read for a decision: they are written
-- only if they were decided, too.
UPDATE {schema}.runs r
SET status = c.status, reason = c.reason, waiting_for = c.waiting_for, asked = c.asked,
    worker = CASE WHEN c.held THEN r.worker END, token = CASE WHEN c.held THEN r.token END, claim = c.claim,
    place = c.place, visible_at = c.visible_at, deadline_at = c.deadline_at, expires_at = c.expires_at,
    held_due = c.held_due, paused_at = c.paused_at, wakes = c.wakes, ends = c.ends, awaits = c.awaits,
    linger_ms = c.linger_ms, attempt = c.attempt, first_attempt = c.first_attempt, losses = c.losses,
    undoing = c.undoing, failing = c.failing, pending = c.pending, met = c.met, ready_at = c.ready_at,
    completed_at = c.completed_at, version = c.version, forget = c.forget,
    output = CASE WHEN c.has_output THEN c.output ELSE r.output END,
    output_format = CASE WHEN c.has_output THEN c.output_format ELSE r.output_format END,
    error = CASE WHEN c.has_error THEN c.error ELSE r.error END
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::boolean[], $7::integer[], $8::bigint[],
            $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[], $14::integer[], $15::integer[],
            $16::integer[], $17::integer[], $18::integer[], $19::integer[], $20::integer[], $21::boolean[],
            $22::boolean[], $23::integer[], $24::integer[], $25::bigint[], $26::bigint[], $27::text[], $28::text[],
            $29::boolean[], $30::text[], $31::smallint[], $32::boolean[], $33::text[])
     AS c(id, status, reason, waiting_for, asked, held, claim, place, visible_at, deadline_at, expires_at, held_due,
          paused_at, wakes, ends, awaits, linger_ms, attempt, first_attempt, losses, undoing, failing, pending, met,
          ready_at, completed_at, version, forget, has_output, output, output_format, has_error, error)
WHERE r.id = c.id;

-- name: inherit_tags
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
-- A bounded batch of runs that name no living worker. Only to lock them: a row that somebody changed since this
-- statement began is looked at again as it is by now, but the workers are still seen as they were then; one that was
-- reaped and claimed meanwhile, by a worker that has come since, would be taken for lost.
SELECT r.id::text AS id FROM {schema}.runs r
WHERE r.worker IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM {schema}.workers w WHERE w.id = r.worker AND w.state <> 'dead')
ORDER BY r.id LIMIT $1
FOR NO KEY UPDATE OF r SKIP LOCKED;
