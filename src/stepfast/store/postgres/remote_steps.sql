-- Remote steps: what the engine knows of steps that workers elsewhere serve. Nothing here knows the transport's tables.

-- name: lock_remote
-- These, waited for, in one order.
SELECT {now} AS now_ms, s.run_id::text, s.seq, s.id::text, s.branch, s.position, s.claim, s.run_attempt, s.name, s.grp,
       s.carrier, NULL::text AS input, s.state, s.attempt, s.retries, s.backoff, s.dispatched_at, s.due_at, s.resent, s.queue_ms,
       s.settled_at
FROM unnest($1::uuid[], $2::integer[]) AS u(run_id, seq)
JOIN {schema}.remote_steps s ON s.run_id = u.run_id AND s.seq = u.seq
ORDER BY s.run_id, s.seq
FOR UPDATE OF s;

-- name: over_among
-- The same of some runs, which are locked in this transaction: now it stays so.
SELECT {now} AS now_ms, s.run_id::text, s.seq, s.id::text, s.branch, s.position, s.claim, s.run_attempt, s.name, s.grp,
       s.carrier, NULL::text AS input, s.state, s.attempt, s.retries, s.backoff, s.dispatched_at, s.due_at, s.resent, s.queue_ms,
       s.settled_at
FROM unnest($1::uuid[], $2::integer[]) AS u(run_id, seq)
JOIN {schema}.remote_steps s ON s.run_id = u.run_id AND s.seq = u.seq
LEFT JOIN {schema}.runs r ON r.id = s.run_id
LEFT JOIN {schema}.steps t ON t.run_id = s.run_id AND t.branch = s.branch AND t.position = s.position
WHERE s.state IN ('outbox', 'sent')
  AND (r.id IS NULL OR r.status IN ({ended})
       OR t.status IS DISTINCT FROM 'waiting')
ORDER BY s.run_id, s.seq
FOR UPDATE OF s;
