-- Dag runs and their steps. The row of a dag run counts the steps that are not settled yet, the row of a step the
-- dependencies it waits for. Both counts, and what follows from them, are changed only under the lock of the dag run.

-- name: start_dag
-- Many dag runs of one shape: running from the start, in nobody's hands, and in line only when their steps are settled.
INSERT INTO {schema}.runs (id, workflow, version, queue, status, priority, visible_at, input, key, max_attempts,
                           timeout_ms, deadline_ms, deadline_at, tags, concurrency_key, format, created_at, started_at,
                           released_at, parent_id, parent_branch, parent_position, reply_to, origin_id, graph, pending,
                           seed)
SELECT u.id, $4, $5, $6, 'running', $7::integer, t.now + $8::bigint, u.input, u.key, $9::integer,
       $10::bigint, $8::bigint, t.now + $8::bigint, $11, $12, $13::smallint, t.now, t.now,
       t.now, u.parent_id, u.parent_branch, u.parent_position, u.reply_to, u.origin_id, u.graph, u.steps, $21
FROM unnest($1::uuid[], $2::text[], $3::text[], $14::uuid[], $15::text[], $16::integer[], $17::uuid[], $18::uuid[],
            $19::text[], $20::integer[])
     AS u(id, input, key, parent_id, parent_branch, parent_position, reply_to, origin_id, graph, steps)
CROSS JOIN (SELECT {now} AS now) AS t
ORDER BY u.key
ON CONFLICT DO NOTHING;

-- name: start_nodes
-- Steps of dag runs, of any shapes: each has a name of its own, and a graph may have a thousand. Where the dag run was
-- not started, because another has its key, there are none. Those that wait for no others stand in line.
INSERT INTO {schema}.runs (id, workflow, version, queue, priority, status, waiting_for, place, visible_at, input,
                           max_attempts, timeout_ms, deadline_ms, deadline_at, expires_at, concurrency_key, format,
                           created_at, released_at, graph, dag_id, node, pending, ordinal, seed)
SELECT u.id, u.workflow, u.version, u.queue, u.priority, CASE WHEN t.free THEN 'queued' ELSE 'waiting' END,
       CASE WHEN NOT t.free THEN 'steps' END,
       CASE WHEN t.free AND t.due <= t.now THEN t.place + $20::bigint + u.n END,
       CASE WHEN t.free THEN LEAST(CASE WHEN t.due > t.now THEN t.due END, t.due + u.expires, t.now + u.deadline) END,
       u.input, u.max_attempts, u.timeout, u.deadline, t.now + u.deadline,
       CASE WHEN t.free THEN t.due + u.expires END, u.concurrency_key, u.format, t.now,
       CASE WHEN t.free THEN d.released_at END, u.graph, u.dag_id, u.node, u.pending, u.ordinal, $21
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::integer[], $6::bigint[], $7::bigint[], $8::bigint[],
            $9::bigint[], $10::integer[], $11::bigint[], $12::text[], $13::smallint[], $14::text[], $15::text[],
            $16::uuid[], $17::text[], $18::integer[], $19::integer[]) WITH ORDINALITY
     AS u(id, workflow, version, queue, priority, delay, at, expires, deadline, max_attempts, timeout, concurrency_key,
          format, input, graph, dag_id, node, pending, ordinal, n)
JOIN {schema}.runs d ON d.id = u.dag_id
CROSS JOIN (SELECT {now} AS now, {place} AS place) AS clock
CROSS JOIN LATERAL (SELECT clock.now, clock.place, u.pending = 0 AS free,
                           GREATEST(clock.now + u.delay, COALESCE(u.at, clock.now)) AS due) AS t
ON CONFLICT DO NOTHING;

-- name: lock_dags
-- Dag runs, before anything of them is settled. Those that somebody else holds are stepped over. And whether a run is in
-- nobody's hands, and neither over nor being undone; whether it is past its deadline; and whether an operator holds it.
SELECT r.id, r.failing, r.released_at, {now} AS now_ms, (r.deadline_at <= {now}) IS TRUE AS late, r.status = 'paused' AS paused,
       r.worker IS NULL AND NOT r.undoing AND r.status NOT IN ('completed', 'failed', 'cancelled', 'compensated') AS free
