-- The journal: what workers record of their runs.

-- name: record_steps(s(run_id uuid, claim integer, branch text, position integer, seq integer, name text, kind text,
--     status text, output text, error text, arguments text, attempts integer, line text, format smallint, undo text,
--     losses integer, mail uuid, started_at bigint, completed_at bigint))
-- Outcomes of steps whose runs passed the fence in this transaction, where there is no record yet.
INSERT INTO {steps} (run_id, claim, branch, position, seq, name, kind, status, output, error, arguments, attempts, line,
                     format, undo, losses, mail, started_at, completed_at)
SELECT s.* FROM {rows s}
WHERE true
{skip run_id, branch, position};

-- name: replace_steps(s(run_id uuid, claim integer, branch text, position integer, seq integer, name text, kind text,
--     status text, output text, error text, arguments text, attempts integer, line text, format smallint, undo text,
--     losses integer, mail uuid, started_at bigint, completed_at bigint))
-- The same where there is one: what is open is replaced by the outcome, and by nothing else. What was decided once stays
-- decided, and an outcome is final.
{update steps t, s}
SET claim = s.claim, seq = s.seq, name = s.name, kind = s.kind, status = s.status, output = s.output, error = s.error,
    arguments = s.arguments, attempts = s.attempts, line = s.line, format = s.format, undo = s.undo, losses = s.losses,
    mail = s.mail, started_at = s.started_at, completed_at = s.completed_at
{from s}
WHERE t.run_id = s.run_id AND t.branch = s.branch AND t.position = s.position
  AND t.status = 'waiting' AND s.status <> 'waiting';
