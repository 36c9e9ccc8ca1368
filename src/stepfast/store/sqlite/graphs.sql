-- Dag runs and their steps. A dag run's row counts the steps that are not settled yet, a step's row the dependencies it waits
-- for; both are changed in the transaction that settles a step, which nobody else's comes in between.

-- name: start_dag
-- A dag run: running from the start, in nobody's hands, and in line only when its steps are settled.
INSERT INTO {prefix}runs (id, input, key, place, workflow, version, queue, status, priority, visible_at, max_attempts,
                          timeout_ms, deadline_ms, deadline_at, expires_at, tags, concurrency_key, format, seed, created_at,
                          parent_id, parent_branch, parent_position, reply_to, origin_id, graph, pending, started_at,
                          released_at)
VALUES (?, ?, ?, ?, ?, ?, ?, 'running', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING;

-- name: start_node
-- A step of a dag run.
INSERT INTO {prefix}runs (id, input, key, place, workflow, version, queue, priority, visible_at, max_attempts,
                          timeout_ms, deadline_ms, deadline_at, expires_at, tags, concurrency_key, format, seed, created_at,
                          graph, dag_id, node, pending, status, waiting_for, released_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING;

-- name: dags
-- Where dag runs stand whose steps are settled.
SELECT json_group_array(json_array(
    d.id, d.pending, d.failing, COALESCE(d.released_at, 0), d.queue, d.workflow, d.priority, d.status = 'paused'))
FROM json_each(?) AS asked CROSS JOIN {prefix}runs AS d ON d.id = asked.value;

-- name: dependents
-- Where steps stand for which a dependency was settled: (dag, step) of each. They are blocked no more if they needed
-- only some of their dependencies, and had them.
SELECT json_group_array(json_array(
    s.dag_id, s.node, s.rowid, s.pending, s.met, s.status = 'waiting' AND s.waiting_for IS 'steps',
    s.queue, s.workflow, s.priority))
FROM json_each(?) AS asked
CROSS JOIN {prefix}runs AS s ON s.dag_id = json_extract(asked.value, '$[0]') AND s.node = json_extract(asked.value, '$[1]')
WHERE s.dag_id IS NOT NULL;

-- name: count_down
-- A dependency was settled, and the step waits on; or it began without it.
WITH s(row, pending, met) AS (VALUES (?, ?, ?))
UPDATE {prefix}runs AS r SET pending = s.pending, met = s.met FROM s WHERE r.rowid = s.row;

-- name: release
-- The dependency was settled that a step waited for: it is ready, or it will not be needed. One of a run that an operator
-- holds is held with it.
WITH s(row, pending, met, goes, n, now) AS (VALUES (?, ?, ?, ?, ?, ?))
UPDATE {prefix}runs AS r
SET pending = s.pending, met = s.met, waiting_for = NULL,
    status = CASE s.goes WHEN 'ready' THEN 'queued' WHEN 'hold' THEN 'paused' ELSE 'skipped' END,
    paused_at = CASE WHEN s.goes = 'hold' THEN s.now END,
    place = CASE WHEN s.goes = 'ready' THEN s.now * 1000 + s.n END,
    visible_at = CASE WHEN s.goes <> 'skip' THEN r.deadline_at END,
    released_at = CASE WHEN s.goes <> 'skip' THEN s.now END,
    completed_at = CASE WHEN s.goes = 'skip' THEN s.now END
FROM s WHERE r.rowid = s.row;

-- name: settle
-- Steps of a dag run are settled. After the last of them it stands in line, to be finished, unless an operator holds it.
-- Once it fails nobody does, and its deadline has nothing left to do.
WITH s(id, settled, fails, n, now) AS (VALUES (?, ?, ?, ?, ?))
UPDATE {prefix}runs AS r
SET pending = r.pending - s.settled, released_at = s.now,
    failing = r.failing OR s.fails,
    status = CASE WHEN s.fails AND r.status = 'paused' THEN 'running' ELSE r.status END,
    paused_at = CASE WHEN NOT s.fails THEN r.paused_at END,
    place = CASE WHEN r.pending = s.settled AND (s.fails OR r.status <> 'paused') THEN s.now * 1000 + s.n ELSE r.place END,
    visible_at = CASE WHEN NOT s.fails THEN r.visible_at END,
    deadline_at = CASE WHEN NOT s.fails THEN r.deadline_at END
FROM s WHERE r.id = s.id;

-- name: open_steps
-- The steps of dag runs that are not settled: whether they have begun, who holds them, and whether they have completed
-- something of their own that can be undone. Those that are undoing it already are left out.
SELECT json_group_array(json_array(
    r.dag_id, r.id, r.started_at IS NOT NULL, r.worker,
    r.started_at IS NOT NULL AND EXISTS (
        SELECT 1 FROM {prefix}steps s WHERE s.run_id = r.id AND s.undo IS NOT NULL AND s.status = 'completed'),
    r.queue, r.workflow, r.priority, r.losses, r.status, r.waiting_for))
FROM {prefix}runs AS r
WHERE r.dag_id IN (SELECT value FROM json_each(?)) AND r.dag_id IS NOT NULL AND NOT r.undoing
  AND r.status NOT IN ('completed', 'failed', 'cancelled', 'compensated', 'skipped');

-- name: lock_dependents
-- Steps for which a dependency was settled, if they are still blocked: who needed only some of its dependencies, and had
-- them, does not count the rest.
SELECT json_group_array(json_array({now}, {standing}))
FROM json_each(?) AS u
CROSS JOIN {prefix}runs AS r ON r.dag_id = json_extract(u.value, '$[0]') AND r.node = json_extract(u.value, '$[1]')
WHERE r.dag_id IS NOT NULL AND r.status = 'waiting' AND r.waiting_for = 'steps';

-- name: lock_open_steps
-- The steps of dag runs that are not settled.
SELECT json_group_array(json_array({now}, {standing})) FROM {prefix}runs AS r
WHERE r.dag_id IN (SELECT value FROM json_each(?)) AND r.dag_id IS NOT NULL AND NOT r.undoing
  AND r.status NOT IN ('completed', 'failed', 'cancelled', 'compensated', 'skipped');

-- name: end_steps
-- A dag run fails: what has not begun will not, and what waits is cancelled. A step that is undoing comes to its end. One
-- whose last attempt failed, and that nobody has claimed since, does not count the attempt that it was waiting for. One
-- that is marked goes on to its next record first.
UPDATE {prefix}runs AS r
SET attempt = attempt - EXISTS (
        SELECT 1 FROM {prefix}tries t
        WHERE t.run_id = r.id AND t.branch = '' AND t.position = -1 AND t.attempt = r.attempt - 1 AND t.claim = r.claim),
    status = CASE WHEN started_at IS NULL THEN 'skipped' ELSE 'cancelled' END,
    reason = CASE WHEN started_at IS NOT NULL THEN 'cancelled' END,
    place = NULL, visible_at = NULL, waiting_for = NULL, awaits = NULL, held_due = NULL, paused_at = NULL, asked = NULL,
    completed_at = ?
WHERE dag_id IN (SELECT value FROM json_each(?)) AND dag_id IS NOT NULL AND NOT undoing AND worker IS NULL
  AND asked IS NOT 'cancel' AND status NOT IN ('completed', 'failed', 'cancelled', 'compensated', 'skipped');

-- name: ask_steps
-- Steps that a worker holds are asked to come to an end.
UPDATE {prefix}runs SET asked = 'cancel', wakes = wakes + 1
WHERE dag_id IN (SELECT value FROM json_each(?)) AND dag_id IS NOT NULL AND NOT undoing AND worker IS NOT NULL;

-- name: cancel_dag
-- A dag run that nobody holds was cancelled; whoever finishes it knows what is to be undone. If its steps are settled
-- already it is in line, or goes there.
UPDATE {prefix}runs
SET failing = 1, reason = 'cancelled', visible_at = NULL, deadline_at = NULL, waiting_for = NULL, awaits = NULL,
    held_due = NULL, paused_at = NULL, status = CASE WHEN status = 'paused' THEN 'running' ELSE status END,
    place = CASE WHEN pending = 0 THEN COALESCE(place, {now} * 1000) END
WHERE id = ?;

-- name: let_dag_go
-- A dag run that an operator held goes on with its steps.
UPDATE {prefix}runs SET status = 'running', held_due = NULL, paused_at = NULL WHERE id = ?;

-- name: ended_steps
-- How the steps of an ended dag run came to their ends, and what a retry has to make anew.
SELECT json_group_array(json_array(
    id, node, status, reason, started_at IS NOT NULL, undoing, forget, queue, workflow, priority))
FROM {prefix}runs WHERE dag_id = ? AND dag_id IS NOT NULL;

-- name: reopen
-- A step of a dag run that is retried: ready, or waiting for others again. One that has begun has a new budget of
-- attempts, sees the outputs that it saw, and no worker trusts what it remembers of it. Its next attempt counts when it
-- is claimed: until then the run may fail again.
WITH s(id, ready, pending, met, n, now) AS (VALUES (?, ?, ?, ?, ?, ?))
UPDATE {prefix}runs AS r
SET status = CASE WHEN s.ready THEN 'queued' ELSE 'waiting' END, waiting_for = CASE WHEN NOT s.ready THEN 'steps' END,
    place = CASE WHEN s.ready THEN s.now * 1000 + s.n END, pending = s.pending, met = s.met,
    released_at = CASE WHEN s.ready AND r.started_at IS NOT NULL THEN r.released_at WHEN s.ready THEN s.now END,
    claim = r.claim + (r.started_at IS NOT NULL), first_attempt = r.attempt + 1,
    reason = NULL, error = NULL, output = NULL, forget = NULL, completed_at = NULL, losses = 0, expires_at = NULL,
    asked = NULL, held_due = NULL, awaits = NULL, deadline_at = s.now + r.deadline_ms,
    visible_at = CASE WHEN s.ready THEN s.now + r.deadline_ms END
FROM s WHERE r.id = s.id;

-- name: forget_all
-- Everything that a run has recorded.
DELETE FROM {prefix}steps WHERE run_id = ?;

-- name: retry_dag
-- A dag run goes on with the steps that were opened again; with none it is to be finished. A new deadline of the old
-- length.
UPDATE {prefix}runs
SET status = 'running', reason = NULL, error = NULL, output = NULL, forget = NULL, completed_at = NULL, waiting_for = NULL,
    failing = 0, pending = :pending, released_at = :now, place = CASE WHEN :pending = 0 THEN :now * 1000 END,
    losses = 0, claim = claim + 1, attempt = attempt + 1, first_attempt = attempt + 1,
    deadline_at = {now} + deadline_ms, visible_at = {now} + deadline_ms, expires_at = NULL, asked = NULL, held_due = NULL
WHERE id = :id;

-- name: step_named
-- The step of a dag run that a signal is for.
SELECT id, status FROM {prefix}runs WHERE dag_id = ? AND node = ? AND dag_id IS NOT NULL;

-- name: post_to_step
-- A signal to a dag run, left in the mailbox of the step of its name.
INSERT INTO {prefix}mailbox (run_id, id, kind, name, value, error, format, sent_at, delivered)
SELECT id, ?, ?, ?, ?, ?, ?, {now}, 0 FROM {prefix}runs
WHERE dag_id = ? AND node = ? AND dag_id IS NOT NULL
  AND status NOT IN ('completed', 'failed', 'cancelled', 'compensated', 'skipped')
ON CONFLICT DO NOTHING;

-- name: nodes
-- The steps of a dag run, in the order they were started in.
SELECT id, node, status, reason, waiting_for, output, error, COALESCE(output_format, format), attempt, visible_at,
       released_at, started_at, completed_at, worker
FROM {prefix}runs WHERE dag_id = ? AND dag_id IS NOT NULL ORDER BY rowid;

-- name: dag_inputs
-- The inputs of dag runs: [id, since] of each. One that is large is left out, here and below, and asked for by itself:
-- all of them together might be more than a text can be.
SELECT json_group_array(json_array(d.id, CASE WHEN {size}(d.input) <= {large} THEN d.input END, d.format))
FROM json_each(?) AS asked CROSS JOIN {prefix}runs AS d ON d.id = json_extract(asked.value, '$[0]');

-- name: dag_outputs
-- The outputs of their steps that completed at a time or after.
SELECT json_group_array(json_array(s.dag_id, s.node, CASE WHEN {size}(s.output) <= {large} THEN s.output END,
                                   COALESCE(s.output_format, s.format), s.completed_at, s.output IS NOT NULL))
FROM json_each(?) AS asked
CROSS JOIN {prefix}runs AS s INDEXED BY {prefix}runs_outputs
    ON s.dag_id = json_extract(asked.value, '$[0]') AND s.completed_at >= json_extract(asked.value, '$[1]')
WHERE s.dag_id IS NOT NULL AND s.status = 'completed';

-- name: dag_input
-- The input of one.
SELECT input FROM {prefix}runs WHERE id = ?;

-- name: dag_output
-- The output of one step.
SELECT output FROM {prefix}runs WHERE dag_id = ? AND node = ? AND dag_id IS NOT NULL;

-- name: start_graph
-- The copy of a graph that may not be stored yet, for a dag run that was started in this transaction.
INSERT INTO {prefix}run_values (run_id, key, value, format, updated_at)
SELECT id, '~graph', ?, 1, created_at FROM {prefix}runs WHERE id = ?
ON CONFLICT (run_id, key) DO NOTHING;

-- name: graph
-- The graph of a dag in a version; if that is not stored, the copy that a run of it brought along.
SELECT COALESCE((SELECT graph FROM {prefix}definitions WHERE name = ? AND version = ?),
                (SELECT value FROM {prefix}run_values WHERE run_id = ? AND key = '~graph'));