FROM unnest($1::uuid[]) AS u(id) JOIN {schema}.runs r ON r.id = u.id
ORDER BY r.id
FOR NO KEY UPDATE OF r SKIP LOCKED;

-- name: which_exist
-- Which of these runs there are.
SELECT r.id FROM unnest($1::uuid[]) AS u(id) JOIN {schema}.runs r ON r.id = u.id;

-- name: dependents
-- Where steps stand for which a dependency was settled, if they are still blocked: who needed only some of its
-- dependencies, and had them, does not count the rest. Read without a lock, under that of their dag run. Here and
-- below, OFFSET 0 keeps a planner that knows nothing of dag runs yet from walking through all steps there are.
SELECT u.dag_id, u.node, s.id, s.pending, s.met
FROM unnest($1::uuid[], $2::text[]) AS u(dag_id, node)
CROSS JOIN LATERAL (SELECT r.id, r.pending, r.met FROM {schema}.runs r
                    WHERE r.dag_id = u.dag_id AND r.node = u.node
                      AND (r.status = 'waiting') IS TRUE AND r.waiting_for = 'steps' OFFSET 0) AS s;

-- name: lock_dependents
-- Steps for which a dependency was settled, if they are still blocked: who needed only some of its dependencies, and had
-- them, does not count the rest. Waited for, under the lock of their dag run: who holds them without it waits for nothing.
WITH steps AS MATERIALIZED (
    SELECT s.id FROM unnest($1::uuid[], $2::text[]) AS u(dag_id, node)
    CROSS JOIN LATERAL (SELECT r.id FROM {schema}.runs r
                        WHERE r.dag_id = u.dag_id AND r.node = u.node
                          AND (r.status = 'waiting') IS TRUE AND r.waiting_for = 'steps' OFFSET 0) AS s
)
SELECT {now} AS now_ms, {standing}
FROM unnest(ARRAY(SELECT id FROM steps)) AS u(id) JOIN {schema}.runs r ON r.id = u.id
ORDER BY r.id
FOR NO KEY UPDATE OF r;

-- name: release_steps
-- What follows for the dependents: they wait on, stand in line in the order given, are held with their run, or will not
-- be needed.
UPDATE {schema}.runs r
SET pending = u.pending, met = u.met,
    status = CASE u.decision WHEN 'ready' THEN 'queued' WHEN 'hold' THEN 'paused' WHEN 'skip' THEN 'skipped'
                             ELSE r.status END,
    paused_at = CASE WHEN u.decision = 'hold' THEN $5::bigint END,
    waiting_for = CASE WHEN u.decision = 'wait' THEN r.waiting_for END,
    place = CASE WHEN u.decision = 'ready' THEN $5::bigint * 1000 + u.n END,
    visible_at = CASE WHEN u.decision IN ('ready', 'hold') THEN r.deadline_at END,
    released_at = CASE WHEN u.decision IN ('ready', 'hold') THEN $5::bigint END,
    completed_at = CASE WHEN u.decision = 'skip' THEN $5::bigint END
FROM unnest($1::uuid[], $2::integer[], $3::integer[], $4::text[]) WITH ORDINALITY AS u(id, pending, met, decision, n)
WHERE r.id = u.id
RETURNING r.queue, r.workflow, r.priority, u.decision = 'ready' AS ready;

-- name: settle_dags
-- Steps of dag runs, locked in this transaction, are settled ($2 of each), and some of these runs begin to fail. After its
-- last step a run stands in line, to be finished, unless an operator holds it. Once it fails nobody does, and its deadline
-- has nothing left to do.
UPDATE {schema}.runs r
SET pending = r.pending - u.settled, released_at = GREATEST(r.released_at, $6::bigint),
    failing = r.failing OR u.fails,
    reason = CASE WHEN u.fails THEN COALESCE(u.reason, r.reason) ELSE r.reason END,
    error = CASE WHEN u.fails THEN COALESCE(u.error, r.error) ELSE r.error END,
    status = CASE WHEN u.fails AND r.status = 'paused' THEN 'running' ELSE r.status END,
    held_due = CASE WHEN NOT u.fails THEN r.held_due END,
    paused_at = CASE WHEN NOT u.fails THEN r.paused_at END,
    place = CASE WHEN r.pending = u.settled AND (u.fails OR u.settled > 0 AND r.status <> 'paused')
                 THEN COALESCE(r.place, $6::bigint * 1000 + u.n) ELSE r.place END,
    waiting_for = CASE WHEN NOT u.fails THEN r.waiting_for END,
    deadline_at = CASE WHEN NOT u.fails THEN r.deadline_at END,
    visible_at = CASE WHEN NOT u.fails THEN r.visible_at END
