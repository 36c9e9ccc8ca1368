-- What ctx.transaction needs around the user's own statements.

-- name: recorded_step(run_id, branch, position, claim)
-- What operators ask of a run, and the outcome that a claim of it recorded at an address.
SELECT (SELECT asked FROM {runs} r WHERE r.id = s.run_id AND r.claim = s.claim) AS asked,
       branch, position, seq, name, kind, status, output, error, arguments, attempts, started_at, completed_at, line, format,
       undo
FROM {steps} s WHERE run_id = :run_id AND branch = :branch AND position = :position AND claim = :claim
  AND status <> 'waiting';

-- name: fence_one(run_id, worker, claim)
-- The run, if it is still ours, and what operators ask of it: locked as late as possible.
SELECT {now} AS now_ms, asked FROM {runs} r WHERE id = :run_id AND worker = :worker AND claim = :claim
{lock r};
