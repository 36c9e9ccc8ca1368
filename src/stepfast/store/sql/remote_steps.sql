-- Remote steps: what the engine knows of steps that workers elsewhere serve. Nothing here knows the transport's tables.

-- name: remote_last(u(id uuid))
-- The largest and the smallest number that remote steps of these runs have. Their rows are locked, so that both stay.
SELECT u.id::text AS run_id,
       (SELECT s.seq FROM {remote_steps} s WHERE s.run_id = u.id ORDER BY s.seq DESC LIMIT 1) AS last,
       (SELECT s.seq FROM {remote_steps} s WHERE s.run_id = u.id ORDER BY s.seq LIMIT 1) AS first
FROM {rows u};

-- name: put_remote(s(run_id uuid, seq integer, id uuid, branch text, position integer, claim integer, run_attempt integer,
--     name text, grp text, carrier text, input text, state text, attempt integer, retries integer, backoff text,
--     dispatched_at bigint, due_at bigint, resent integer, queue_ms integer, settled_at bigint, trace text))
-- Remote steps that have begun.
INSERT INTO {remote_steps} (run_id, seq, id, branch, position, claim, run_attempt, name, grp, carrier, input,
                                   state, attempt, retries, backoff, dispatched_at, due_at, resent, queue_ms, settled_at,
                                   trace)
SELECT s.* FROM {rows s};

-- name: withdraw_at(p(run_id uuid, branch text, position integer, now bigint))
-- What was sent at these addresses by earlier attempts of their runs is not waited for any more.
{update remote_steps s, p} SET state = 'withdrawn', due_at = p.now
{from p}
WHERE s.run_id = p.run_id AND s.branch = p.branch AND s.position = p.position AND s.state IN ('outbox', 'sent');

-- name: open_remote(carrier text, run_id uuid, seq integer, most bigint)
-- A page of those that wait for a result over a transport: their runs and numbers, beyond a run and a number.
SELECT s.run_id::text AS run_id, s.seq FROM {remote_steps} s
WHERE s.state IN ('outbox', 'sent') AND s.carrier = :carrier AND (s.run_id, s.seq) > (:run_id, :seq)
ORDER BY s.run_id, s.seq LIMIT :most;

-- name: lock_remote(u(run_id uuid, seq integer))
-- These, waited for, in one order.
SELECT {wide}{now}, s.run_id::text, s.seq, s.id::text, s.branch, s.position, s.claim, s.run_attempt, s.name, s.grp,
       s.carrier, NULL::text, s.state, s.attempt, s.retries, s.backoff, s.dispatched_at, s.due_at, s.resent, s.queue_ms,
       s.settled_at{/wide}
FROM {rows u}
{join} {remote_steps} s ON s.run_id = u.run_id AND s.seq = u.seq
ORDER BY s.run_id, s.seq
{lock_all s};

-- name: due_remote(carrier text, most bigint)
-- Those that are due now, and that no other worker is working on.
SELECT {now} AS now_ms, s.run_id::text, s.seq, s.id::text, s.branch, s.position, s.claim, s.run_attempt, s.name, s.grp,
       s.carrier, s.input, s.state, s.attempt, s.retries, s.backoff, s.dispatched_at, s.due_at, s.resent, s.queue_ms,
       s.settled_at, s.trace
FROM {remote_steps} s
WHERE s.due_at IS NOT NULL AND s.due_at <= {now} AND s.carrier = :carrier
ORDER BY s.due_at LIMIT :most
{lock_all s skip};

-- name: change_remote(c(run_id uuid, seq integer, state text, attempt integer, dispatched_at bigint, due_at bigint,
--     resent integer, queue_ms integer, settled_at bigint))
-- Write what was decided of them. Their rows are locked already.
{update remote_steps s, c}
SET state = c.state, attempt = c.attempt, dispatched_at = c.dispatched_at, due_at = c.due_at, resent = c.resent,
    queue_ms = c.queue_ms, settled_at = c.settled_at, input = CASE WHEN c.settled_at IS NULL THEN s.input END
{from c}
WHERE s.run_id = c.run_id AND s.seq = c.seq;

