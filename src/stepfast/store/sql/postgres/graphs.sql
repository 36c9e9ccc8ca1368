-- Dag runs and their steps. The row of a dag run counts the steps that are not settled yet, the row of a step the
-- dependencies it waits for. Both counts, and what follows from them, are changed only under the lock of the dag run.

-- name: start_dag
-- Many dag runs of one shape: running from the start, held by no worker, and ready only when their steps are settled.
INSERT INTO {schema}.runs (id, workflow, version, queue, status, priority, visible_at, input, key, max_attempts,
                           timeout_ms, deadline_ms, deadline_at, tags, concurrency_key, format, created_at, started_at,
                           ready_at, parent_id, parent_branch, parent_position, reply_to, origin_id, trace, graph,
                           pending, seed)
SELECT u.id, $4, $5, $6, 'running', $7::integer, t.now + $8::bigint, u.input, u.key, $9::integer,
       $10::bigint, $8::bigint, t.now + $8::bigint, $11, $12, $13::smallint, t.now, t.now,
       t.now, u.parent_id, u.parent_branch, u.parent_position, u.reply_to, u.origin_id, u.trace, u.graph, u.steps, $22
FROM unnest($1::uuid[], $2::text[], $3::text[], $14::uuid[], $15::text[], $16::integer[], $17::uuid[], $18::uuid[],
            $19::text[], $20::text[], $21::integer[]) WITH ORDINALITY
     AS u(id, input, key, parent_id, parent_branch, parent_position, reply_to, origin_id, trace, graph, steps, n)
CROSS JOIN (SELECT {now} AS now) AS t
ORDER BY u.key, u.n
ON CONFLICT DO NOTHING;

-- name: start_dag_steps
-- Steps of dag runs, of any shapes: each has a name of its own, and a graph may have a thousand. Where the dag run was
-- not started, because another has its key, there are none. Those that wait for no others are ready.
INSERT INTO {schema}.runs (id, workflow, version, queue, priority, status, waiting_for, place, visible_at, input,
                           max_attempts, timeout_ms, deadline_ms, deadline_at, expires_at, concurrency_key, format,
                           created_at, ready_at, graph, dag_id, dag_step, pending, ordinal, trace, seed)
SELECT u.id, u.workflow, u.version, u.queue, u.priority, CASE WHEN t.free THEN 'queued' ELSE 'waiting' END,
       CASE WHEN NOT t.free THEN 'steps' END,
       CASE WHEN t.free AND t.due <= t.now THEN t.place + $20::bigint + u.n END,
       CASE WHEN t.free THEN LEAST(CASE WHEN t.due > t.now THEN t.due END, t.due + u.expires, t.now + u.deadline) END,
       u.input, u.max_attempts, u.timeout, u.deadline, t.now + u.deadline,
       CASE WHEN t.free THEN t.due + u.expires END, u.concurrency_key, u.format, t.now,
       CASE WHEN t.free THEN d.ready_at END, u.graph, u.dag_id, u.dag_step, u.pending, u.ordinal, d.trace, $21
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::integer[], $6::bigint[], $7::bigint[], $8::bigint[],
            $9::bigint[], $10::integer[], $11::bigint[], $12::text[], $13::smallint[], $14::text[], $15::text[],
            $16::uuid[], $17::text[], $18::integer[], $19::integer[]) WITH ORDINALITY
     AS u(id, workflow, version, queue, priority, delay, at, expires, deadline, max_attempts, timeout, concurrency_key,
          format, input, graph, dag_id, dag_step, pending, ordinal, n)
JOIN {schema}.runs d ON d.id = u.dag_id
CROSS JOIN (SELECT {now} AS now, {place} AS place) AS clock
CROSS JOIN LATERAL (SELECT clock.now, clock.place, u.pending = 0 AS free,
                           GREATEST(clock.now + u.delay, COALESCE(u.at, clock.now)) AS due) AS t
ON CONFLICT DO NOTHING;

-- override: lock_dependents
-- Steps for which a dependency was settled, if they are still blocked: who needed only some of its dependencies, and had
-- them, does not count the rest. Waited for, under the lock of their dag run: who holds them without it waits for nothing.
WITH steps AS MATERIALIZED (
    SELECT s.id FROM unnest($1::uuid[], $2::text[]) AS u(dag_id, dag_step)
    CROSS JOIN LATERAL (SELECT r.id FROM {schema}.runs r
                        WHERE r.dag_id = u.dag_id AND r.dag_step = u.dag_step
                          AND (r.status = 'waiting') IS TRUE AND r.waiting_for = 'steps' OFFSET 0) AS s
)
SELECT {now} AS now_ms, {standing}
FROM unnest(ARRAY(SELECT id FROM steps)) AS u(id) JOIN {schema}.runs r ON r.id = u.id
ORDER BY r.id
FOR NO KEY UPDATE OF r;

-- override: lock_open_steps
-- The steps of dag runs that begin to fail, in the order in which all transactions lock. Waited for: those that hold
-- them without the lock of their dag run are about to be done.
WITH steps AS MATERIALIZED (
    SELECT s.id FROM unnest($1::uuid[]) AS u(id)
    CROSS JOIN LATERAL (SELECT r.id FROM {schema}.runs r
                        WHERE r.dag_id = u.id AND NOT r.undoing
                          AND r.status NOT IN ({ended})
                        OFFSET 0) AS s
)
SELECT {now} AS now_ms, {standing}
FROM unnest(ARRAY(SELECT id FROM steps)) AS u(id) JOIN {schema}.runs r ON r.id = u.id
ORDER BY r.id
FOR NO KEY UPDATE OF r;

-- override: lock_step_named
-- The step of a dag run that a signal is for, waited for; the clock is read when the lock is there.
WITH locked AS MATERIALIZED (
    SELECT r.* FROM {schema}.runs r WHERE r.dag_id = $1 AND r.dag_step = $2 FOR NO KEY UPDATE
)
SELECT {now} AS now_ms, {standing} FROM locked r;

-- override: dag_outputs(u(id uuid, since bigint))
-- The outputs of their steps that were completed at a time ($2 for each) or after.
SELECT u.id AS dag_id, s.dag_step, s.output, s.format, s.completed_at
FROM unnest($1::uuid[], $2::bigint[]) AS u(id, since)
CROSS JOIN LATERAL (SELECT r.dag_step, r.output, COALESCE(r.output_format, r.format) AS format, r.completed_at
                    FROM {schema}.runs r
                    WHERE r.dag_id = u.id AND r.completed_at >= u.since AND r.status = 'completed' OFFSET 0) AS s;
