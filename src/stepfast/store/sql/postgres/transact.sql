-- What ctx.transaction needs around the user's own statements.

-- name: recorded_step
-- The outcome at this address, if this very claim has recorded it: the reply to that commit was lost. What operators ask
-- of the run. And the number of the transaction, by which one that the function ended is told from the one it was given.
SELECT txid_current() AS txid, {server} AS server, (SELECT asked FROM {schema}.runs WHERE id = $1 AND claim = $4) AS asked,
       s.branch, s.position, s.seq, s.name, s.kind, s.status, s.output, s.error, s.arguments, s.attempts, s.started_at,
       s.completed_at, s.line, s.format, s.undo
FROM (SELECT 1) AS one
LEFT JOIN {schema}.steps s
    ON s.run_id = $1 AND s.branch = $2 AND s.position = $3 AND s.claim = $4 AND s.status <> 'waiting';

-- name: fence_one
-- The run, if it is still ours, and what operators ask of it: locked as late as possible, because the lock of this
-- row keeps the journal from it. And the transaction that the function has left us in.
SELECT txid_current() AS txid, r.now_ms, r.asked
FROM (SELECT 1) AS one
LEFT JOIN (SELECT {now} AS now_ms, asked FROM {schema}.runs WHERE id = $1 AND worker = $2 AND claim = $3
           FOR NO KEY UPDATE) AS r ON true;
