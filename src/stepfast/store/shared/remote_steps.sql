-- Remote steps: what the engine knows of steps that workers elsewhere serve. Nothing here knows the transport's tables.

-- name: remote_last
-- The largest and the smallest number that remote steps of these runs have. Their rows are locked, so that both stay.
SELECT u.id::text AS run_id,
       (SELECT s.seq FROM {schema}.remote_steps s WHERE s.run_id = u.id ORDER BY s.seq DESC LIMIT 1) AS last,
       (SELECT s.seq FROM {schema}.remote_steps s WHERE s.run_id = u.id ORDER BY s.seq LIMIT 1) AS first
FROM unnest($1::uuid[]) AS u(id);

-- name: put_remote
-- Remote steps that have begun.
INSERT INTO {schema}.remote_steps (run_id, seq, id, branch, position, claim, run_attempt, name, grp, carrier, input,
                                   state, attempt, retries, backoff, dispatched_at, due_at, resent, queue_ms, settled_at,
                                   trace)
SELECT s.* FROM unnest($1::uuid[], $2::integer[], $3::uuid[], $4::text[], $5::integer[], $6::integer[], $7::integer[],
                       $8::text[], $9::text[], $10::text[], $11::text[], $12::text[], $13::integer[], $14::integer[],
                       $15::text[], $16::bigint[], $17::bigint[], $18::integer[], $19::integer[], $20::bigint[],
                       $21::text[])
     AS s(run_id, seq, id, branch, position, claim, run_attempt, name, grp, carrier, input, state, attempt, retries, backoff,
          dispatched_at, due_at, resent, queue_ms, settled_at, trace);

-- name: withdraw_at
-- What was sent at these addresses by earlier attempts of their runs is not waited for any more.
UPDATE {schema}.remote_steps AS s SET state = 'withdrawn', due_at = p.now
FROM unnest($1::uuid[], $2::text[], $3::integer[], $4::bigint[]) AS p(run_id, branch, position, now)
WHERE s.run_id = p.run_id AND s.branch = p.branch AND s.position = p.position AND s.state IN ('outbox', 'sent');

-- name: open_remote
-- A page of those that wait for a result over a transport: their runs and numbers, beyond a run and a number.
SELECT s.run_id::text AS run_id, s.seq FROM {schema}.remote_steps s
WHERE s.state IN ('outbox', 'sent') AND s.carrier = $1::text AND (s.run_id, s.seq) > ($2::uuid, $3::integer)
ORDER BY s.run_id, s.seq LIMIT $4::bigint;

-- name: lock_remote
-- These, waited for, in one order.
SELECT {wide}{now}, s.run_id::text, s.seq, s.id::text, s.branch, s.position, s.claim, s.run_attempt, s.name, s.grp,
       s.carrier, NULL::text, s.state, s.attempt, s.retries, s.backoff, s.dispatched_at, s.due_at, s.resent, s.queue_ms,
       s.settled_at{/wide}
FROM unnest($1::uuid[], $2::integer[]) AS u(run_id, seq)
{join} {schema}.remote_steps s ON s.run_id = u.run_id AND s.seq = u.seq
ORDER BY s.run_id, s.seq
FOR UPDATE OF s;

-- name: due_remote
-- Those that somebody has to see to now, and nobody else is seeing to.
SELECT {now} AS now_ms, s.run_id::text, s.seq, s.id::text, s.branch, s.position, s.claim, s.run_attempt, s.name, s.grp,
       s.carrier, s.input, s.state, s.attempt, s.retries, s.backoff, s.dispatched_at, s.due_at, s.resent, s.queue_ms,
       s.settled_at, s.trace
FROM {schema}.remote_steps s
WHERE s.due_at IS NOT NULL AND s.due_at <= {now} AND s.carrier = $1::text
ORDER BY s.due_at LIMIT $2::bigint
FOR UPDATE SKIP LOCKED;

-- name: change_remote
-- Write what was decided of them. Their rows are locked already.
UPDATE {schema}.remote_steps AS s
SET state = c.state, attempt = c.attempt, dispatched_at = c.dispatched_at, due_at = c.due_at, resent = c.resent,
    queue_ms = c.queue_ms, settled_at = c.settled_at, input = CASE WHEN c.settled_at IS NULL THEN s.input END
FROM unnest($1::uuid[], $2::integer[], $3::text[], $4::integer[], $5::bigint[], $6::bigint[], $7::integer[],
            $8::integer[], $9::bigint[])
     AS c(run_id, seq, state, attempt, dispatched_at, due_at, resent, queue_ms, settled_at)