FROM unnest($1::uuid[], $2::integer[], $3::boolean[], $4::text[], $5::text[]) WITH ORDINALITY
     AS u(id, settled, fails, reason, error, n)
WHERE r.id = u.id
RETURNING r.id, r.queue, r.workflow, r.priority, r.place IS NOT NULL AS ready;

-- name: lock_open_steps
-- The steps of dag runs that begin to fail, in the order in which everybody locks. Waited for: who holds them without
-- the lock of their dag run is about to be done.
WITH steps AS MATERIALIZED (
    SELECT s.id FROM unnest($1::uuid[]) AS u(id)
    CROSS JOIN LATERAL (SELECT r.id FROM {schema}.runs r
                        WHERE r.dag_id = u.id AND NOT r.undoing
                          AND r.status NOT IN ('completed', 'failed', 'cancelled', 'compensated', 'skipped')
                        OFFSET 0) AS s
)
SELECT {now} AS now_ms, {standing}
FROM unnest(ARRAY(SELECT id FROM steps)) AS u(id) JOIN {schema}.runs r ON r.id = u.id
ORDER BY r.id
FOR NO KEY UPDATE OF r;

-- name: end_open_steps
-- The same, locked by now: what has not begun will not, what waits is cancelled, and what a worker holds is marked, for
-- its owner to end. What has completed something of its own that can be undone stands in line for that. A step that is
-- being undone comes to its own end. One whose last attempt failed, and that nobody has claimed since, does not count the
-- attempt that it was waiting for. Those of $3 have lost a worker since their last record: they are marked, and go on to
-- the next first.
WITH told AS MATERIALIZED (
    SELECT r.id, row_number() OVER (ORDER BY r.id) AS n, r.worker IS NOT NULL AS held,
           r.id = ANY($3::uuid[]) AS first,
           r.worker IS NULL AND r.id <> ALL($3::uuid[]) AND r.started_at IS NOT NULL
           AND COALESCE((SELECT true FROM {schema}.steps s
                         WHERE s.run_id = r.id AND s.undo IS NOT NULL AND s.status = 'completed' LIMIT 1), false)
               AS undoes,
           r.worker IS NULL AND r.id <> ALL($3::uuid[])
           AND COALESCE((SELECT true FROM {schema}.tries t
                         WHERE t.run_id = r.id AND t.branch = '' AND t.position = -1 AND t.attempt = r.attempt - 1
                           AND t.claim = r.claim LIMIT 1), false)
               AS between
    FROM unnest($1::uuid[]) AS u(id) JOIN {schema}.runs r ON r.id = u.id
    WHERE NOT r.undoing AND r.status NOT IN ('completed', 'failed', 'cancelled', 'compensated', 'skipped')
)
UPDATE {schema}.runs r
SET asked = CASE WHEN t.held OR t.first THEN 'cancel' END,
    wakes = CASE WHEN t.held OR t.first OR t.undoes THEN r.wakes + 1 ELSE r.wakes END,
    status = CASE WHEN t.held THEN r.status WHEN t.first THEN 'queued' WHEN t.undoes THEN 'compensating'
                  WHEN r.started_at IS NULL THEN 'skipped' ELSE 'cancelled' END,
    reason = CASE WHEN NOT (t.held OR t.first) AND r.started_at IS NOT NULL THEN 'cancelled' ELSE r.reason END,
    undoing = t.undoes,
    attempt = CASE WHEN t.between AND NOT t.undoes THEN r.attempt - 1 ELSE r.attempt END,
    place = CASE WHEN t.first THEN COALESCE(r.place, $2::bigint * 1000 + t.n)
                 WHEN t.undoes THEN $2::bigint * 1000 + t.n END,
    completed_at = CASE WHEN NOT (t.held OR t.first OR t.undoes) THEN $2::bigint END,
    deadline_at = CASE WHEN NOT t.undoes THEN r.deadline_at END,
    visible_at = CASE WHEN t.first THEN r.deadline_at END, waiting_for = NULL, awaits = NULL, held_due = NULL, paused_at = NULL
