-- What ctx.transaction needs around the user's own statements.

-- name: recorded_step
-- What operators ask of a run, and the outcome that a claim of it recorded at an address.
SELECT (SELECT asked FROM {prefix}runs r WHERE r.id = s.run_id AND r.claim = s.claim),
       branch, position, seq, name, kind, status, output, error, arguments, attempts, started_at, completed_at, line, format,
       undo
FROM {prefix}steps s WHERE run_id = ? AND branch = ? AND position = ? AND claim = ? AND status <> 'waiting';
