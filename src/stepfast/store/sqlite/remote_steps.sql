-- Remote steps: what the engine knows of steps that workers elsewhere serve. Changes are made in the writer's transaction.

-- name: lock_remote
-- These.
SELECT json_group_array(json_array({now}, s.run_id, s.seq, s.id, s.branch, s.position, s.claim, s.run_attempt, s.name, s.grp,
       s.carrier, NULL, s.state, s.attempt, s.retries, s.backoff, s.dispatched_at, s.due_at, s.resent, s.queue_ms,
       s.settled_at))
FROM json_each(?) AS u
CROSS JOIN {prefix}remote_steps AS s ON s.run_id = json_extract(u.value, '$[0]') AND s.seq = json_extract(u.value, '$[1]');

-- name: over_among
-- The same of some of them, now that nobody else writes.
SELECT json_group_array(json_array({now}, s.run_id, s.seq, s.id, s.branch, s.position, s.claim, s.run_attempt, s.name, s.grp,
       s.carrier, NULL, s.state, s.attempt, s.retries, s.backoff, s.dispatched_at, s.due_at, s.resent, s.queue_ms,
       s.settled_at))
FROM json_each(?) AS u
CROSS JOIN {prefix}remote_steps AS s ON s.run_id = json_extract(u.value, '$[0]') AND s.seq = json_extract(u.value, '$[1]')
LEFT JOIN {prefix}runs AS r ON r.id = s.run_id
LEFT JOIN {prefix}steps AS t ON t.run_id = s.run_id AND t.branch = s.branch AND t.position = s.position
WHERE s.state IN ('outbox', 'sent')
  AND (r.id IS NULL OR r.status IN ({ended}) OR t.status IS NOT 'waiting');
