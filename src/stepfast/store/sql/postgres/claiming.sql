-- Claims: a worker takes runs, and the histories that come along. Every statement here is hot; a test looks at the plan of
-- each on a full table.

-- name: claim_lane
-- Up to $8 ready runs of one lane, oldest first. The lane's mark ($7) skips what this worker saw claimed before: under a
-- long snapshot elsewhere the dead entries at the front of the index cannot be removed, and would be walked each time.
-- A materialised CTE, because a subquery with LIMIT and SKIP LOCKED can be run twice and take more than it should. What
-- would make more than $9 bytes of inputs together is left ready; one run is always taken. (The rows come in the order
-- of their places already, so that nothing has to be sorted for that.) A gated queue (paused, or limited) gives nothing:
-- that is asked once, before anything is looked for, so that a pause holds from the moment it is committed. Whose the claims
-- before were is written down only where another worker takes a run.
WITH picked AS MATERIALIZED (
    SELECT id, place, version, claim, executed_by, octet_length(input) AS size FROM {schema}.runs
    WHERE (SELECT q.paused OR q.limited FROM {schema}.queues q WHERE q.name = $4) IS NOT TRUE
      AND queue = $4 AND workflow = $5 AND priority = $6 AND place >= $7 AND place IS NOT NULL AND losses < 2
      AND (expires_at IS NULL OR started_at IS NOT NULL OR expires_at > {now})
      AND (deadline_at IS NULL OR deadline_at > {now})
    ORDER BY place LIMIT $8
    FOR NO KEY UPDATE SKIP LOCKED
), sized AS (
    SELECT id, place, version, claim, executed_by, sum(size) OVER (ROWS UNBOUNDED PRECEDING) - size AS before FROM picked
), handed AS (
    INSERT INTO {schema}.claims (run_id, claim, worker)
    SELECT p.id, p.claim, p.executed_by FROM sized p WHERE p.executed_by <> $1 AND p.before < $9::bigint
    ON CONFLICT DO NOTHING
)
UPDATE {schema}.runs r
SET status = CASE WHEN r.undoing THEN 'compensating' ELSE 'running' END, worker = $1, executed_by = $1, token = $2, version = $3,
    claim = {next_claim}, place = NULL, visible_at = NULL, waiting_for = NULL,
    attempt = GREATEST(r.attempt, r.first_attempt), started_at = COALESCE(r.started_at, {now})
FROM sized p WHERE r.id = p.id AND p.before < $9::bigint
RETURNING r.id::text AS id, r.workflow, r.queue, r.priority, r.claim, r.attempt, r.first_attempt, r.losses, r.wakes,
          r.format, r.input, r.max_attempts, r.timeout_ms, r.deadline_at - {now} AS deadline_in_ms, r.started_at, p.place,
          p.version AS last_version, r.asked, r.ends, r.undoing, r.parent_id::text AS parent_id,
          {now} AS now_ms, r.dag_id::text AS dag_id, r.dag_step, r.graph, r.ready_at, r.failing, r.reason, r.seed, r.trace,
          r.unrecorded_losses, r.unique_name IS NOT NULL AS named;

-- name: claim_lanes
-- The same over many lanes: the first of each, then the first of these, and only what is taken is locked.
WITH candidates AS MATERIALIZED (
    SELECT c.id, c.place, c.version, l.version AS new_version, l.priority
    FROM unnest($3::text[], $4::text[], $5::integer[], $6::bigint[], $7::text[])
         AS l(queue, workflow, priority, mark, version)
    CROSS JOIN LATERAL (
        SELECT r.id, r.place, r.version FROM {schema}.runs r
        WHERE r.queue = l.queue AND r.workflow = l.workflow AND r.priority = l.priority
          AND r.place >= l.mark AND r.place IS NOT NULL AND r.losses < 2
          AND (r.expires_at IS NULL OR r.started_at IS NOT NULL OR r.expires_at > {now})
          AND (r.deadline_at IS NULL OR r.deadline_at > {now})
        ORDER BY r.place LIMIT $8
    ) AS c
    WHERE l.queue <> ALL (ARRAY(SELECT q.name FROM {schema}.queues q WHERE q.paused OR q.limited))
    ORDER BY l.priority DESC, c.place LIMIT $8
), picked AS MATERIALIZED (
    SELECT r.id, c.place, c.version, c.new_version, r.claim, r.executed_by, octet_length(r.input) AS size
    FROM candidates c JOIN {schema}.runs r ON r.id = c.id
    WHERE r.place IS NOT NULL
    FOR NO KEY UPDATE OF r SKIP LOCKED
), sized AS (
    SELECT id, place, version, new_version, claim, executed_by,
           sum(size) OVER (ROWS UNBOUNDED PRECEDING) - size AS before
    FROM picked
), handed AS (
    INSERT INTO {schema}.claims (run_id, claim, worker)
    SELECT p.id, p.claim, p.executed_by FROM sized p WHERE p.executed_by <> $1 AND p.before < $9::bigint
    ON CONFLICT DO NOTHING
)
UPDATE {schema}.runs r
SET status = CASE WHEN r.undoing THEN 'compensating' ELSE 'running' END, worker = $1, executed_by = $1, token = $2,
    version = p.new_version, claim = {next_claim}, place = NULL, visible_at = NULL, waiting_for = NULL,
    attempt = GREATEST(r.attempt, r.first_attempt), started_at = COALESCE(r.started_at, {now})
FROM sized p WHERE r.id = p.id AND p.before < $9::bigint
RETURNING r.id::text AS id, r.workflow, r.queue, r.priority, r.claim, r.attempt, r.first_attempt, r.losses, r.wakes,
          r.format, r.input, r.max_attempts, r.timeout_ms, r.deadline_at - {now} AS deadline_in_ms, r.started_at, p.place,
          p.version AS last_version, r.asked, r.ends, r.undoing, r.parent_id::text AS parent_id,
          {now} AS now_ms, r.dag_id::text AS dag_id, r.dag_step, r.graph, r.ready_at, r.failing, r.reason, r.seed, r.trace,
          r.unrecorded_losses, r.unique_name IS NOT NULL AS named;
