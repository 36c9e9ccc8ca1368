-- What workers do all day: claim, record, beat, sweep. All but the questions run in the writer's transaction, where
-- nobody comes in between two statements.

-- name: ready
-- The first runs of one lane, oldest first. Whether a run expired unclaimed is asked here too, because the sweep that
-- ends it may be late. The marks of the protocol are not needed: a row that left the line leaves nothing to walk over.
SELECT json_group_array(json_array(place, row, version)) FROM (
    SELECT place, rowid AS row, version FROM {prefix}runs
    WHERE queue = ? AND workflow = ? AND priority = ? AND place IS NOT NULL AND losses < 2
      AND (expires_at IS NULL OR started_at IS NOT NULL OR expires_at > {now})
      AND (deadline_at IS NULL OR deadline_at > {now})
    ORDER BY place LIMIT ?
);

-- name: suspects
-- Runs that workers have died with, in the order in which they are taken: alone, so that they take none along.
SELECT place, rowid, version, workflow, queue FROM {prefix}runs
WHERE place IS NOT NULL AND losses >= 2 AND (deadline_at IS NULL OR deadline_at > {now})
ORDER BY priority DESC, place;

-- name: take
-- Hand runs to a worker: a new claim number each, and out of the line.
WITH picked(row, worker, token, version) AS (VALUES (?, ?, ?, ?))
UPDATE {prefix}runs AS r
SET status = 'running', worker = p.worker, token = p.token, version = p.version, claim = r.claim + 1, place = NULL,
    visible_at = NULL, waiting_for = NULL, attempt = max(r.attempt, 1), started_at = COALESCE(r.started_at, {now})
FROM picked AS p WHERE r.rowid = p.row;

-- name: taken
-- What the call of a token took: this one, or an earlier one whose reply was lost on the way.
SELECT json_group_array(json_array(
    rowid, id, workflow, queue, priority, claim, attempt, first_attempt, losses, wakes, format, input, max_attempts,
    timeout_ms, deadline_at - {now}, started_at, 0, NULL, asked))
FROM {prefix}runs WHERE worker = ? AND token = ?;

-- name: history
-- The first records of a claimed run; the reader stops when it has enough.
SELECT branch, position, seq, name, kind, status, output, error, arguments, attempts, started_at, completed_at, line, format
FROM {prefix}steps WHERE run_id = ? ORDER BY branch, position;

