-- Claims: a worker takes runs, and the histories that come along. Statements that choose runs lock them, and step over
-- those that another transaction has locked.

-- name: ready(queue, workflow, priority integer, mark bigint, most)
-- The first runs of one lane, oldest first. Whether a run expired unclaimed is read here too, because the sweep that ends
-- it may be late. Places below `mark` were seen claimed: the dead entries at the front of an index are not read again. A
-- gated queue (paused, or limited) gives nothing: that is read once, before all else.
SELECT r.place, r.id::text AS id, {row r} AS number, r.version, octet_length(r.input) AS size, {now} AS now_ms
FROM {runs} r
WHERE NOT EXISTS (SELECT 1 FROM {queues} q WHERE q.name = :queue AND (q.paused OR q.limited))
  AND r.queue = :queue AND r.workflow = :workflow AND r.priority = :priority AND r.place >= :mark
  AND r.place IS NOT NULL AND r.losses < 2
  AND (r.expires_at IS NULL OR r.started_at IS NOT NULL OR r.expires_at > {now})
  AND (r.deadline_at IS NULL OR r.deadline_at > {now})
ORDER BY r.place LIMIT :most
{lock r skip};

-- name: suspects(workflows text[], queues text[], most)
-- Runs that workers have died with, of the workflows that this worker knows, in the order in which they are taken: those
-- with the fewest losses first, so that the likely innocent are neither kept waiting nor taken along by a likely culprit.
SELECT r.losses, r.workflow, r.place, r.id::text AS id, {row r} AS number, r.version, octet_length(r.input) AS size,
       {now} AS now_ms
FROM {runs} r {index runs_suspect}
WHERE r.place IS NOT NULL AND r.losses >= 2 AND r.workflow {in workflows} AND (:queues IS NULL OR r.queue {in queues})
  AND (r.deadline_at IS NULL OR r.deadline_at > {now})
  AND r.queue NOT IN (SELECT name FROM {queues} WHERE paused OR limited)
ORDER BY r.losses, r.priority DESC, r.place LIMIT :most
{lock r skip};

-- name: count_suspects
-- How many of them are ready, by queue and workflow.
SELECT queue, workflow, count(*) AS number FROM {runs} WHERE place IS NOT NULL AND losses >= 2
GROUP BY queue, workflow ORDER BY queue, workflow;

-- name: log_claims(u(number uuid, worker uuid, token bigint, version text, now bigint))
-- The workers of earlier claims of some runs, where that is another worker than the one that takes them now. A row that is
-- then left because another transaction holds it is not taken: its claims were that worker's all the same.
INSERT INTO {claims} (run_id, claim, worker)
SELECT r.id, r.claim, r.executed_by
FROM {rows u}
{join} {runs} r ON {row r} = u.number
WHERE r.executed_by <> u.worker
{skip run_id, claim};

-- name: take(u(number uuid, worker uuid, token bigint, version text, now bigint))
-- Hand runs to a worker: a new claim number each, and ready no more. Here and everywhere a run that is being undone has
-- the one status 'compensating', whether it is ready, is executed or waits.
{update runs r, u}
SET status = CASE WHEN r.undoing THEN 'compensating' ELSE 'running' END, worker = u.worker, executed_by = u.worker,
    token = u.token, version = u.version, claim = {next_claim}, place = NULL, visible_at = NULL, waiting_for = NULL,
    attempt = {greatest}(r.attempt, r.first_attempt), started_at = COALESCE(r.started_at, u.now)
{from u}
WHERE {row r} = u.number;

-- name: claimed(worker uuid, token bigint)
-- What the call of a token took: this one, or an earlier one whose reply was lost on the way.
SELECT {wide}r.id::text, r.workflow, r.queue, r.priority, r.claim, r.attempt, r.first_attempt, r.losses, r.wakes, r.format,
       r.input, r.max_attempts, r.timeout_ms, r.deadline_at - {now}, r.started_at, 0, NULL, r.asked, r.ends, r.undoing,
       r.parent_id::text, {now}, r.dag_id::text, r.dag_step, r.graph, r.ready_at, r.failing, r.reason, r.seed, r.trace,
       r.unrecorded_losses, r.unique_name IS NOT NULL{/wide}
FROM {runs} r WHERE r.worker = :worker AND r.token = :token;

-- name: history(u(id uuid), look bigint, most_bytes bigint)
-- The first records of claimed runs: at most `look` of each, and none after more than `most_bytes` bytes; the last of them
-- without a large output, by which first_records() of model/transitions/claim.py sees that there are others. The rest
-- comes in pages when needed.
SELECT s.run_id, s.branch, s.position, s.seq, s.name, s.kind, s.status,
       CASE WHEN s.preceding <= :most_bytes THEN s.output END, s.error, s.arguments, s.attempts, s.started_at,
       s.completed_at, s.line, s.format, s.undo
FROM {each u} (
    SELECT sized.*, sum(sized.size) OVER (ORDER BY sized.branch, sized.position) - sized.size AS preceding,
           COALESCE(lag(sized.size) OVER (ORDER BY sized.branch, sized.position), 0) AS last_size
    FROM (SELECT t.*, COALESCE(octet_length(t.output), 0) AS size FROM {steps} t
          WHERE t.run_id = u.id ORDER BY t.branch, t.position LIMIT :look) AS sized
) AS s
WHERE s.preceding - s.last_size <= :most_bytes
ORDER BY s.run_id, s.branch, s.position;

-- name: history_tries(u(id uuid, attempt integer))
-- Failed tries of the present attempt, so that a step which waited for its retry knows how many it has had, and when the
-- next is due if something else woke the run before.
SELECT t.run_id, t.branch, t.position, count(*) AS failures, max(t.due_at) AS due_at
FROM {rows u} {join} {tries} t ON t.run_id = u.id AND t.attempt = u.attempt
WHERE t.position >= 0
GROUP BY t.run_id, t.branch, t.position;

-- name: give_seeds(u(id uuid, seed text, worker uuid))
-- A secret for each of these runs, which a worker holds and which have none.
{update runs r, u} SET seed = u.seed {from u} WHERE r.seed = '' AND r.id = u.id AND r.worker = u.worker;

-- name: seeds(ids uuid[])
-- The secrets of runs.
SELECT r.id::text, r.seed FROM {runs} r WHERE r.id {in ids};