-- name: leave_outcomes(m(run_id uuid, id uuid, name text, value text, error text, sent_at bigint))
-- Their outcomes, left in the mailboxes of their runs to be delivered.
INSERT INTO {mailbox} (run_id, id, kind, name, value, error, format, sent_at, delivered)
SELECT m.run_id, m.id, 'remote', m.name, m.value, m.error, 1, m.sent_at, false
FROM {rows m}
WHERE true
{skip run_id, id};

-- name: over_remote(carrier text, run_id uuid, seq integer, most bigint)
-- Those that are not waited for any more: their run has ended, or is gone, or has no open record of them.
SELECT s.run_id::text AS run_id, s.seq FROM {remote_steps} s
LEFT JOIN {runs} r ON r.id = s.run_id
LEFT JOIN {steps} t ON t.run_id = s.run_id AND t.branch = s.branch AND t.position = s.position
WHERE s.state IN ('outbox', 'sent') AND s.carrier = :carrier AND (s.run_id, s.seq) > (:run_id, :seq)
  AND (r.id IS NULL OR r.status IN ({ended})
       OR {differs t.status, 'waiting'})
ORDER BY s.run_id, s.seq LIMIT :most;

-- name: over_among(u(run_id uuid, seq integer))
-- The same of some of them, whose runs are locked in this transaction: now it stays so.
SELECT {wide}{now}, s.run_id::text, s.seq, s.id::text, s.branch, s.position, s.claim, s.run_attempt, s.name, s.grp,
       s.carrier, NULL::text, s.state, s.attempt, s.retries, s.backoff, s.dispatched_at, s.due_at, s.resent, s.queue_ms,
       s.settled_at{/wide}
FROM {rows u}
{join} {remote_steps} s ON s.run_id = u.run_id AND s.seq = u.seq
LEFT JOIN {runs} r ON r.id = s.run_id
LEFT JOIN {steps} t ON t.run_id = s.run_id AND t.branch = s.branch AND t.position = s.position
WHERE s.state IN ('outbox', 'sent')
  AND (r.id IS NULL OR r.status IN ({ended})
       OR {differs t.status, 'waiting'})
ORDER BY s.run_id, s.seq
{lock_all s};

-- name: gone_runs(u(id uuid))
-- Those of these runs that there are no rows of.
SELECT u.id::text FROM {rows u} LEFT JOIN {runs} r ON r.id = u.id WHERE r.id IS NULL;

-- name: closed_among(u(run_id uuid, seq integer))
-- Those of these that nothing is left to do about: what the transport still has of them belongs to no step.
SELECT s.run_id::text AS run_id, s.seq
FROM {rows u}
{join} {remote_steps} s ON s.run_id = u.run_id AND s.seq = u.seq
WHERE s.due_at IS NULL;

-- name: alive_remote(run_id uuid)
-- The remote steps of a run that can still end: they are under way, or their outcome is in the mailbox. One
-- that was sent again under its old id, because the run had ended before, says when.
SELECT s.id::text AS id, CASE WHEN count(*) > 1 THEN max(s.dispatched_at) END AS sent_again_at
FROM {remote_steps} s
WHERE s.run_id = :run_id
GROUP BY s.run_id, s.id
HAVING max(CASE WHEN s.state IN ('outbox', 'sent') THEN 1 ELSE 0 END) = 1
    OR (max(CASE WHEN s.state = 'settled' THEN 1 ELSE 0 END) = 1
        AND (SELECT true FROM {mailbox} m WHERE m.run_id = s.run_id AND m.id = s.id));

-- name: remote_of_runs(ids uuid[])
-- All remote steps of some runs, for people.
SELECT {now} AS now_ms, s.run_id::text, s.seq, s.id::text, s.branch, s.position, s.claim, s.run_attempt, s.name, s.grp,
       s.carrier, NULL::text AS input, s.state, s.attempt, s.retries, s.backoff, s.dispatched_at, s.due_at, s.resent,
       s.queue_ms, s.settled_at
FROM {remote_steps} s
WHERE s.run_id {in ids}
ORDER BY s.run_id, s.seq;

-- name: remove_remote_steps(u(run_id uuid))
-- Those of runs that are taken away. What is still to be taken back from the transport stays until that is done.
{delete remote_steps by u} AND due_at IS NULL;
