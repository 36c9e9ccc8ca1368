-- Remote steps: what the engine knows of steps that workers elsewhere serve. Changes are made in the writer's transaction.

-- name: remote_last
-- The largest and the smallest number that remote steps of these runs have.
SELECT u.value,
       (SELECT s.seq FROM {prefix}remote_steps AS s WHERE s.run_id = u.value ORDER BY s.seq DESC LIMIT 1),
       (SELECT s.seq FROM {prefix}remote_steps AS s WHERE s.run_id = u.value ORDER BY s.seq LIMIT 1)
FROM json_each(?) AS u;

-- name: put_remote
-- Remote steps that have begun.
INSERT INTO {prefix}remote_steps (run_id, seq, id, branch, position, claim, run_attempt, name, grp, carrier, input,
                                  state, attempt, retries, backoff, dispatched_at, due_at, resent, queue_ms, settled_at,
                                  trace)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: withdraw_at
-- What was sent at these addresses by earlier attempts of their runs is not waited for any more.
WITH address(run_id, branch, position, now) AS (VALUES (?, ?, ?, ?))
UPDATE {prefix}remote_steps AS s SET state = 'withdrawn', due_at = address.now
FROM address
WHERE s.run_id = address.run_id AND s.branch = address.branch AND s.position = address.position AND s.state IN ('outbox', 'sent');

-- name: open_remote
-- A page of those that wait for a result over a transport: their runs and numbers, beyond a run and a number.
SELECT run_id, seq FROM {prefix}remote_steps
WHERE state IN ('outbox', 'sent') AND carrier = ? AND (run_id, seq) > (?, ?)
ORDER BY run_id, seq LIMIT ?;

-- name: lock_remote
-- These.
SELECT json_group_array(json_array({now}, s.run_id, s.seq, s.id, s.branch, s.position, s.claim, s.run_attempt, s.name, s.grp,
       s.carrier, NULL, s.state, s.attempt, s.retries, s.backoff, s.dispatched_at, s.due_at, s.resent, s.queue_ms,
       s.settled_at))
FROM json_each(?) AS u
CROSS JOIN {prefix}remote_steps AS s ON s.run_id = json_extract(u.value, '$[0]') AND s.seq = json_extract(u.value, '$[1]');

-- name: due_remote
-- Those that somebody has to see to now.
SELECT {now}, s.run_id, s.seq, s.id, s.branch, s.position, s.claim, s.run_attempt, s.name, s.grp,
       s.carrier, s.input, s.state, s.attempt, s.retries, s.backoff, s.dispatched_at, s.due_at, s.resent, s.queue_ms,
       s.settled_at, s.trace
FROM {prefix}remote_steps AS s
WHERE s.due_at IS NOT NULL AND s.due_at <= {now} AND s.carrier = ?
ORDER BY s.due_at LIMIT ?;

-- name: change_remote
-- Write what was decided of them.
WITH c(run_id, seq, state, attempt, dispatched_at, due_at, resent, queue_ms, settled_at)
    AS (VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?))
UPDATE {prefix}remote_steps AS s
SET state = c.state, attempt = c.attempt, dispatched_at = c.dispatched_at, due_at = c.due_at, resent = c.resent,
    queue_ms = c.queue_ms, settled_at = c.settled_at, input = CASE WHEN c.settled_at IS NULL THEN s.input END
FROM c WHERE s.run_id = c.run_id AND s.seq = c.seq;

-- name: leave_outcomes
-- Their outcomes, left in the mailboxes of their runs to be delivered.
INSERT INTO {prefix}mailbox (run_id, id, kind, name, value, error, format, sent_at, delivered)
WITH m(run_id, id, name, value, error, sent_at) AS (VALUES (?, ?, ?, ?, ?, ?))
SELECT m.run_id, m.id, 'remote', m.name, m.value, m.error, 1, m.sent_at, 0 FROM m WHERE true
ON CONFLICT DO NOTHING;

-- name: over_remote
-- Those that nobody waits for any more: their run has ended, or is gone, or has no open record of them.
SELECT s.run_id, s.seq FROM {prefix}remote_steps AS s
LEFT JOIN {prefix}runs AS r ON r.id = s.run_id
LEFT JOIN {prefix}steps AS t ON t.run_id = s.run_id AND t.branch = s.branch AND t.position = s.position
WHERE s.state IN ('outbox', 'sent') AND s.carrier = ? AND (s.run_id, s.seq) > (?, ?)
  AND (r.id IS NULL OR r.status IN ({ended}) OR t.status IS NOT 'waiting')
ORDER BY s.run_id, s.seq LIMIT ?;

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

-- name: gone_runs
-- Those of these runs that there are no rows of.
SELECT u.value FROM json_each(?) AS u LEFT JOIN {prefix}runs AS r ON r.id = u.value WHERE r.id IS NULL;

-- name: closed_among
-- Those of these that nothing is left to do about: what the transport still has of them is nobody's.
SELECT s.run_id, s.seq
FROM json_each(?) AS u
CROSS JOIN {prefix}remote_steps AS s ON s.run_id = json_extract(u.value, '$[0]') AND s.seq = json_extract(u.value, '$[1]')
WHERE s.due_at IS NULL;

-- name: alive_remote
-- The remote steps of a run that still come to something: they are under way, or their outcome is in the mailbox. One
-- that was sent anew under its old id, because the run had ended meanwhile, says when.
SELECT s.id, CASE WHEN count(*) > 1 THEN max(s.dispatched_at) END
FROM {prefix}remote_steps AS s
WHERE s.run_id = ?
GROUP BY s.run_id, s.id
HAVING max(s.state IN ('outbox', 'sent'))
    OR (max(s.state = 'settled') AND EXISTS (SELECT 1 FROM {prefix}mailbox AS m WHERE m.run_id = s.run_id AND m.id = s.id));

-- name: remote_of_runs
-- All remote steps of some runs, for people.
SELECT {now}, s.run_id, s.seq, s.id, s.branch, s.position, s.claim, s.run_attempt, s.name, s.grp,
       s.carrier, NULL, s.state, s.attempt, s.retries, s.backoff, s.dispatched_at, s.due_at, s.resent, s.queue_ms,
       s.settled_at
FROM {prefix}remote_steps AS s WHERE s.run_id IN (SELECT value FROM json_each(?)) ORDER BY s.run_id, s.seq;

-- name: remove_remote_steps
-- Those of runs that are taken away. What is still to be taken back from the transport stays until that is done.
WITH gone(id) AS (VALUES (?))
DELETE FROM {prefix}remote_steps WHERE run_id IN (SELECT id FROM gone) AND due_at IS NULL;
