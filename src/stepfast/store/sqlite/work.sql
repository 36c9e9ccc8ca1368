-- What workers do all day: claim, record, beat, sweep. All but the questions run in the writer's transaction, where
-- nobody comes in between two statements.

-- name: ready
-- The first runs of one lane, oldest first. Whether a run expired unclaimed is asked here too, because the sweep that
-- ends it may be late. The marks of the protocol are not needed: a row that left the line leaves nothing to walk over.
SELECT json_group_array(json_array(place, row, version, size)) FROM (
    SELECT place, rowid AS row, version, {size}(input) AS size FROM {prefix}runs
    WHERE queue = ? AND workflow = ? AND priority = ? AND place IS NOT NULL AND losses < 2
      AND (expires_at IS NULL OR started_at IS NOT NULL OR expires_at > {now})
      AND (deadline_at IS NULL OR deadline_at > {now})
    ORDER BY place LIMIT ?
);

-- name: suspects
-- Runs that workers have died with, in the order in which they are taken: those with the fewest losses first, so that the
-- likely innocent are not kept waiting nor taken along by a likely culprit.
SELECT losses, place, rowid, version, workflow, queue, {size}(input) FROM {prefix}runs
WHERE place IS NOT NULL AND losses >= 2 AND (deadline_at IS NULL OR deadline_at > {now})
ORDER BY losses, priority DESC, place;

-- name: count_suspects
-- How many of them stand in line, by queue and workflow.
SELECT queue, workflow, count(*) FROM {prefix}runs WHERE place IS NOT NULL AND losses >= 2
GROUP BY queue, workflow ORDER BY queue, workflow;

-- name: take
-- Hand runs to a worker: a new claim number each, and out of the line. Here and everywhere a run that is being undone has
-- the one status 'compensating', whether it stands in line, is executed or waits.
WITH picked(row, worker, token, version) AS (VALUES (?, ?, ?, ?))
UPDATE {prefix}runs AS r
SET status = CASE WHEN r.undoing THEN 'compensating' ELSE 'running' END, worker = p.worker, token = p.token, version = p.version, claim = r.claim + 1, place = NULL,
    visible_at = NULL, waiting_for = NULL, attempt = max(r.attempt, r.first_attempt), started_at = COALESCE(r.started_at, {now})
FROM picked AS p WHERE r.rowid = p.row;

-- name: taken
-- What the call of a token took: this one, or an earlier one whose reply was lost on the way.
SELECT json_group_array(json_array(
    rowid, id, workflow, queue, priority, claim, attempt, first_attempt, losses, wakes, format, input, max_attempts,
    timeout_ms, deadline_at - {now}, started_at, 0, NULL, asked, ends, undoing, parent_id, {now}, dag_id, node, graph,
    released_at, failing, reason, seed))
FROM {prefix}runs WHERE worker = ? AND token = ?;

-- name: history
-- The first records of a claimed run; the reader stops when it has enough.
SELECT branch, position, seq, name, kind, status, output, error, arguments, attempts, started_at, completed_at, line, format,
       undo
FROM {prefix}steps WHERE run_id = ? ORDER BY branch, position;

-- name: history_tries
-- Failed tries of the present attempt, so that a step which waited for its retry knows how many it has had, and
-- when the next is due if something else woke the run before.
SELECT branch, position, count(*), COALESCE(max(due_at), 0) FROM {prefix}tries
WHERE run_id = ? AND attempt = ? AND position >= 0 GROUP BY branch, position;

-- name: held
-- What names a worker: the fence of a flush, and what a heartbeat brings back. Answered from the index alone.
SELECT id, claim, asked FROM {prefix}runs WHERE worker = ?;

-- name: held_all
-- The same as one row, for the fence of a flush.
SELECT json_group_array(json_array(id, claim, asked)) FROM {prefix}runs WHERE worker = ?;

-- name: held_run
-- The same for one run, for flushes that carry few.
SELECT claim, asked FROM {prefix}runs WHERE id = ? AND worker = ?;

