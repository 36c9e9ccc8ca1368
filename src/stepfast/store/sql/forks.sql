-- Forks and rewinds.

-- name: lean_steps(run_id)
-- All records of a run without their payloads, in their order; of callbacks, which have their ids in these, with them.
SELECT {wide}branch, position, seq, name, kind, status, undo, mail::text,
       CASE WHEN kind = 'callback' THEN output END{/wide}
FROM {steps} WHERE run_id = :run_id ORDER BY seq;

-- name: copy_steps(u(source uuid, fork uuid, branch text, position integer, mark text))
-- Records of a run as those of its fork. They took nothing out of its mailbox, and name in `undo` whose they are. Which
-- callbacks have an outcome is kept, for forks of the fork.
INSERT INTO {steps} (run_id, branch, position, seq, claim, name, kind, status, attempts, losses, output, error, arguments,
                     line, undo, mail, format, started_at, completed_at)
SELECT u.fork, s.branch, s.position, s.seq, 0, s.name, s.kind, s.status, s.attempts, s.losses, s.output, s.error,
       s.arguments, s.line, CASE WHEN s.undo LIKE '~%' THEN s.undo ELSE u.mark END,
       CASE WHEN s.kind = 'callback_result' THEN s.mail END, s.format, s.started_at, s.completed_at
FROM {rows u} {join} {steps} s ON s.run_id = u.source AND s.branch = u.branch AND s.position = u.position
WHERE true
{skip run_id, branch, position};

-- name: copy_values(u(source uuid, fork uuid, until bigint))
-- What a run had let others read by a time, and has not changed since. What the engine keeps for itself stays behind.
INSERT INTO {run_values} (run_id, key, value, format, updated_at)
SELECT u.fork, v.key, v.value, v.format, v.updated_at
FROM {rows u} {join} {run_values} v ON v.run_id = u.source
WHERE v.key NOT LIKE '~%' AND v.updated_at <= u.until
{skip run_id, key};

-- name: set_seed(u(id uuid, seed text, claim integer))
-- The secret that the random values of a run are made from. A run that has records was claimed before: the worker that
-- claims it reads them.
{update runs r, u} SET seed = u.seed, claim = {greatest}(r.claim, u.claim) {from u} WHERE r.id = u.id;

-- name: drop_callbacks(u(id uuid))
-- Callbacks that a run makes again.
{delete callbacks by u};

-- name: began_at(run_id, branch, position)
-- When a recorded step began.
SELECT started_at FROM {steps} WHERE run_id = :run_id AND branch = :branch AND position = :position;
