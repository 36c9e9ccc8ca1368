-- Claims from limited queues. The row of the queue is locked when these are asked, so that one claim counts at a time.

-- name: log_claims
-- Whose the claims of some runs were before, where that is another worker than the one that takes them now. A row that is then
-- left because somebody holds it is not taken: its claims were that worker's all the same.
INSERT INTO {schema}.claims (run_id, claim, worker)
SELECT r.id, r.claim, r.executed_by
FROM unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::text[]) AS u(id, worker, token, version)
{join} {schema}.runs r ON r.id = u.id
WHERE r.executed_by <> u.worker
ON CONFLICT (run_id, claim) DO NOTHING;

-- name: note_counted
-- When what workers hold was counted in last.
UPDATE {schema}.queues AS q SET counted_at = u.at FROM unnest($1::text[], $2::bigint[]) AS u(name, at) WHERE q.name = u.name;

-- name: ready_suspects
-- The first of the runs of a queue that workers have died with: those with the fewest losses first.
SELECT r.id::text, r.workflow, r.priority, r.place, r.version, octet_length(r.input), r.concurrency_key, {fresh}, r.losses
FROM {schema}.runs r
WHERE r.queue = $1 AND r.workflow = ANY($2::text[]) AND r.place IS NOT NULL AND r.losses >= 2
  AND (r.deadline_at IS NULL OR r.deadline_at > {now})
ORDER BY r.losses, r.priority DESC, r.place LIMIT $3;

-- name: log_starts
-- Attempts that were begun: for the rates of a queue (key '') and of its keys.
INSERT INTO {schema}.queue_starts AS s(queue, key, at, number)
SELECT u.queue, u.key, u.at, u.number FROM unnest($1::text[], $2::text[], $3::bigint[], $4::integer[]) AS u(queue, key, at, number)
WHERE true
ON CONFLICT (queue, key, at)
DO UPDATE SET number = CASE WHEN s.number < {most_counted} THEN s.number + excluded.number ELSE s.number END;

-- name: note_pruned
-- When what no window reaches any more was removed last.
UPDATE {schema}.queues AS q SET pruned_at = u.at FROM unnest($1::text[], $2::bigint[]) AS u(name, at) WHERE q.name = u.name;
