-- What operators ask of runs. Each is one short transaction over one row, which is locked first, and waited for.

-- name: lock_run
-- The run in question.
SELECT status, reason, worker IS NOT NULL AS held, undoing, asked, waiting_for, forget, queue, workflow, priority,
       dag_id, graph IS NOT NULL AND dag_id IS NULL AS dag, failing, graph
FROM {schema}.runs WHERE id = $1 FOR NO KEY UPDATE;

-- name: about_to_cancel
-- What is decided by when runs are cancelled that nobody holds: their losses, a step that was seen under way and has no
-- outcome, and the last one that has.
SELECT r.id, r.status, r.losses, r.waiting_for,
       (SELECT p.name FROM {schema}.progress p
        WHERE p.run_id = r.id AND NOT EXISTS (SELECT 1 FROM {schema}.steps s WHERE s.run_id = p.run_id
                                              AND s.branch = p.branch AND s.position = p.position)
        ORDER BY p.updated_at DESC LIMIT 1) AS running,
       (SELECT s.name FROM {schema}.steps s WHERE s.run_id = r.id ORDER BY s.seq DESC LIMIT 1) AS last
FROM unnest($1::uuid[]) AS u(id) JOIN {schema}.runs r ON r.id = u.id
WHERE r.losses > 0 AND r.worker IS NULL AND NOT r.undoing AND (r.graph IS NULL OR r.dag_id IS NOT NULL)
  AND r.status IN ('queued', 'paused', 'waiting');

-- name: cancel
-- Runs locked in this transaction. One that a worker holds is marked, for its owner to end; any other ends here, or if
-- one of its completed steps can be undone, stands in line for that. So does one that ended without undoing anything
-- because its code does not fit or its workers died, also a dag run. One that is being undone goes on, and a dag run
-- that goes on and that nobody holds is not ended like this. Those of $2 have lost a worker since their last record: they
-- are marked like one that is held, and stand in line to come to a record first. $3 and $4 are errors that say of others
-- which of their steps may have acted. An attempt that a run only waited for is not counted.
WITH told AS MATERIALIZED (
    SELECT r.id, row_number() OVER (ORDER BY r.id) AS n, {now} AS now, r.worker IS NOT NULL AS held,
           r.id = ANY($2::uuid[]) AS first, r.status = 'failed' AS ended,
           r.worker IS NULL AND r.id <> ALL($2::uuid[])
           AND (r.graph IS NOT NULL
                OR COALESCE((SELECT true FROM {schema}.steps s
                             WHERE s.run_id = r.id AND s.undo IS NOT NULL AND s.status = 'completed' LIMIT 1), false))
               AS undoes,
           COALESCE((SELECT true FROM {schema}.tries t
                     WHERE t.run_id = r.id AND t.branch = '' AND t.position = -1 AND t.attempt = r.attempt - 1
                       AND t.claim = r.claim LIMIT 1), false) AS between
    FROM unnest($1::uuid[]) AS u(id) JOIN {schema}.runs r ON r.id = u.id
    WHERE NOT r.undoing AND CASE WHEN r.status = 'failed' THEN r.reason IN ('non_determinism', 'workers_lost')
                                 WHEN r.status IN ('completed', 'cancelled', 'compensated', 'skipped') THEN false
                                 ELSE r.worker IS NOT NULL OR r.graph IS NULL END
)
UPDATE {schema}.runs r
SET asked = CASE WHEN t.held OR t.first THEN 'cancel' END,
    wakes = r.wakes + 1,
    status = CASE WHEN t.held THEN r.status WHEN t.first THEN 'queued' WHEN t.undoes THEN 'compensating' ELSE 'cancelled' END,
    reason = CASE WHEN t.held OR t.first THEN r.reason ELSE 'cancelled' END,
    undoing = t.undoes,
    attempt = CASE WHEN t.between AND NOT (t.held OR t.first OR t.undoes) THEN r.attempt - 1 ELSE r.attempt END,
    error = COALESCE((SELECT e.error FROM unnest($3::uuid[], $4::text[]) AS e(id, error) WHERE e.id = r.id), r.error),
    place = CASE WHEN t.first THEN COALESCE(r.place, t.now * 1000 + t.n) WHEN t.undoes THEN t.now * 1000 + t.n END,
    deadline_at = CASE WHEN NOT t.undoes THEN r.deadline_at END,
    completed_at = CASE WHEN NOT (t.held OR t.first OR t.undoes) THEN t.now END,
    losses = CASE WHEN t.ended THEN 0 ELSE r.losses END,
    visible_at = CASE WHEN t.first THEN r.deadline_at END, waiting_for = NULL, awaits = NULL, held_due = NULL, paused_at = NULL