-- name: record_step
-- The outcome of a step whose run passed the fence, or what was decided when it began (status 'waiting'). What is open is
-- replaced by the outcome, and by nothing else. Any other place already taken is looked at afterwards.
INSERT INTO {prefix}steps AS s (run_id, claim, branch, position, seq, name, kind, status, output, error, arguments, attempts,
                                line, format, undo, started_at, completed_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (run_id, branch, position) DO UPDATE
SET claim = excluded.claim, seq = excluded.seq, name = excluded.name, kind = excluded.kind, status = excluded.status,
    output = excluded.output, error = excluded.error, arguments = excluded.arguments, attempts = excluded.attempts,
    line = excluded.line, format = excluded.format, undo = excluded.undo, started_at = excluded.started_at,
    completed_at = excluded.completed_at
WHERE s.status = 'waiting' AND excluded.status <> 'waiting';

-- name: foreign_step
-- Whether a place was taken under another claim: then the history is not what its owner believes. An open record belongs
-- to whoever holds the run.
SELECT 1 FROM {prefix}steps WHERE run_id = ? AND branch = ? AND position = ? AND claim <> ? AND status <> 'waiting';

-- name: made_before
-- Whether this very record was made before: (run, claim, branch, position).
SELECT 1 FROM {prefix}steps WHERE run_id = ? AND claim = ? AND branch = ? AND position = ?;

-- name: step_at
-- What operators ask of a run, and the outcome that a claim of it recorded at a place.
SELECT (SELECT asked FROM {prefix}runs r WHERE r.id = s.run_id AND r.claim = s.claim),
       branch, position, seq, name, kind, status, output, error, arguments, attempts, started_at, completed_at, line, format,
       undo
FROM {prefix}steps s WHERE run_id = ? AND branch = ? AND position = ? AND claim = ? AND status <> 'waiting';

-- name: set_value
-- A value that the run lets others read; the latest wins.
INSERT INTO {prefix}run_values (run_id, key, value, format, updated_at)
VALUES (?, ?, ?, ?, ?)
ON CONFLICT (run_id, key) DO UPDATE
SET value = excluded.value, format = excluded.format, updated_at = excluded.updated_at;

-- name: record_try
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

-- name: beat
-- One heartbeat for all a worker holds. No row: it was declared dead.
UPDATE {prefix}workers SET beat_at = {now}, expires_at = {now} + lease_ms, running = ?
WHERE id = ? AND state <> 'dead' RETURNING id;

-- name: register
-- A worker comes to life.
INSERT INTO {prefix}workers (id, host, pid, queues, workflows, concurrency, lease_ms, modules, process,
    state, started_at, beat_at, expires_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 'live', {now}, {now}, {now} + ?)
ON CONFLICT (id) DO NOTHING;

-- name: worker_state
-- A worker is stopping.
UPDATE {prefix}workers SET state = ? WHERE id = ? AND state <> 'dead';

-- name: unregister
-- A worker has left in good order.
WITH worker(id) AS (VALUES (?))
DELETE FROM {prefix}workers WHERE id IN (SELECT id FROM worker);

-- name: workers
-- Every worker, for people.
SELECT id, host, pid, queues, workflows, concurrency, lease_ms,
       CASE WHEN expires_at < {now} THEN 'dead' ELSE state END AS state, running, started_at, beat_at,
       {now} - beat_at AS age_ms, modules
FROM {prefix}workers ORDER BY started_at, id;

-- name: duties
-- The one question of an idle worker, but for the lanes and suspects.
SELECT {now},
       (SELECT min(visible_at) FROM {prefix}runs WHERE visible_at IS NOT NULL),
       EXISTS (SELECT 1 FROM {prefix}mailbox INDEXED BY {prefix}mailbox_undelivered WHERE delivered = 0);

-- name: next_lane
-- The lane after a given one: asked again and again, it skips through the index from lane to lane.
SELECT queue, workflow, priority FROM {prefix}runs
WHERE place IS NOT NULL AND losses < 2 AND (queue, workflow, priority) > (?, ?, ?)
ORDER BY queue, workflow, priority LIMIT 1;

-- name: beats
-- The last beats of all other workers that live, for whoever watches over them.
SELECT id, beat_at, lease_ms, process FROM {prefix}workers WHERE state <> 'dead' AND id <> ?;

-- name: expire
-- The leases of workers whose processes are known to be gone are over.
UPDATE {prefix}workers SET expires_at = 0 WHERE id IN (SELECT value FROM json_each(?)) AND state <> 'dead';

-- name: bury
-- Workers silent beyond their lease are dead, but only those of a list, if there is one: the machine's clock may have
-- stepped. From here on their heartbeats are refused.
UPDATE {prefix}workers SET state = 'dead'
WHERE expires_at < {now} AND state <> 'dead' AND id <> ?1
  AND (?2 IS NULL OR id IN (SELECT value FROM json_each(?2))) RETURNING id;

-- name: forget_dead
-- Dead workers with nothing left to reap.
DELETE FROM {prefix}workers WHERE state = 'dead'
AND NOT EXISTS (SELECT 1 FROM {prefix}runs r WHERE r.worker = {prefix}workers.id);
