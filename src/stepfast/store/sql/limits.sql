-- Claims from limited queues. The row of the queue is locked when these are asked, so that one claim counts at a time.

-- name: log_limited(u(id uuid, worker uuid, token bigint, version text))
-- Whose the claims of some runs were before, where that is another worker than the one that takes them now. A row that is then
-- left because somebody holds it is not taken: its claims were that worker's all the same.
INSERT INTO {claims} (run_id, claim, worker)
SELECT r.id, r.claim, r.executed_by
FROM {rows u}
{join} {runs} r ON r.id = u.id
WHERE r.executed_by <> u.worker
{skip run_id, claim};

-- name: note_counted(u(name text, at bigint))
-- When what workers hold was counted in last.
{update queues q, u} SET counted_at = u.at {from u} WHERE q.name = u.name;

-- name: ready_suspects(queue, workflows text[], most)
-- The first of the runs of a queue that workers have died with: those with the fewest losses first.
SELECT r.id::text, r.workflow, r.priority, r.place, r.version, octet_length(r.input), r.concurrency_key, {fresh}, r.losses
FROM {runs} r
WHERE r.queue = :queue AND r.workflow {in workflows} AND r.place IS NOT NULL AND r.losses >= 2
  AND (r.deadline_at IS NULL OR r.deadline_at > {now})
ORDER BY r.losses, r.priority DESC, r.place LIMIT :most;

-- name: log_starts(u(queue text, key text, at bigint, number integer))
-- Attempts that were begun: for the rates of a queue (key '') and of its keys.
INSERT INTO {queue_starts} AS s(queue, key, at, number)
SELECT u.queue, u.key, u.at, u.number FROM {rows u}
WHERE true
{upsert queue, key, at} number = CASE WHEN s.number < {most_counted} THEN s.number + {new.number} ELSE s.number END;

-- name: note_pruned(u(name text, at bigint))
-- When what no window reaches any more was removed last.
{update queues q, u} SET pruned_at = u.at {from u} WHERE q.name = u.name;