WHERE s.run_id = c.run_id AND s.seq = c.seq;

-- name: leave_outcomes
-- Their outcomes, left in the mailboxes of their runs to be delivered.
INSERT INTO {schema}.mailbox (run_id, id, kind, name, value, error, format, sent_at, delivered)
SELECT m.run_id, m.id, 'remote', m.name, m.value, m.error, 1, m.sent_at, false
FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::bigint[])
     AS m(run_id, id, name, value, error, sent_at)
WHERE true
ON CONFLICT (run_id, id) DO NOTHING;

-- name: over_remote
-- Those that nobody waits for any more: their run has ended, or is gone, or has no open record of them.
SELECT s.run_id::text AS run_id, s.seq FROM {schema}.remote_steps s
LEFT JOIN {schema}.runs r ON r.id = s.run_id
LEFT JOIN {schema}.steps t ON t.run_id = s.run_id AND t.branch = s.branch AND t.position = s.position
WHERE s.state IN ('outbox', 'sent') AND s.carrier = $1::text AND (s.run_id, s.seq) > ($2::uuid, $3::integer)
  AND (r.id IS NULL OR r.status IN ({ended})
       OR t.status IS DISTINCT FROM 'waiting')
ORDER BY s.run_id, s.seq LIMIT $4::bigint;

-- name: over_among
-- The same of some of them, whose runs are locked in this transaction: now it stays so.
SELECT {wide}{now}, s.run_id::text, s.seq, s.id::text, s.branch, s.position, s.claim, s.run_attempt, s.name, s.grp,
       s.carrier, NULL::text, s.state, s.attempt, s.retries, s.backoff, s.dispatched_at, s.due_at, s.resent, s.queue_ms,
       s.settled_at{/wide}
FROM unnest($1::uuid[], $2::integer[]) AS u(run_id, seq)
{join} {schema}.remote_steps s ON s.run_id = u.run_id AND s.seq = u.seq
LEFT JOIN {schema}.runs r ON r.id = s.run_id
LEFT JOIN {schema}.steps t ON t.run_id = s.run_id AND t.branch = s.branch AND t.position = s.position
WHERE s.state IN ('outbox', 'sent')
  AND (r.id IS NULL OR r.status IN ({ended})
       OR t.status IS DISTINCT FROM 'waiting')
ORDER BY s.run_id, s.seq
FOR UPDATE OF s;

-- name: gone_runs
-- Those of these runs that there are no rows of.
SELECT u.id::text FROM unnest($1::uuid[]) AS u(id) LEFT JOIN {schema}.runs r ON r.id = u.id WHERE r.id IS NULL;

-- name: closed_among
-- Those of these that nothing is left to do about: what the transport still has of them is nobody's.
SELECT s.run_id::text AS run_id, s.seq
FROM unnest($1::uuid[], $2::integer[]) AS u(run_id, seq)
{join} {schema}.remote_steps s ON s.run_id = u.run_id AND s.seq = u.seq
WHERE s.due_at IS NULL;

-- name: alive_remote
-- The remote steps of a run that still come to something: they are under way, or their outcome is in the mailbox. One
-- that was sent anew under its old id, because the run had ended meanwhile, says when.
SELECT s.id::text AS id, CASE WHEN count(*) > 1 THEN max(s.dispatched_at) END AS anew_at
FROM {schema}.remote_steps s
WHERE s.run_id = $1::uuid
GROUP BY s.run_id, s.id
HAVING max(CASE WHEN s.state IN ('outbox', 'sent') THEN 1 ELSE 0 END) = 1
    OR (max(CASE WHEN s.state = 'settled' THEN 1 ELSE 0 END) = 1
        AND (SELECT true FROM {schema}.mailbox m WHERE m.run_id = s.run_id AND m.id = s.id));

-- name: remote_of_runs
-- All remote steps of some runs, for people.
SELECT {now} AS now_ms, s.run_id::text, s.seq, s.id::text, s.branch, s.position, s.claim, s.run_attempt, s.name, s.grp,
       s.carrier, NULL::text AS input, s.state, s.attempt, s.retries, s.backoff, s.dispatched_at, s.due_at, s.resent,
       s.queue_ms, s.settled_at
FROM {schema}.remote_steps s
WHERE s.run_id = ANY($1::uuid[])
ORDER BY s.run_id, s.seq;

-- name: remove_remote_steps
-- Those of runs that are taken away. What is still to be taken back from the transport stays until that is done.
DELETE FROM {schema}.remote_steps WHERE run_id IN (SELECT u.id FROM unnest($1::uuid[]) AS u(id)) AND due_at IS NULL;
