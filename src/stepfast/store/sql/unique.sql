-- Starts by name: a run that is the only live one of its name (flows/unique.py). The index `runs_unique_name` decides.

-- name: names_held(u(workflow text, name text, id uuid))
-- Which live runs have these names, ours or those of others.
SELECT u.id::text AS ours, r.id::text AS id, r.graph IS NOT NULL AS dag
FROM {rows u} {join} {runs} r ON r.workflow = u.workflow AND r.unique_name = u.name
WHERE r.unique_name IS NOT NULL AND r.completed_at IS NULL;

-- name: names_taken(u(id uuid))
-- The names of runs that have ended, and the live runs that have them by now.
SELECT r.id::text AS ended, r.workflow, r.unique_name, h.id::text AS holder
FROM {rows u} {join} {runs} r ON r.id = u.id
LEFT JOIN {runs} h ON h.workflow = r.workflow AND h.unique_name = r.unique_name AND h.unique_name IS NOT NULL
                  AND h.completed_at IS NULL
WHERE r.unique_name IS NOT NULL AND r.completed_at IS NOT NULL
ORDER BY r.id;

-- name: with_name(workflow, name)
-- The live run of a workflow (`workflow`) that has a name (`name`).
SELECT id::text AS id FROM {runs}
WHERE workflow = :workflow AND unique_name = :name AND unique_name IS NOT NULL AND completed_at IS NULL;

-- name: put_signals(u(run_id uuid, id uuid, name text, value text, format smallint, trace text, delivered boolean))
-- Signals that runs were started with, by this transaction.
INSERT INTO {mailbox} (run_id, id, name, value, format, trace, delivered, kind, sent_at)
SELECT u.run_id, u.id, u.name, u.value, u.format, u.trace, u.delivered, 'signal', {now} FROM {rows u}
WHERE true
{skip run_id, id};

-- name: count_first(u(id uuid))
-- These signals are counted: a run that has counted none does not look into its mailbox.
{update runs r, u} SET wakes = r.wakes + 1 {from u} WHERE r.id = u.id;

-- name: leave_signal(run_id uuid, id uuid, name, value, format smallint, trace, most bigint)
-- A signal for a run that is not locked: only inserted, for a sweep to deliver, unless there are `most` already.
INSERT INTO {mailbox} (run_id, id, kind, name, value, format, sent_at, delivered, trace)
SELECT :run_id, :id, 'signal', :name, :value, :format, {now}, false, :trace
WHERE (SELECT count(*) FROM (SELECT 1 FROM {mailbox} b WHERE b.run_id = :run_id AND b.kind = 'signal' LIMIT :most) AS x)
      < :most
{skip run_id, id}
RETURNING 1;
