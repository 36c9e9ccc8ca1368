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
          r.unrecorded_losses;

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
          r.unrecorded_losses;

-- name: claim_suspects
-- A group of runs that workers have died with, of the workflows this worker knows. Only those with the fewest losses, so
-- that the likely innocent are not kept waiting nor taken along by a likely culprit; and as many of them as the worker
-- has room for, which $6 says: of those with two losses, with three, and so on; the last holds for all beyond.
WITH fewest AS MATERIALIZED (
    SELECT s.losses
    FROM {schema}.runs s JOIN unnest($3::text[]) AS w(workflow) ON w.workflow = s.workflow
    WHERE s.place IS NOT NULL AND s.losses >= 2 AND ($5::text[] IS NULL OR s.queue = ANY($5::text[]))
      AND s.queue <> ALL (ARRAY(SELECT q.name FROM {schema}.queues q WHERE q.paused OR q.limited))
      AND (s.deadline_at IS NULL OR s.deadline_at > {now})
    ORDER BY s.losses LIMIT 1
), picked AS MATERIALIZED (
    SELECT s.id, s.place, s.version, w.version AS new_version, s.claim, s.executed_by, octet_length(s.input) AS size
    FROM {schema}.runs s JOIN unnest($3::text[], $4::text[]) AS w(workflow, version) ON w.workflow = s.workflow
    WHERE s.place IS NOT NULL AND s.losses >= 2 AND s.losses = (SELECT losses FROM fewest)
      AND ($5::text[] IS NULL OR s.queue = ANY($5::text[])) AND (s.deadline_at IS NULL OR s.deadline_at > {now})
      AND s.queue <> ALL (ARRAY(SELECT q.name FROM {schema}.queues q WHERE q.paused OR q.limited))
    ORDER BY s.priority DESC, s.place
    LIMIT ($6::integer[])[LEAST((SELECT losses FROM fewest) - 1, cardinality($6::integer[]))]
    FOR NO KEY UPDATE OF s SKIP LOCKED
), sized AS (
    SELECT id, place, version, new_version, claim, executed_by,
           sum(size) OVER (ROWS UNBOUNDED PRECEDING) - size AS before
    FROM picked
), handed AS (
    INSERT INTO {schema}.claims (run_id, claim, worker)
    SELECT p.id, p.claim, p.executed_by FROM sized p WHERE p.executed_by <> $1 AND p.before < $7::bigint
    ON CONFLICT DO NOTHING
)
UPDATE {schema}.runs r
SET status = CASE WHEN r.undoing THEN 'compensating' ELSE 'running' END, worker = $1, executed_by = $1, token = $2,
    version = p.new_version, claim = {next_claim}, place = NULL, visible_at = NULL, waiting_for = NULL,
    attempt = GREATEST(r.attempt, r.first_attempt), started_at = COALESCE(r.started_at, {now})
FROM sized p WHERE r.id = p.id AND p.before < $7::bigint
RETURNING r.id::text AS id, r.workflow, r.queue, r.priority, r.claim, r.attempt, r.first_attempt, r.losses, r.wakes,
          r.format, r.input, r.max_attempts, r.timeout_ms, r.deadline_at - {now} AS deadline_in_ms, r.started_at, p.place,
          p.version AS last_version, r.asked, r.ends, r.undoing, r.parent_id::text AS parent_id,
          {now} AS now_ms, r.dag_id::text AS dag_id, r.dag_step, r.graph, r.ready_at, r.failing, r.reason, r.seed, r.trace,
          r.unrecorded_losses;

-- name: count_suspects
-- How many runs that workers have died with are ready, by queue and workflow.
SELECT queue, workflow, count(*) FROM {schema}.runs WHERE place IS NOT NULL AND losses >= 2
GROUP BY queue, workflow ORDER BY queue, workflow;

-- name: claimed
-- What an earlier call of the same token took, in case its reply was lost on the way.
SELECT r.id::text AS id, r.workflow, r.queue, r.priority, r.claim, r.attempt, r.first_attempt, r.losses, r.wakes,
       r.format, r.input, r.max_attempts, r.timeout_ms, r.deadline_at - {now} AS deadline_in_ms, r.started_at, 0::bigint AS place,
       NULL AS last_version, r.asked, r.ends, r.undoing, r.parent_id::text AS parent_id, {now} AS now_ms,
       r.dag_id::text AS dag_id, r.dag_step, r.graph, r.ready_at, r.failing, r.reason, r.seed, r.trace,
          r.unrecorded_losses
FROM {schema}.runs r WHERE r.worker = $1 AND r.token = $2;

-- name: history
-- The first records of claimed runs: at most $2 of each, and none after more than $3 bytes; and one more, without a large
-- output, by which first_records() of model/transitions/claim.py sees that there are others. The rest comes in pages when needed.
SELECT u.id AS run_id, s.branch, s.position, s.seq, s.name, s.kind, s.status, CASE WHEN s.before <= $3 THEN s.output END,
       s.error, s.arguments, s.attempts, s.started_at, s.completed_at, s.line, s.format, s.undo
FROM unnest($1::uuid[]) AS u(id)
CROSS JOIN LATERAL (
    SELECT p.*, sum(p.size) OVER pile - p.size AS before, lag(p.size, 1, 0) OVER pile AS last
    FROM (SELECT *, COALESCE(octet_length(output), 0) AS size FROM {schema}.steps
          WHERE run_id = u.id ORDER BY branch, position LIMIT $2::bigint + 1) AS p
    WINDOW pile AS (ORDER BY p.branch, p.position)
) AS s
WHERE s.before - s.last <= $3
ORDER BY u.id, s.branch, s.position;

-- name: history_tries
-- Failed tries of the present attempt, so that a step which waited for its retry knows how many it has had, and when
-- the next is due.
SELECT t.run_id, t.branch, t.position, count(*)::integer AS failures, max(t.due_at) AS due_at
FROM {schema}.tries t JOIN unnest($1::uuid[], $2::integer[]) AS u(id, attempt) ON t.run_id = u.id AND t.attempt = u.attempt
WHERE t.position >= 0
GROUP BY t.run_id, t.branch, t.position;

-- name: give_seeds
-- A secret for each of these runs, which this worker ($3) holds and which have none.
UPDATE {schema}.runs r SET seed = u.seed FROM unnest($1::uuid[], $2::text[]) AS u(id, seed)
WHERE r.id = u.id AND r.worker = $3::uuid AND r.seed = ''
RETURNING r.id::text, r.seed;