-- name: history_tries
-- Failed tries of the present attempt, so that a step which waited for its retry knows how many it has had.
SELECT branch, position, count(*) FROM {prefix}tries
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
-- The outcome of a step whose run passed the fence. A place already taken is looked at afterwards.
INSERT INTO {prefix}steps (run_id, claim, branch, position, seq, name, kind, status, output, error, arguments, attempts,
                           line, format, started_at, completed_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING;

-- name: foreign_step
-- Whether a place was taken under another claim: then the history is not what its owner believes.
SELECT 1 FROM {prefix}steps WHERE run_id = ? AND branch = ? AND position = ? AND claim <> ?;

-- name: record_try
-- A failed try, before the next one begins.
INSERT INTO {prefix}tries (run_id, claim, branch, position, attempt, number, name, error, arguments, format,
                           started_at, completed_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
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
    forget = NULL, worker = NULL, token = NULL, asked = NULL, losses = 0, completed_at = c.now
FROM c WHERE r.id = c.id;

-- name: move
-- A run leaves this worker in any other way, having passed the fence in this transaction. One that says it waits, but was
-- woken since it looked, goes back in line at once.
WITH m(id, status, reason, output, error, delay, waiting_for, wakes, next_attempt, recorded, version, forget, ended,
       format, n, now)
AS (VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?))
UPDATE {prefix}runs AS r
SET status = CASE WHEN m.status = 'waiting' AND r.wakes <> m.wakes THEN 'queued' ELSE m.status END,
    place = CASE WHEN m.ended THEN NULL
                 WHEN m.status = 'waiting' AND r.wakes <> m.wakes THEN m.now * 1000 + m.n
                 WHEN m.status = 'queued' AND COALESCE(m.delay, 0) <= 0 THEN m.now * 1000 + m.n END,
    visible_at = CASE WHEN m.ended THEN NULL
                      WHEN m.status = 'waiting' AND r.wakes <> m.wakes THEN r.deadline_at
                      WHEN m.status = 'queued' AND COALESCE(m.delay, 0) <= 0 THEN r.deadline_at
                      ELSE min(COALESCE(m.now + m.delay, r.deadline_at), COALESCE(r.deadline_at, m.now + m.delay)) END,
    worker = NULL, token = NULL,
    asked = CASE WHEN m.ended THEN NULL ELSE r.asked END,
    reason = m.reason, output = m.output, output_format = m.format, error = COALESCE(m.error, r.error),
    waiting_for = m.waiting_for, forget = m.forget,
    attempt = r.attempt + m.next_attempt,
    losses = CASE WHEN m.recorded THEN 0 ELSE r.losses END,
    version = COALESCE(m.version, r.version),
    completed_at = CASE WHEN m.ended THEN m.now END
FROM m WHERE r.id = m.id;

-- name: beat
-- One heartbeat for all a worker holds. No row: it was declared dead.
UPDATE {prefix}workers SET beat_at = {now}, expires_at = {now} + lease_ms, running = ?
WHERE id = ? AND state <> 'dead' RETURNING id;

-- name: give_back
-- A run goes back in line at once: a claim nobody knows of, or a worker that stops. No attempt, no loss; and if this claim
-- made a record, the losses before it no longer count.
UPDATE {prefix}runs AS r
SET status = 'queued', worker = NULL, token = NULL, place = {now} * 1000, visible_at = deadline_at,
    losses = CASE WHEN EXISTS (SELECT 1 FROM {prefix}steps s WHERE s.run_id = r.id AND s.claim = r.claim)
                  THEN 0 ELSE losses END
WHERE id = ? AND claim = ? AND worker = ?;

-- name: register
-- A worker comes to life.
INSERT INTO {prefix}workers (id, host, pid, queues, workflows, concurrency, lease_ms, state, started_at, beat_at, expires_at)
VALUES (?, ?, ?, ?, ?, ?, ?, 'live', {now}, {now}, {now} + ?)
ON CONFLICT (id) DO NOTHING;

-- name: worker_state
-- A worker is stopping.
UPDATE {prefix}workers SET state = ? WHERE id = ? AND state <> 'dead';

-- name: give_all_back
-- What still names a worker that leaves: a claim that was under way when it stopped.
UPDATE {prefix}runs SET status = 'queued', worker = NULL, token = NULL, place = {now} * 1000, visible_at = deadline_at
WHERE worker = ?;

-- name: unregister
-- A worker has left in good order.
DELETE FROM {prefix}workers WHERE id = ?;

-- name: workers
-- Every worker, for people.
SELECT id, host, pid, queues, workflows, concurrency, lease_ms,
       CASE WHEN expires_at < {now} THEN 'dead' ELSE state END AS state, running, started_at, beat_at,
       {now} - beat_at AS age_ms
FROM {prefix}workers ORDER BY started_at, id;

-- name: duties
-- The one question of an idle worker, but for the lanes. The workers that runs name are found by skipping from one to the
-- next in the index, so that their number counts and not the number of runs.
WITH RECURSIVE named(worker) AS (
    SELECT min(worker) FROM {prefix}runs WHERE worker IS NOT NULL
    UNION ALL
    SELECT (SELECT min(r.worker) FROM {prefix}runs r WHERE r.worker IS NOT NULL AND r.worker > named.worker)
    FROM named WHERE named.worker IS NOT NULL
)
SELECT {now},
       (SELECT min(visible_at) FROM {prefix}runs WHERE visible_at IS NOT NULL),
       EXISTS (SELECT 1 FROM {prefix}workers WHERE expires_at < {now} AND id <> ?)
       OR EXISTS (SELECT 1 FROM named WHERE worker IS NOT NULL AND NOT EXISTS (
              SELECT 1 FROM {prefix}workers w WHERE w.id = named.worker AND w.state <> 'dead'));

-- name: next_lane
-- The lane after a given one: asked again and again, it skips through the index from lane to lane.
SELECT queue, workflow, priority FROM {prefix}runs
WHERE place IS NOT NULL AND losses < 2 AND (queue, workflow, priority) > (?, ?, ?)
ORDER BY queue, workflow, priority LIMIT 1;

-- name: promote
-- Sleepers that are due stand in line; what nobody picked up in time, or is past its deadline, ends.
WITH due AS MATERIALIZED (
    SELECT rowid AS row, row_number() OVER (ORDER BY visible_at, id) AS n,
           deadline_at IS NOT NULL AND deadline_at <= {now} AS late,
           expires_at IS NOT NULL AND started_at IS NULL AND expires_at <= {now} AS expired
    FROM (SELECT rowid, * FROM {prefix}runs WHERE visible_at <= {now} ORDER BY visible_at LIMIT ?)
)
UPDATE {prefix}runs AS r
SET status = CASE WHEN due.late OR due.expired THEN 'failed' ELSE 'queued' END,
    reason = CASE WHEN due.late THEN 'deadline' WHEN due.expired THEN 'expired' END,
    error = CASE WHEN due.late THEN ? WHEN due.expired THEN ? ELSE r.error END,
    completed_at = CASE WHEN due.late OR due.expired THEN {now} END,
    place = CASE WHEN NOT (due.late OR due.expired) THEN {now} * 1000 + due.n END,
    visible_at = CASE WHEN due.late OR due.expired THEN NULL
                      WHEN r.started_at IS NOT NULL THEN r.deadline_at
                      ELSE min(COALESCE(r.expires_at, r.deadline_at), COALESCE(r.deadline_at, r.expires_at)) END,
    waiting_for = NULL
FROM due WHERE r.rowid = due.row
RETURNING id, queue, workflow, priority, status;

-- name: bury
-- Workers silent beyond their lease are dead; from here on their heartbeats are refused.
UPDATE {prefix}workers SET state = 'dead' WHERE expires_at < {now} AND state <> 'dead' AND id <> ? RETURNING id;

-- name: reap
-- A bounded batch of runs that name no living worker goes back in line, or ends as a dead letter. Losses count since the last
-- new record, so that a month-long run survives daily deploys.
WITH lost AS MATERIALIZED (
    SELECT r.rowid AS row, row_number() OVER (ORDER BY r.id) AS n,
           CASE WHEN EXISTS (SELECT 1 FROM {prefix}steps s WHERE s.run_id = r.id AND s.claim = r.claim)
                THEN 1 ELSE r.losses + 1 END AS losses
    FROM (SELECT rowid, id, claim, losses FROM {prefix}runs q INDEXED BY {prefix}runs_worker
          WHERE worker IS NOT NULL
            AND NOT EXISTS (SELECT 1 FROM {prefix}workers w WHERE w.id = q.worker AND w.state <> 'dead')
          LIMIT :limit) AS r
)
UPDATE {prefix}runs AS r
SET worker = NULL, token = NULL, losses = lost.losses,
    status = CASE WHEN lost.losses >= :max_losses THEN 'failed' ELSE 'queued' END,
    reason = CASE WHEN lost.losses >= :max_losses THEN 'lost workers' END,
    error = CASE WHEN lost.losses >= :max_losses THEN :error ELSE r.error END,
    completed_at = CASE WHEN lost.losses >= :max_losses THEN {now} END,
    place = CASE WHEN lost.losses < :max_losses THEN {now} * 1000 + lost.n END,
    visible_at = CASE WHEN lost.losses < :max_losses THEN r.deadline_at END
FROM lost WHERE r.rowid = lost.row
RETURNING id, queue, workflow, priority, status;

-- name: forget_dead
-- Dead workers with nothing left to reap.
DELETE FROM {prefix}workers WHERE state = 'dead'
AND NOT EXISTS (SELECT 1 FROM {prefix}runs r WHERE r.worker = {prefix}workers.id);
