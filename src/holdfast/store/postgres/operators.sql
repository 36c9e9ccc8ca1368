-- What operators ask of runs. Each is one short transaction over one row, which is locked first, and waited for.

-- name: lock_run
-- The run in question.
SELECT status, reason, worker IS NOT NULL AS held, undoing, asked, waiting_for, forget, queue, workflow, priority,
       dag_id, graph IS NOT NULL AND dag_id IS NULL AS dag, failing
FROM {schema}.runs WHERE id = $1 FOR NO KEY UPDATE;

-- name: ask
-- A wish for the owner of the run to see, or none any more. It is no wake: the run still waits for what it waits for.
UPDATE {schema}.runs SET asked = $2 WHERE id = $1;

-- name: cancel
-- Runs locked in this transaction. One that a worker holds is marked, for its owner to end; any other ends here, or if
-- one of its completed steps can be undone, stands in line for that. One that is being undone goes on, and a dag run
-- that nobody holds is not ended like this.
WITH told AS MATERIALIZED (
    SELECT r.id, row_number() OVER (ORDER BY r.id) AS n, {now} AS now, r.worker IS NOT NULL AS held,
           r.worker IS NULL
           AND COALESCE((SELECT true FROM {schema}.steps s
                         WHERE s.run_id = r.id AND s.undo IS NOT NULL AND s.status = 'completed' LIMIT 1), false)
               AS undoes
    FROM unnest($1::uuid[]) AS u(id) JOIN {schema}.runs r ON r.id = u.id
    WHERE NOT r.undoing AND r.status NOT IN ('completed', 'failed', 'cancelled', 'compensated', 'skipped')
      AND (r.worker IS NOT NULL OR r.graph IS NULL)
)
UPDATE {schema}.runs r
SET asked = CASE WHEN t.held THEN 'cancel' END,
    wakes = r.wakes + 1,
    status = CASE WHEN t.held THEN r.status WHEN t.undoes THEN 'compensating' ELSE 'cancelled' END,
    reason = CASE WHEN t.held THEN r.reason ELSE 'cancelled' END,
    undoing = t.undoes,
    place = CASE WHEN t.undoes THEN t.now * 1000 + t.n END,
    deadline_at = CASE WHEN NOT t.undoes THEN r.deadline_at END,
    completed_at = CASE WHEN NOT t.held AND NOT t.undoes THEN t.now END,
    visible_at = NULL, waiting_for = NULL, awaits = NULL, held_due = NULL
FROM told t WHERE r.id = t.id
RETURNING r.id, r.queue, r.workflow, r.priority, t.held, t.undoes, r.parent_id IS NOT NULL AS child;

-- name: pause
-- Held until somebody resumes it. It remembers when it would have been due and what it waited for; its deadline goes
-- on.
UPDATE {schema}.runs
SET status = 'paused', place = NULL, asked = NULL,
    held_due = CASE WHEN place IS NULL AND (status = 'queued' OR visible_at IS DISTINCT FROM deadline_at)
                    THEN visible_at END,
    visible_at = deadline_at,
    waiting_for = CASE WHEN status = 'waiting' THEN waiting_for END,
    awaits = CASE WHEN status = 'waiting' THEN awaits END
WHERE id = $1;

-- name: resume
-- A paused run goes on: at once, if nothing keeps it or what it waited for has happened meanwhile, else when it would
-- have been due. A check that somebody waits for is made at once.
WITH told AS MATERIALIZED (
    SELECT id, CASE WHEN waiting_for IS NULL AND held_due > {now} THEN 'later'
                    WHEN waiting_for IS NULL OR waiting_for = 'check' THEN 'ready'
                    WHEN COALESCE(ends >= awaits, false) OR COALESCE(held_due <= {now}, false) THEN 'ready'
                    ELSE 'waiting' END AS goes
    FROM {schema}.runs WHERE id = $1
)
UPDATE {schema}.runs r
SET status = CASE WHEN t.goes = 'waiting' THEN 'waiting' ELSE 'queued' END,
    place = CASE WHEN t.goes = 'ready' THEN {place} END,
    visible_at = CASE WHEN t.goes <> 'ready' THEN LEAST(r.held_due, r.deadline_at)
                      WHEN r.started_at IS NULL THEN LEAST(r.expires_at, r.deadline_at)
                      ELSE r.deadline_at END,
    waiting_for = CASE WHEN t.goes = 'waiting' THEN r.waiting_for END,
    awaits = CASE WHEN t.goes = 'waiting' THEN r.awaits END,
    held_due = NULL, wakes = r.wakes + 1
FROM told t WHERE r.id = t.id
RETURNING t.goes = 'ready' AS ready;

-- name: retry
-- An operator's retry: a new budget of attempts, a new deadline of the old length, and the claim number moved on, so
-- that no worker trusts what it remembers of the run. Not once an undo has begun.
UPDATE {schema}.runs
SET status = 'queued', reason = NULL, error = NULL, output = NULL, forget = NULL, completed_at = NULL,
    waiting_for = NULL, place = {place}, losses = 0, claim = claim + 1, attempt = attempt + 1,
    first_attempt = attempt + 1,
    deadline_at = {now} + deadline_ms, visible_at = {now} + deadline_ms,
    expires_at = NULL, asked = NULL, held_due = NULL
WHERE id = $1 AND status IN ('failed', 'cancelled') AND NOT undoing
RETURNING queue, workflow, priority;