FROM told t WHERE r.id = t.id
RETURNING r.id, r.queue, r.workflow, r.priority, t.held, t.first, t.undoes,
          r.parent_id IS NOT NULL AND NOT t.ended AS child;

-- name: pause
-- Runs locked in this transaction are held until somebody resumes them. They remember when they would have been due and
-- what they waited for; their deadlines go on. One that a worker holds is marked, for its owner to see; that is no wake.
-- A step of a dag run that waits for others stays so: it is held when it is released.
UPDATE {schema}.runs r
SET status = CASE WHEN r.worker IS NULL THEN 'paused' ELSE r.status END,
    paused_at = CASE WHEN r.worker IS NULL THEN {now} END,
    asked = CASE WHEN r.worker IS NOT NULL THEN 'pause' END,
    held_due = CASE WHEN r.place IS NULL AND (r.status = 'queued' OR r.visible_at IS DISTINCT FROM r.deadline_at)
                    THEN r.visible_at END,
    visible_at = CASE WHEN r.worker IS NULL THEN r.deadline_at ELSE r.visible_at END,
    place = NULL,
    waiting_for = CASE WHEN r.status = 'waiting' THEN r.waiting_for END,
    awaits = CASE WHEN r.status = 'waiting' THEN r.awaits END
FROM unnest($1::uuid[]) AS u(id)
WHERE r.id = u.id AND NOT r.undoing AND r.waiting_for IS DISTINCT FROM 'steps'
  AND r.status NOT IN ('paused', 'completed', 'failed', 'cancelled', 'compensated', 'skipped')
RETURNING r.worker;

-- name: resume
-- Those of these runs, locked in this transaction, that are paused go on: at once, if nothing keeps them or what they
-- waited for has happened meanwhile, else when they would have been due; a dag run with its steps. A check that somebody
-- waits for is made at once. A mark for the owner of a run is taken back, which is no wake.
WITH told AS MATERIALIZED (
    SELECT r.id, row_number() OVER (ORDER BY r.id) AS n, {now} AS now,
           CASE WHEN r.status <> 'paused' AND r.waiting_for IS DISTINCT FROM 'check' THEN 'on'
                WHEN r.graph IS NOT NULL AND r.dag_id IS NULL AND r.pending > 0 THEN 'steps'
                WHEN r.waiting_for IS NULL AND r.held_due > {now} THEN 'later'
                WHEN r.waiting_for IS NULL OR r.waiting_for = 'check' THEN 'ready'
                WHEN COALESCE(r.ends >= r.awaits, false) OR COALESCE(r.held_due <= {now}, false) THEN 'ready'
                ELSE 'waiting' END AS goes
    FROM unnest($1::uuid[]) AS u(id) JOIN {schema}.runs r ON r.id = u.id
    WHERE r.status = 'paused' OR (r.status = 'waiting' AND r.waiting_for = 'check') OR r.asked = 'pause'
)
UPDATE {schema}.runs r
SET status = CASE t.goes WHEN 'on' THEN r.status WHEN 'steps' THEN 'running' WHEN 'waiting' THEN 'waiting'
                         ELSE 'queued' END,
    asked = CASE WHEN r.asked <> 'pause' THEN r.asked END,
    place = CASE WHEN t.goes = 'ready' THEN t.now * 1000 + t.n WHEN t.goes = 'on' THEN r.place END,
    visible_at = CASE WHEN t.goes = 'on' THEN r.visible_at
                      WHEN t.goes IN ('later', 'waiting') THEN LEAST(r.held_due, r.deadline_at)
                      WHEN r.started_at IS NULL THEN LEAST(r.expires_at, r.deadline_at)
                      ELSE r.deadline_at END,
    waiting_for = CASE WHEN t.goes IN ('on', 'waiting') THEN r.waiting_for END,
    awaits = CASE WHEN t.goes IN ('on', 'waiting') THEN r.awaits END,
    held_due = NULL, paused_at = NULL,
    wakes = CASE WHEN t.goes = 'on' THEN r.wakes ELSE r.wakes + 1 END
FROM told t WHERE r.id = t.id
RETURNING r.worker, r.queue, r.workflow, r.priority, t.goes = 'ready' AS ready;

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