FROM told t WHERE r.id = t.id
RETURNING r.id, r.dag_id, r.worker, t.first, r.undoing, r.reason, r.queue, r.workflow, r.priority;

-- name: let_begin
-- Steps that were not picked up in time, of dag runs of which another step was. All open steps of these are locked in this
-- transaction, so that nobody is about to claim one. They stay in line, or go there, and do not expire any more.
WITH told AS MATERIALIZED (
    SELECT r.id, row_number() OVER (ORDER BY r.visible_at, r.id) AS n, {now} AS now
    FROM unnest($1::uuid[]) AS u(id) JOIN {schema}.runs r ON r.id = u.id
    WHERE (r.visible_at <= {now}) IS TRUE AND r.started_at IS NULL AND (r.expires_at <= {now}) IS TRUE
      AND (SELECT true FROM {schema}.runs o WHERE o.dag_id = r.dag_id AND o.started_at IS NOT NULL LIMIT 1)
)
UPDATE {schema}.runs r
SET expires_at = NULL, visible_at = r.deadline_at, status = 'queued', paused_at = NULL,
    place = COALESCE(r.place, t.now * 1000 + t.n)
FROM told t WHERE r.id = t.id
RETURNING r.queue, r.workflow, r.priority;

-- name: lock_ended_steps
-- The steps of an ended dag run that is to be retried: how they came to their ends.
SELECT r.id, r.node, r.status, r.reason, r.started_at IS NOT NULL AS begun, r.undoing AS undone, r.forget
FROM {schema}.runs r WHERE r.dag_id = $1
ORDER BY r.id
FOR NO KEY UPDATE;

-- name: reopen_steps
-- Steps of a dag run that is retried, locked in this transaction: ready, in the order given, or waiting for others again.
-- One that has begun has a new budget of attempts, sees the outputs that it saw, and no worker trusts what it remembers
-- of it. Its next attempt counts when it is claimed: until then the run may fail again.
UPDATE {schema}.runs r
SET status = CASE WHEN u.ready THEN 'queued' ELSE 'waiting' END, waiting_for = CASE WHEN NOT u.ready THEN 'steps' END,
    place = CASE WHEN u.ready THEN $5::bigint * 1000 + u.n END, pending = u.pending, met = u.met,
    released_at = CASE WHEN u.ready AND r.started_at IS NOT NULL THEN r.released_at WHEN u.ready THEN $5::bigint END,
    claim = r.claim + (r.started_at IS NOT NULL)::integer, first_attempt = r.attempt + 1,
    reason = NULL, error = NULL, output = NULL, forget = NULL, completed_at = NULL, losses = 0, expires_at = NULL,
    asked = NULL, held_due = NULL, awaits = NULL, deadline_at = $5::bigint + r.deadline_ms,
    visible_at = CASE WHEN u.ready THEN $5::bigint + r.deadline_ms END
FROM unnest($1::uuid[], $2::boolean[], $3::integer[], $4::integer[]) WITH ORDINALITY AS u(id, ready, pending, met, n)
WHERE r.id = u.id
RETURNING r.queue, r.workflow, r.priority, u.ready;

-- name: forget_all
-- Everything that these runs have recorded.
DELETE FROM {schema}.steps WHERE run_id = ANY($1::uuid[]);

