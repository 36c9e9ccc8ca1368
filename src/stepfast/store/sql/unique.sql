-- Starts by name: a run that is the only live one of its name (flows/unique.py). The index `runs_unique_name` decides.

-- name: names_held(u(workflow text, name text, id uuid))
-- Which live runs have these names, ours or those of others.
SELECT u.id::text AS ours, r.id::text AS id, r.graph IS NOT NULL AS dag
FROM {rows u} {join} {runs} r ON r.workflow = u.workflow AND r.unique_name = u.name
WHERE r.unique_name IS NOT NULL AND r.completed_at IS NULL;

-- name: names_taken(u(id uuid))
-- The names of runs that have ended, and the live runs that have them by now.
SELECT e.id::text AS ended, e.workflow, e.name, h.id::text AS holder
FROM (SELECT r.id, r.workflow, COALESCE(r.unique_name, r.awaits_name) AS name
      FROM {rows u} {join} {runs} r ON r.id = u.id WHERE r.completed_at IS NOT NULL) AS e
LEFT JOIN {runs} h ON h.workflow = e.workflow AND h.unique_name = e.name AND h.unique_name IS NOT NULL
                  AND h.completed_at IS NULL
WHERE e.name IS NOT NULL
ORDER BY e.id;

-- name: with_name(workflow, name)
-- The live run of a workflow (`workflow`) that has a name (`name`).
SELECT id::text AS id, graph IS NOT NULL AS dag FROM {runs}
WHERE workflow = :workflow AND unique_name = :name AND unique_name IS NOT NULL AND completed_at IS NULL;

-- name: put_signals(u(run_id uuid, id uuid, name text, value text, format smallint, trace text, delivered boolean))
-- Signals that runs were started with, by this transaction. They come before all that others send, as those do that were
-- sent to the run which had the name before.
INSERT INTO {mailbox} (run_id, id, name, value, format, trace, delivered, kind, sent_at)
SELECT u.run_id, u.id, u.name, u.value, u.format, u.trace, u.delivered, 'signal', 0 FROM {rows u}
WHERE true
{skip run_id, id};

-- name: count_first(u(id uuid))
-- These signals are counted: a run that has counted none does not look into its mailbox.
{update runs r, u} SET wakes = r.wakes + 1 {from u} WHERE r.id = u.id;

-- name: leave_signal(run_id uuid, id uuid, name, value, format smallint, trace, start, most bigint)
-- A signal for a run that is not locked: only inserted, for a sweep to deliver, unless there are `most` already.
INSERT INTO {mailbox} (run_id, id, kind, name, value, format, sent_at, delivered, trace, start)
SELECT :run_id, :id, 'signal', :name, :value, :format, {now}, false, :trace, :start
WHERE (SELECT count(*) FROM (SELECT 1 FROM {mailbox} b WHERE b.run_id = :run_id AND b.kind = 'signal' LIMIT :most) AS x)
      < :most
{skip run_id, id}
RETURNING 1;

-- name: hand_on(u(id uuid))
-- These runs hand on their names when they have ended.
{update runs r, u} SET hands_on = true {from u} WHERE r.id = u.id;

-- name: leave_order(u(run_id uuid, id uuid, kind text))
-- For runs that are not locked: another waits for their name, and they are cancelled for it or not.
INSERT INTO {mailbox} (run_id, id, kind, start, name, format, sent_at, delivered)
SELECT u.run_id, u.id, u.kind, '', '', 1, {now}, false FROM {rows u}
WHERE true
{skip run_id, id};

-- name: waiting_for_name(workflow, name, most)
-- The runs that wait for a name, the oldest first.
SELECT id::text AS id FROM {runs} r
WHERE r.workflow = :workflow AND r.awaits_name = :name AND r.awaits_name IS NOT NULL AND r.completed_at IS NULL
ORDER BY r.id LIMIT :most;

-- name: handing_on(most)
-- Runs that have ended, and have something to hand on.
SELECT h.id::text AS id FROM {runs} h WHERE h.hands_on AND h.completed_at IS NOT NULL ORDER BY h.id LIMIT :most;

-- name: name_of(run_id)
-- The name that a run had.
SELECT workflow, unique_name FROM {runs} WHERE id = :run_id;

-- name: handed_on(run_id, most)
-- Signals of starts that a run has not taken, or the steps of a dag run, the oldest first.
SELECT m.run_id::text AS run_id, m.id::text AS id, m.name, m.start
FROM (SELECT r.id FROM {runs} r WHERE r.id = :run_id
      UNION ALL
      SELECT s.id FROM {runs} s WHERE s.dag_id = :run_id AND s.dag_id IS NOT NULL) AS b
{join} {mailbox} m ON m.run_id = b.id
WHERE m.start IS NOT NULL AND m.kind = 'signal'
ORDER BY m.sent_at, m.id LIMIT :most;

-- name: own_signal(u(run_id uuid, id uuid))
-- Signals for which runs were made by this transaction: they are not handed on again.
{update mailbox m, u} SET delivered = true, start = NULL {from u} WHERE m.run_id = u.run_id AND m.id = u.id;

-- name: has_handed_on(u(id uuid))
-- They have nothing left to hand on.
{update runs r, u} SET hands_on = false {from u} WHERE r.id = u.id;

-- name: take_name(u(id uuid))
-- The name that these runs have waited for is theirs.
{update runs r, u} SET unique_name = r.awaits_name, awaits_name = NULL {from u}
WHERE r.id = u.id AND r.awaits_name IS NOT NULL;

-- name: forget_start(run_id)
-- What a dag run has kept while it waited for its name.
DELETE FROM {run_values} WHERE run_id = :run_id AND key = '~start';

-- name: begin_dag(u(id uuid, graph text, pending integer, now bigint))
-- Dag runs that have waited for a name begin.
{update runs r, u}
SET status = 'running', waiting_for = NULL, graph = u.graph, pending = u.pending, started_at = u.now, ready_at = u.now,
    visible_at = r.deadline_at
{from u}
WHERE r.id = u.id;
