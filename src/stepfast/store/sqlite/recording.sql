-- The journal: what workers record of their runs, in the writer's transaction.

-- name: held_all
-- What a worker holds, as one row: for the fence of the usual flush.
SELECT json_group_array(json_array(id, claim, asked)) FROM {prefix}runs WHERE worker = ?;

-- name: held_run
-- The same for one run, for flushes that carry few.
SELECT claim, asked FROM {prefix}runs WHERE id = ? AND worker = ?;

-- name: fence
-- The runs of a flush that carries more than the usual freight ([run, claim] of each): those that are still this
-- worker's, under the claim that it knows. There is no server that could have been started anew.
SELECT json_group_array(json_array(NULL, {now}, {standing}))
FROM json_each(?2) AS u CROSS JOIN {prefix}runs AS r ON r.id = json_extract(u.value, '$[0]')
WHERE r.worker = ?1 AND r.claim = json_extract(u.value, '$[1]');

-- name: still_ours
-- Of runs that did not pass the fence ([run, claim] of each): which are ours all the same?
SELECT r.id FROM json_each(?2) AS u CROSS JOIN {prefix}runs AS r ON r.id = json_extract(u.value, '$[0]')
WHERE r.worker = ?1 AND r.claim = json_extract(u.value, '$[1]');

-- name: stored
-- How much is stored of runs, as one number each: an open record counts one, an outcome two.
SELECT u.value AS id, count(s.run_id) + count(CASE WHEN s.status <> 'waiting' THEN 1 END) AS number
FROM json_each(?) AS u LEFT JOIN {prefix}steps AS s ON s.run_id = u.value
GROUP BY u.value;

-- name: record_steps
-- The outcome of a step whose run passed the fence, or what was decided when it began (status 'waiting'). What is open is
-- replaced by the outcome, and by nothing else: what was decided once stays decided, and an outcome is final.
INSERT INTO {prefix}steps AS s (run_id, claim, branch, position, seq, name, kind, status, output, error, arguments, attempts,
                                line, format, undo, mail, started_at, completed_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (run_id, branch, position) DO UPDATE
SET claim = excluded.claim, seq = excluded.seq, name = excluded.name, kind = excluded.kind, status = excluded.status,
    output = excluded.output, error = excluded.error, arguments = excluded.arguments, attempts = excluded.attempts,
    line = excluded.line, format = excluded.format, undo = excluded.undo, mail = excluded.mail,
    started_at = excluded.started_at, completed_at = excluded.completed_at
WHERE s.status = 'waiting' AND excluded.status <> 'waiting';

-- name: foreign_steps
-- Runs in which one of these addresses ([run, claim, branch, position] of each) has an outcome recorded under another
-- claim: their history is not what we believe. An open record belongs to whoever holds the run.
SELECT DISTINCT s.run_id
FROM json_each(?) AS u CROSS JOIN {prefix}steps AS s
    ON s.run_id = json_extract(u.value, '$[0]') AND s.branch = json_extract(u.value, '$[2]')
    AND s.position = json_extract(u.value, '$[3]')
WHERE s.claim <> json_extract(u.value, '$[1]') AND s.status <> 'waiting';

-- name: own_steps
-- Which of these addresses ([run, claim, branch, position] of each) were recorded under their very claim: written before, by
-- a flush whose reply was lost.
SELECT s.run_id, s.branch, s.position
FROM json_each(?) AS u CROSS JOIN {prefix}steps AS s
    ON s.run_id = json_extract(u.value, '$[0]') AND s.branch = json_extract(u.value, '$[2]')
    AND s.position = json_extract(u.value, '$[3]')
WHERE s.claim = json_extract(u.value, '$[1]');

-- name: set_values
-- A value that the run lets others read; the latest wins.
INSERT INTO {prefix}run_values (run_id, key, value, format, updated_at)
VALUES (?, ?, ?, ?, ?)
ON CONFLICT (run_id, key) DO UPDATE
SET value = excluded.value, format = excluded.format, updated_at = excluded.updated_at;

-- name: record_tries
-- A failed try, before the next one begins.
INSERT INTO {prefix}tries (run_id, claim, branch, position, attempt, number, name, error, arguments, format,
                           started_at, completed_at, due_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING;

-- name: record_progress
-- What a long step is doing; the latest word wins, and a later one without details keeps those of an earlier.
INSERT INTO {prefix}progress (run_id, branch, position, name, detail, data, format, started_at, updated_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (run_id, branch, position) DO UPDATE
SET name = excluded.name, updated_at = excluded.updated_at,
    detail = COALESCE(excluded.detail, detail), data = COALESCE(excluded.data, data);

-- name: complete
-- A run that has its result: the usual end, kept apart from the other moves because it is the hot one.
WITH c(id, output, format, now) AS (VALUES (?, ?, ?, ?))
UPDATE {prefix}runs AS r
SET status = 'completed', output = c.output, output_format = c.format, reason = NULL, error = NULL, waiting_for = NULL,
    forget = NULL, worker = NULL, token = NULL, asked = NULL, awaits = NULL, held_due = NULL, losses = 0,
    completed_at = c.now
FROM c WHERE r.id = c.id;
