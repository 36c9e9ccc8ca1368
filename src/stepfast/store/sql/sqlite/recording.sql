-- The journal: what workers record of their runs, in the writer's transaction.

-- name: held_all
-- The time, and what a worker holds, as one row: for the fence of the usual flush. Of hundreds of runs, two lists are
-- made and read in half the time of one in JSON.
SELECT {now}, group_concat(id), group_concat(claim),
       json_group_array(json_array(id, asked)) FILTER (WHERE asked IS NOT NULL)
FROM {prefix}runs WHERE worker = ?;

-- name: held_some
-- The same of these runs (a JSON list) alone, for flushes that carry few.
SELECT {now}, group_concat(r.id), group_concat(r.claim),
       json_group_array(json_array(r.id, r.asked)) FILTER (WHERE r.asked IS NOT NULL)
FROM json_each(?) AS f CROSS JOIN {prefix}runs r ON r.id = f.value
WHERE r.worker = ?;

-- name: held_run
-- Under which claim a worker holds a run.
SELECT claim, asked FROM {prefix}runs WHERE id = ? AND worker = ?;

-- name: record_usual_steps
-- What most flushes bring, with constants in place of most columns, which halves its cost: completed steps of the main
-- branch, tried once. A position that was recorded before is a violation of the key; then record_steps writes them.
INSERT INTO {prefix}steps (run_id, claim, branch, position, seq, name, kind, status, output, arguments, attempts, line,
                           format, started_at, completed_at)
VALUES (?, ?, '', ?, ?, ?, 'step', 'completed', ?, ?, 1, ?, ?, ?, ?);

-- name: record_steps
-- The outcome of a step whose run passed the fence, or what was decided when it began (status 'waiting'). What is open is
-- replaced by the outcome, and by nothing else: what was decided once stays decided, and an outcome is final.
INSERT INTO {prefix}steps AS s (run_id, claim, branch, position, seq, name, kind, status, output, error, arguments, attempts,
                                line, format, undo, losses, mail, started_at, completed_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (run_id, branch, position) DO UPDATE
SET claim = excluded.claim, seq = excluded.seq, name = excluded.name, kind = excluded.kind, status = excluded.status,
    output = excluded.output, error = excluded.error, arguments = excluded.arguments, attempts = excluded.attempts,
    line = excluded.line, format = excluded.format, undo = excluded.undo, losses = excluded.losses,
    mail = excluded.mail,
    started_at = excluded.started_at, completed_at = excluded.completed_at
WHERE s.status = 'waiting' AND excluded.status <> 'waiting';

-- name: complete
-- A run that has its result: the usual end, kept apart from the other moves because it is the hot one.
WITH c(id, output, format, now) AS (VALUES (?, ?, ?, ?))
UPDATE {prefix}runs AS r
SET status = 'completed', output = c.output, output_format = c.format, reason = NULL, error = NULL, waiting_for = NULL,
    forget = NULL, worker = NULL, token = NULL, asked = NULL, awaits = NULL, held_due = NULL, losses = 0,
    completed_at = c.now
FROM c WHERE r.id = c.id;