-- name: retry_dag
-- A dag run, locked in this transaction, goes on with the steps that were opened again ($2); with none it is to be
-- finished. A new deadline of the old length, by one clock: a pause asks whether the run is due before its deadline.
UPDATE {schema}.runs
SET status = 'running', reason = NULL, error = NULL, output = NULL, forget = NULL, completed_at = NULL,
    waiting_for = NULL, failing = false, pending = $2, released_at = $3::bigint,
    place = CASE WHEN $2::integer = 0 THEN $3::bigint * 1000 END,
    losses = 0, claim = claim + 1, attempt = attempt + 1, first_attempt = attempt + 1,
    deadline_at = $3::bigint + deadline_ms, visible_at = $3::bigint + deadline_ms, expires_at = NULL, asked = NULL,
    held_due = NULL
WHERE id = $1
RETURNING queue, workflow, priority;

-- name: lock_lost_steps
-- Steps of dag runs that seem to be dead letters, before it is looked again whether they are.
SELECT r.id FROM unnest($1::uuid[]) AS u(id) JOIN {schema}.runs r ON r.id = u.id
WHERE r.worker IS NOT NULL
ORDER BY r.id
FOR NO KEY UPDATE OF r SKIP LOCKED;

-- name: bury_steps
-- Steps of dag runs that too many workers died with, locked in this transaction like their dag runs: dead letters.
WITH counted AS MATERIALIZED (
    SELECT r.id, CASE WHEN (SELECT true FROM {schema}.steps s WHERE s.run_id = r.id AND s.claim = r.claim LIMIT 1)
                      THEN 1 ELSE r.losses + 1 END AS losses
    FROM unnest($1::uuid[]) AS u(id) JOIN {schema}.runs r ON r.id = u.id
    WHERE r.worker IS NOT NULL
      AND NOT EXISTS (SELECT 1 FROM {schema}.workers w WHERE w.id = r.worker AND w.state <> 'dead')
)
UPDATE {schema}.runs r
SET worker = NULL, token = NULL, losses = c.losses, status = 'failed', reason = 'workers_lost', error = $3,
    asked = NULL, completed_at = $4::bigint, place = NULL, visible_at = NULL
FROM counted c WHERE r.id = c.id AND c.losses >= $2
RETURNING r.id, r.dag_id;

-- name: step_named
-- The step of a dag run that a signal is for.
SELECT id, status FROM {schema}.runs WHERE dag_id = $1 AND node = $2;

-- name: nodes
-- The steps of a dag run, in the order of their declaration.
SELECT id, node AS name, status, reason, waiting_for, output, error, COALESCE(output_format, format) AS format, attempt,
       visible_at, released_at, started_at, completed_at, worker
FROM {schema}.runs WHERE dag_id = $1 ORDER BY ordinal;

-- name: dag_inputs
-- The inputs of dag runs.
SELECT r.id, r.input, r.format FROM unnest($1::uuid[]) AS u(id) JOIN {schema}.runs r ON r.id = u.id;

-- name: dag_outputs
-- The outputs of their steps that were completed at a time ($2 for each) or after.
SELECT u.id AS dag_id, s.node, s.output, s.format, s.completed_at
FROM unnest($1::uuid[], $2::bigint[]) AS u(id, since)
CROSS JOIN LATERAL (SELECT r.node, r.output, COALESCE(r.output_format, r.format) AS format, r.completed_at
                    FROM {schema}.runs r
                    WHERE r.dag_id = u.id AND r.completed_at >= u.since AND r.status = 'completed' OFFSET 0) AS s;

-- name: start_graphs
-- Copies of graphs that may not be stored yet, for the dag runs that were started in this transaction.
INSERT INTO {schema}.run_values (run_id, key, value, format, updated_at)
SELECT r.id, '~graph', u.graph, 1, r.created_at
FROM unnest($1::uuid[], $2::text[]) AS u(id, graph) JOIN {schema}.runs r ON r.id = u.id
ON CONFLICT (run_id, key) DO NOTHING;

-- name: graph
-- The graph of a dag in a version; if that is not stored, the copy that a run of it ($3) brought along.
SELECT COALESCE((SELECT d.graph FROM {schema}.definitions d WHERE d.name = $1 AND d.version = $2),
                (SELECT v.value FROM {schema}.run_values v WHERE v.run_id = $3 AND v.key = '~graph')) AS graph;
