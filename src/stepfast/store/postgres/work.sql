-- What workers do all day: claim, record, beat, sweep. Every statement here is hot; a test looks at the plan of each on
-- a full table.

-- name: claim_lane
-- Up to $8 ready runs of one lane, oldest first. The lane's mark ($7) skips what this worker saw claimed before: under a
-- long snapshot elsewhere the dead entries at the front of the index cannot be removed, and would be walked each time.
-- A materialised CTE, because a subquery with LIMIT and SKIP LOCKED can be run twice and take more than it should. What
-- would make more than $9 bytes of inputs together is left in line; one run is always taken. (The rows come in the order
-- of the line already, so that nothing has to be sorted for that.)
WITH picked AS MATERIALIZED (
    SELECT id, place, version, octet_length(input) AS size FROM {schema}.runs
    WHERE queue = $4 AND workflow = $5 AND priority = $6 AND place >= $7 AND place IS NOT NULL AND losses < 2
      AND (expires_at IS NULL OR started_at IS NOT NULL OR expires_at > {now})
      AND (deadline_at IS NULL OR deadline_at > {now})
    ORDER BY place LIMIT $8
    FOR NO KEY UPDATE SKIP LOCKED
), sized AS (
    SELECT id, place, version, sum(size) OVER (ROWS UNBOUNDED PRECEDING) - size AS before FROM picked
)
UPDATE {schema}.runs r
SET status = CASE WHEN r.undoing THEN 'compensating' ELSE 'running' END, worker = $1, token = $2, version = $3,
    claim = r.claim + 1, place = NULL, visible_at = NULL, waiting_for = NULL,
    attempt = GREATEST(r.attempt, r.first_attempt), started_at = COALESCE(r.started_at, {now})
FROM sized p WHERE r.id = p.id AND p.before < $9::bigint
RETURNING r.id::text AS id, r.workflow, r.queue, r.priority, r.claim, r.attempt, r.first_attempt, r.losses, r.wakes,
          r.format, r.input, r.max_attempts, r.timeout_ms, r.deadline_at - {now} AS deadline_in_ms, r.started_at, p.place,
          p.version AS last_version, r.asked, r.ends, r.undoing, r.parent_id::text AS parent_id,
          {now} AS now_ms, r.dag_id::text AS dag_id, r.node, r.graph, r.released_at, r.failing, r.reason, r.seed;

-- name: claim_lanes
-- The same over many lanes: the first of each, then the first of these, and only what is taken is locked.
WITH candidates AS MATERIALIZED (
    SELECT c.id, c.place, c.version, l.version AS new_version, l.priority
    FROM unnest($3::text[], $4::text[], $5::integer[], $6::bigint[], $7::text[])
         AS l(queue, workflow, priority, mark, version)
    CROSS JOIN LATERAL (
        SELECT r.id, r.place, r.version FROM {schema}.runs r
        WHERE r.queue = l.queue AND r.workflow = l.workflow AND r.priority = l.priority
          AND r.place >= l.mark AND r.place IS NOT NULL AND r.losses < 2
          AND (r.expires_at IS NULL OR r.started_at IS NOT NULL OR r.expires_at > {now})
          AND (r.deadline_at IS NULL OR r.deadline_at > {now})
        ORDER BY r.place LIMIT $8
    ) AS c
    ORDER BY l.priority DESC, c.place LIMIT $8
), picked AS MATERIALIZED (
    SELECT r.id, c.place, c.version, c.new_version, octet_length(r.input) AS size
    FROM candidates c JOIN {schema}.runs r ON r.id = c.id
    WHERE r.place IS NOT NULL
    FOR NO KEY UPDATE OF r SKIP LOCKED
), sized AS (
    SELECT id, place, version, new_version, sum(size) OVER (ROWS UNBOUNDED PRECEDING) - size AS before FROM picked
)
UPDATE {schema}.runs r
SET status = CASE WHEN r.undoing THEN 'compensating' ELSE 'running' END, worker = $1, token = $2,
    version = p.new_version, claim = r.claim + 1, place = NULL, visible_at = NULL, waiting_for = NULL,
    attempt = GREATEST(r.attempt, r.first_attempt), started_at = COALESCE(r.started_at, {now})
FROM sized p WHERE r.id = p.id AND p.before < $9::bigint
RETURNING r.id::text AS id, r.workflow, r.queue, r.priority, r.claim, r.attempt, r.first_attempt, r.losses, r.wakes,
          r.format, r.input, r.max_attempts, r.timeout_ms, r.deadline_at - {now} AS deadline_in_ms, r.started_at, p.place,
          p.version AS last_version, r.asked, r.ends, r.undoing, r.parent_id::text AS parent_id,
          {now} AS now_ms, r.dag_id::text AS dag_id, r.node, r.graph, r.released_at, r.failing, r.reason, r.seed;

-- name: claim_suspects
-- A group of runs that workers have died with, of the workflows this worker knows. Only those with the fewest losses, so
-- that the likely innocent are not kept waiting nor taken along by a likely culprit; and as many of them as the worker
-- has room for, which $6 says: of those with two losses, with three, and so on; the last holds for all beyond.
WITH fewest AS MATERIALIZED (
    SELECT s.losses
    FROM {schema}.runs s JOIN unnest($3::text[]) AS w(workflow) ON w.workflow = s.workflow
    WHERE s.place IS NOT NULL AND s.losses >= 2 AND ($5::text[] IS NULL OR s.queue = ANY($5::text[]))
      AND (s.deadline_at IS NULL OR s.deadline_at > {now})
    ORDER BY s.losses LIMIT 1
), picked AS MATERIALIZED (
    SELECT s.id, s.place, s.version, w.version AS new_version, octet_length(s.input) AS size
    FROM {schema}.runs s JOIN unnest($3::text[], $4::text[]) AS w(workflow, version) ON w.workflow = s.workflow
    WHERE s.place IS NOT NULL AND s.losses >= 2 AND s.losses = (SELECT losses FROM fewest)
      AND ($5::text[] IS NULL OR s.queue = ANY($5::text[])) AND (s.deadline_at IS NULL OR s.deadline_at > {now})
    ORDER BY s.priority DESC, s.place
    LIMIT ($6::integer[])[LEAST((SELECT losses FROM fewest) - 1, cardinality($6::integer[]))]
    FOR NO KEY UPDATE OF s SKIP LOCKED
), sized AS (
    SELECT id, place, version, new_version, sum(size) OVER (ROWS UNBOUNDED PRECEDING) - size AS before FROM picked
)
UPDATE {schema}.runs r
SET status = CASE WHEN r.undoing THEN 'compensating' ELSE 'running' END, worker = $1, token = $2,
    version = p.new_version, claim = r.claim + 1, place = NULL, visible_at = NULL, waiting_for = NULL,
    attempt = GREATEST(r.attempt, r.first_attempt), started_at = COALESCE(r.started_at, {now})
FROM sized p WHERE r.id = p.id AND p.before < $7::bigint
RETURNING r.id::text AS id, r.workflow, r.queue, r.priority, r.claim, r.attempt, r.first_attempt, r.losses, r.wakes,
          r.format, r.input, r.max_attempts, r.timeout_ms, r.deadline_at - {now} AS deadline_in_ms, r.started_at, p.place,
          p.version AS last_version, r.asked, r.ends, r.undoing, r.parent_id::text AS parent_id,
          {now} AS now_ms, r.dag_id::text AS dag_id, r.node, r.graph, r.released_at, r.failing, r.reason, r.seed;

-- name: suspects
-- How many runs that workers have died with stand in line, by queue and workflow.
SELECT queue, workflow, count(*) FROM {schema}.runs WHERE place IS NOT NULL AND losses >= 2
GROUP BY queue, workflow ORDER BY queue, workflow;

-- name: claimed
-- What an earlier call of the same token took, in case its reply was lost on the way.
SELECT r.id::text AS id, r.workflow, r.queue, r.priority, r.claim, r.attempt, r.first_attempt, r.losses, r.wakes,
       r.format, r.input, r.max_attempts, r.timeout_ms, r.deadline_at - {now} AS deadline_in_ms, r.started_at, 0::bigint AS place,
       NULL AS last_version, r.asked, r.ends, r.undoing, r.parent_id::text AS parent_id, {now} AS now_ms,
       r.dag_id::text AS dag_id, r.node, r.graph, r.released_at, r.failing, r.reason, r.seed
FROM {schema}.runs r WHERE r.worker = $1 AND r.token = $2;

-- name: history
-- The first records of claimed runs: at most $2 of each and about $3 bytes; the rest comes in pages when needed.
SELECT u.id AS run_id, s.branch, s.position, s.seq, s.name, s.kind, s.status, s.output, s.error, s.arguments, s.attempts,
       s.started_at, s.completed_at, s.line, s.format, s.undo
FROM unnest($1::uuid[]) AS u(id)
CROSS JOIN LATERAL (
    SELECT p.*, sum(p.size) OVER (ORDER BY p.branch, p.position) - p.size AS before
    FROM (SELECT *, COALESCE(octet_length(output), 0) AS size FROM {schema}.steps
          WHERE run_id = u.id ORDER BY branch, position LIMIT $2) AS p
) AS s
WHERE s.before <= $3
ORDER BY u.id, s.branch, s.position;

-- name: history_tries
-- Failed tries of the present attempt, so that a step which waited for its retry knows how many it has had, and when
-- the next is due.
SELECT t.run_id, t.branch, t.position, count(*)::integer AS failures, max(t.due_at) AS due_at
FROM {schema}.tries t JOIN unnest($1::uuid[], $2::integer[]) AS u(id, attempt) ON t.run_id = u.id AND t.attempt = u.attempt
WHERE t.position >= 0
GROUP BY t.run_id, t.branch, t.position;

-- name: flush
-- The journal's usual freight in one round trip: completed steps of the main line, tried once, and completed runs. The
-- fence locks the run rows in id order and steps over those that somebody else holds. All or nothing: if a run did not
-- pass the fence, or a position was recorded before, or the server is not the one we know ($15), the division by zero
-- undoes it all, and the batch is written statement by statement instead. Two words keep it linear, because the planner takes every unnest for 10 rows: `IS
-- TRUE` keeps the IN a hashed subplan rather than a join, and `IS NOT DISTINCT FROM` keeps the fence from looking
-- through all that the worker holds, by the index on worker, for each of its rows. Columns come as texts (columns.py);
-- `given` is asked by subqueries and not joined, for a join would carry all of it along with each row of the fence.
WITH clock AS MATERIALIZED (
    SELECT {now} AS now
), given AS MATERIALIZED (
    SELECT $2::text::uuid[] AS runs, $3::text::integer[] AS claims, $11::text::uuid[] AS ended
), fence AS MATERIALIZED (
    SELECT r.id, r.claim, r.asked
    FROM unnest((SELECT array_cat(runs, ended) FROM given),
                (SELECT array_cat(claims, $12::text::integer[]) FROM given)) AS f(id, claim)
    JOIN {schema}.runs r ON r.id = f.id
    WHERE r.worker IS NOT DISTINCT FROM $1 AND r.claim = f.claim
    ORDER BY r.id
    FOR NO KEY UPDATE OF r SKIP LOCKED
), recorded AS (
    INSERT INTO {schema}.steps (run_id, claim, branch, position, seq, name, kind, status, output, arguments, attempts,
                                line, format, started_at, completed_at)
    SELECT s.run_id, s.claim, '', s.position, s.seq, s.name, 'step', 'completed', s.output, s.arguments, 1, s.line,
           $14::smallint, clock.now - s.duration, clock.now
    FROM unnest((SELECT runs FROM given), (SELECT claims FROM given), $4::text::integer[], $5::text::integer[],
                string_to_array($6, chr(31), chr(30)), string_to_array($7, chr(31), chr(30)),
                string_to_array($8, chr(31), chr(30)), string_to_array($9, chr(31), chr(30)), $10::text::bigint[])
         AS s(run_id, claim, position, seq, name, output, arguments, line, duration)
    CROSS JOIN clock
    WHERE (s.run_id IN (SELECT id FROM fence)) IS TRUE
    ON CONFLICT (run_id, branch, position) DO NOTHING
    RETURNING 1
), completed AS (
    UPDATE {schema}.runs r
    SET status = 'completed', output = c.output, output_format = $14::smallint, error = NULL, reason = NULL,
        worker = NULL, token = NULL, asked = NULL, losses = 0, completed_at = (SELECT now FROM clock)
    FROM unnest((SELECT ended FROM given), string_to_array($13, chr(31), chr(30))) AS c(id, output)
    WHERE r.id = c.id AND (c.id IN (SELECT id FROM fence)) IS TRUE
    RETURNING 1
), counts AS (
    SELECT (SELECT count(*) FROM fence) AS fenced, (SELECT count(*) FROM recorded) AS recorded,
           (SELECT count(*) FROM completed) AS completed, cardinality(runs) AS steps, cardinality(ended) AS ends
    FROM given
)
SELECT (SELECT now FROM clock) / CASE WHEN fenced = steps + ends AND recorded = steps AND completed = ends
                                           AND COALESCE($15::bigint = {server}, true)
                                      THEN 1 ELSE 0 END AS now_ms,
       (SELECT array_agg(id) FROM fence WHERE asked IS NOT NULL) AS asked_ids,
       (SELECT array_agg(asked) FROM fence WHERE asked IS NOT NULL) AS asked
FROM counts;

-- name: stored
-- How much is stored of runs, as one number each: an open record counts one, an outcome two.
SELECT u.id, count(s.run_id) + count(s.run_id) FILTER (WHERE s.status <> 'waiting') AS number
FROM unnest($1::uuid[]) AS u(id) LEFT JOIN {schema}.steps s ON s.run_id = u.id
GROUP BY u.id;

-- name: still_ours
-- Of runs that did not pass the fence: which are ours all the same, and were only locked?
SELECT r.id FROM unnest($2::uuid[], $3::integer[]) AS f(id, claim) JOIN {schema}.runs r ON r.id = f.id
WHERE r.worker IS NOT DISTINCT FROM $1 AND r.claim = f.claim;

-- name: record_steps
-- Outcomes of steps whose runs passed the fence in this transaction. An open record (`waiting`) is replaced by the
-- outcome, whoever made it, and by nothing else: what was decided once stays decided, and an outcome is final.
INSERT INTO {schema}.steps (run_id, claim, branch, position, seq, name, kind, status, output, error, arguments, attempts,
                            line, format, undo, mail, started_at, completed_at)
SELECT DISTINCT ON (s.run_id, s.branch, s.position)
       s.run_id, s.claim, s.branch, s.position, s.seq, s.name, s.kind, s.status, s.output, s.error, s.arguments,
       s.attempts, s.line, s.format, s.undo, s.mail, $18::bigint - s.duration, $18::bigint
FROM unnest($1::uuid[], $2::integer[], $3::text[], $4::integer[], $5::integer[], $6::text[], $7::text[], $8::text[],
            $9::text[], $10::text[], $11::text[], $12::integer[], $13::bigint[], $14::text[], $15::smallint[],
            $16::text[], $17::uuid[]) WITH ORDINALITY
     AS s(run_id, claim, branch, position, seq, name, kind, status, output, error, arguments, attempts, duration, line,
          format, undo, mail, n)
ORDER BY s.run_id, s.branch, s.position, (s.status = 'waiting'), s.n
ON CONFLICT (run_id, branch, position) DO UPDATE
SET claim = excluded.claim, seq = excluded.seq, name = excluded.name, kind = excluded.kind, status = excluded.status,
    output = excluded.output, error = excluded.error, arguments = excluded.arguments, attempts = excluded.attempts,
    line = excluded.line, format = excluded.format, undo = excluded.undo, mail = excluded.mail,
    started_at = excluded.started_at, completed_at = excluded.completed_at
WHERE steps.status = 'waiting' AND excluded.status <> 'waiting';

-- name: foreign_steps
-- Runs in which one of these positions has an outcome recorded under another claim: their history is not what we
-- believe.
SELECT DISTINCT s.run_id FROM unnest($1::uuid[], $2::integer[], $3::text[], $4::integer[]) AS u(run_id, claim, branch, position)
JOIN {schema}.steps s ON s.run_id = u.run_id AND s.branch = u.branch AND s.position = u.position
WHERE s.claim <> u.claim AND s.status <> 'waiting';

-- name: own_steps
-- Which of these positions were recorded under their very claim: written before, by a flush whose reply was lost.
SELECT s.run_id, s.branch, s.position
FROM unnest($1::uuid[], $2::integer[], $3::text[], $4::integer[]) AS u(run_id, claim, branch, position)
JOIN {schema}.steps s ON s.run_id = u.run_id AND s.branch = u.branch AND s.position = u.position
WHERE s.claim = u.claim;

-- name: take_mail
-- Mail that runs take, in the transaction that records that they did.
DELETE FROM {schema}.mailbox m USING unnest($1::uuid[], $2::uuid[]) AS t(run_id, id)
WHERE m.run_id = t.run_id AND m.id = t.id;

-- name: set_values
-- Values that runs let others read; the latest wins.
INSERT INTO {schema}.run_values (run_id, key, value, format, updated_at)
SELECT DISTINCT ON (v.run_id, v.key) v.run_id, v.key, v.value, v.format, $5::bigint
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::smallint[]) WITH ORDINALITY AS v(run_id, key, value, format, n)
ORDER BY v.run_id, v.key, v.n DESC
ON CONFLICT (run_id, key) DO UPDATE
SET value = excluded.value, format = excluded.format, updated_at = excluded.updated_at;

-- name: record_tries
-- Failed tries, before the next one begins, and when that is due.
INSERT INTO {schema}.tries (run_id, claim, branch, position, attempt, number, name, error, arguments, format,
                            started_at, completed_at, due_at)
SELECT t.run_id, t.claim, t.branch, t.position, t.attempt, t.number, t.name, t.error, t.arguments, t.format,
       $13::bigint - t.duration, $13::bigint, CASE WHEN t.retry > 0 THEN $13::bigint + t.retry END
FROM unnest($1::uuid[], $2::integer[], $3::text[], $4::integer[], $5::integer[], $6::integer[], $7::text[], $8::text[],
            $9::text[], $10::bigint[], $11::smallint[], $12::bigint[])
     AS t(run_id, claim, branch, position, attempt, number, name, error, arguments, duration, format, retry)
ON CONFLICT (run_id, branch, position, attempt, number) DO NOTHING;

-- name: record_progress
-- What long steps are doing; the latest word wins, and a later one without details keeps those of an earlier.
INSERT INTO {schema}.progress (run_id, branch, position, name, detail, data, format, started_at, updated_at)
SELECT DISTINCT ON (p.run_id, p.branch, p.position)
       p.run_id, p.branch, p.position, p.name, p.detail, p.data, p.format, $9::bigint - p.since, $9::bigint
FROM unnest($1::uuid[], $2::text[], $3::integer[], $4::text[], $5::text[], $6::text[], $7::bigint[], $8::smallint[]) WITH ORDINALITY
     AS p(run_id, branch, position, name, detail, data, since, format, n)
ORDER BY p.run_id, p.branch, p.position, (p.detail IS NULL AND p.data IS NULL), p.n DESC
ON CONFLICT (run_id, branch, position) DO UPDATE
SET name = excluded.name, updated_at = excluded.updated_at,
    detail = COALESCE(excluded.detail, progress.detail), data = COALESCE(excluded.data, progress.data);

-- name: beat
-- One heartbeat for all a worker holds. No row: it was declared dead.
UPDATE {schema}.workers SET beat_at = {now}, expires_at = {now} + lease_ms, running = $2
WHERE id = $1 AND state <> 'dead' RETURNING id;

-- name: held
-- What names a worker, so that it learns what it lost, what is asked of it, and what it holds without knowing.
SELECT id, claim, asked FROM {schema}.runs WHERE worker = $1;

-- name: give_back
-- Runs go back in line at once: a claim nobody knows of, or a worker that stops. No attempt, no loss; and if this claim
-- made a record, the losses before it no longer count. Rows that somebody holds are stepped over: waiting for one with
-- others in hand could end in a circle. They are given back one by one.
WITH given AS MATERIALIZED (
    SELECT r.id FROM unnest($2::uuid[], $3::integer[]) AS g(id, claim) JOIN {schema}.runs r ON r.id = g.id
    WHERE r.worker IS NOT DISTINCT FROM $1 AND r.claim = g.claim ORDER BY r.id FOR NO KEY UPDATE OF r SKIP LOCKED
)
UPDATE {schema}.runs r
SET status = CASE WHEN r.undoing THEN 'compensating' ELSE 'queued' END, worker = NULL, token = NULL, place = {place},
    visible_at = r.deadline_at,
    losses = CASE WHEN (SELECT true FROM {schema}.steps s WHERE s.run_id = r.id AND s.claim = r.claim LIMIT 1)
                  THEN 0 ELSE r.losses END
FROM given g WHERE r.id = g.id
RETURNING r.id;

-- name: register
-- A worker comes to life.
INSERT INTO {schema}.workers (id, host, pid, queues, workflows, concurrency, lease_ms, modules, process,
    state, started_at, beat_at, expires_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 'live', {now}, {now}, {now} + $7::bigint)
ON CONFLICT (id) DO NOTHING;

-- name: worker_state
-- A worker is stopping.
UPDATE {schema}.workers SET state = $2 WHERE id = $1 AND state <> 'dead';

-- name: unregister
-- A worker leaves in good order. What still names it goes back in line: a claim that was under way when it stopped.
WITH left_over AS MATERIALIZED (
    SELECT id FROM {schema}.runs WHERE worker = $1 ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
), given AS (
    UPDATE {schema}.runs r
    SET status = CASE WHEN r.undoing THEN 'compensating' ELSE 'queued' END, worker = NULL, token = NULL,
        place = {place}, visible_at = r.deadline_at
    FROM left_over l WHERE r.id = l.id
)
DELETE FROM {schema}.workers WHERE id = $1;

-- name: workers
-- Every worker, for people.
SELECT id, host, pid, queues, workflows, concurrency, lease_ms,
       CASE WHEN expires_at < {now} THEN 'dead' ELSE state END AS state, running, started_at, beat_at,
       {now} - beat_at AS age_ms, modules
FROM {schema}.workers ORDER BY started_at;

-- name: tick
-- The one question of an idle worker: which duties have work? The lanes are found by skipping from one to the next in
-- the index, so that their number counts and not the number of runs in them. Undelivered mail is looked for as the
-- oldest of it, which is the first entry of an index and never a walk through the table.
WITH RECURSIVE lanes AS (
    (SELECT queue, workflow, priority FROM {schema}.runs WHERE place IS NOT NULL AND losses < 2
     ORDER BY queue, workflow, priority LIMIT 1)
    UNION ALL
    SELECT n.queue, n.workflow, n.priority FROM lanes l CROSS JOIN LATERAL (
        SELECT r.queue, r.workflow, r.priority FROM {schema}.runs r
        WHERE r.place IS NOT NULL AND r.losses < 2
          AND (r.queue, r.workflow, r.priority) > (l.queue, l.workflow, l.priority)
        ORDER BY r.queue, r.workflow, r.priority LIMIT 1
    ) AS n
), known AS (
    SELECT queue, workflow, priority FROM lanes WHERE $1 AND ($2::text[] IS NULL OR workflow = ANY($2::text[]))
)
SELECT {now} AS now_ms, {server} AS server,
       (SELECT min(visible_at) FROM {schema}.runs WHERE visible_at IS NOT NULL) AS next_due,
       EXISTS (SELECT 1 FROM {schema}.runs WHERE place IS NOT NULL AND losses >= 2
               AND ($2::text[] IS NULL OR workflow = ANY($2::text[]))
               AND ($3::text[] IS NULL OR queue = ANY($3::text[]))) AS suspects,
       (SELECT min(sent_at) FROM {schema}.mailbox WHERE NOT delivered) IS NOT NULL AS mail,
       (SELECT array_agg(queue) FROM known) AS queues,
       (SELECT array_agg(workflow) FROM known) AS workflows,
       (SELECT array_agg(priority) FROM known) AS priorities;

-- name: promote
-- Sleepers that are due stand in line. Those that are late (past their deadline, or not picked up in time) are only
-- named: ending them needs a look at their steps, which this statement would see as they were before it had the lock.
-- What is paused stays so, unless it is late. The clock is a subquery, because a volatile function is no index
-- condition: all sleepers would be walked. The array is there for the planner, which takes a limit it does not know for
-- a tenth of the table and would read all of it.
WITH clock AS MATERIALIZED (
    SELECT {now} AS now
), due AS MATERIALIZED (
    SELECT id, visible_at, deadline_at, expires_at, started_at, dag_id, graph IS NOT NULL AND dag_id IS NULL AS dag
    FROM {schema}.runs
    WHERE visible_at <= (SELECT now FROM clock)
      AND (status <> 'paused' OR deadline_at <= (SELECT now FROM clock))
    ORDER BY visible_at LIMIT $1
    FOR NO KEY UPDATE SKIP LOCKED
), sorted AS (
    SELECT d.id, d.dag_id, d.dag, row_number() OVER (ORDER BY d.visible_at, d.id) AS n, clock.now,
           COALESCE(d.deadline_at <= clock.now, false)
           OR (d.started_at IS NULL AND COALESCE(d.expires_at <= clock.now, false)) AS late
    FROM due d CROSS JOIN clock
), ready AS (
    UPDATE {schema}.runs r
    SET status = CASE WHEN r.undoing THEN 'compensating' ELSE 'queued' END, place = s.now * 1000 + s.n,
        visible_at = CASE WHEN r.started_at IS NULL THEN LEAST(r.expires_at, r.deadline_at) ELSE r.deadline_at END,
        waiting_for = NULL, awaits = NULL
    FROM sorted s WHERE r.id = s.id AND NOT s.late AND r.id = ANY (ARRAY(SELECT id FROM due))
    RETURNING r.id, r.queue, r.workflow, r.priority
)
SELECT id, queue, workflow, priority, false AS late, NULL AS dag_id, false AS dag FROM ready
UNION ALL
SELECT id, NULL, NULL, NULL, true, dag_id, dag FROM sorted WHERE late;

-- name: lock_late
-- Late runs, before they are ended.
SELECT r.id FROM unnest($1::uuid[]) AS u(id) JOIN {schema}.runs r ON r.id = u.id
WHERE (r.visible_at <= {now}) IS TRUE
  AND ((r.deadline_at <= {now}) IS TRUE OR (r.started_at IS NULL AND (r.expires_at <= {now}) IS TRUE))
ORDER BY r.id
FOR NO KEY UPDATE OF r SKIP LOCKED;

-- name: end_late
-- Late runs, locked in this transaction, end; where a deadline passed and there is something to undo, that begins.
WITH told AS MATERIALIZED (
    SELECT r.id, row_number() OVER (ORDER BY r.visible_at, r.id) AS n, {now} AS now,
           (r.deadline_at <= {now}) IS TRUE AS late,
           (r.deadline_at <= {now}) IS TRUE
           AND COALESCE((SELECT true FROM {schema}.steps s
                         WHERE s.run_id = r.id AND s.undo IS NOT NULL AND s.status = 'completed' LIMIT 1), false)
               AS undoes
    FROM unnest($1::uuid[]) AS u(id) JOIN {schema}.runs r ON r.id = u.id
)
UPDATE {schema}.runs r
SET status = CASE WHEN t.undoes THEN 'compensating' ELSE 'failed' END,
    reason = CASE WHEN t.late THEN 'deadline' ELSE 'expired' END,
    error = CASE WHEN t.late THEN $2 ELSE $3 END,
    undoing = t.undoes,
    completed_at = CASE WHEN NOT t.undoes THEN t.now END,
    place = CASE WHEN t.undoes THEN t.now * 1000 + t.n END,
    deadline_at = CASE WHEN NOT t.undoes THEN r.deadline_at END,
    visible_at = NULL, waiting_for = NULL, awaits = NULL, held_due = NULL, paused_at = NULL, asked = NULL
FROM told t WHERE r.id = t.id
RETURNING r.id, r.queue, r.workflow, r.priority, r.undoing, r.parent_id IS NOT NULL AS child, r.dag_id;

-- name: beats
-- The last beats of all other workers that live, for whoever watches over them.
SELECT id, beat_at, lease_ms, process FROM {schema}.workers WHERE state <> 'dead' AND id <> $1;

-- name: expire
-- The leases of workers whose processes are known to be gone are over.
UPDATE {schema}.workers SET expires_at = 0 WHERE id = ANY($1::uuid[]) AND state <> 'dead';

-- name: bury
-- Workers silent beyond their lease are dead, but only those of $2, if that names any: the server's clock may have
-- stepped. From here on their heartbeats are refused.
UPDATE {schema}.workers SET state = 'dead'
WHERE expires_at < {now} AND state <> 'dead' AND id <> $1 AND ($2::uuid[] IS NULL OR id = ANY($2::uuid[])) RETURNING id;

-- name: lock_lost
-- A bounded batch of runs that name no living worker. Only to lock them: a row that somebody changed since this
-- statement began is looked at again as it is by now, but the workers are still seen as they were then; one that was
-- reaped and claimed meanwhile, by a worker that has come since, would be taken for lost.
SELECT r.id FROM {schema}.runs r
WHERE r.worker IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM {schema}.workers w WHERE w.id = r.worker AND w.state <> 'dead')
ORDER BY r.id LIMIT $1
FOR NO KEY UPDATE OF r SKIP LOCKED;

-- name: reap
-- Of runs locked in this transaction, those that name no living worker go back in line, or end as dead letters, which
-- undoes nothing. Losses count since the last new record, so that a month-long run survives daily deploys. A step of a
-- dag run that is a dead letter is only named: with it its dag run fails, which has to be locked for that.
WITH counted AS MATERIALIZED (
    SELECT r.id, r.dag_id, row_number() OVER (ORDER BY r.id) AS n, {now} AS now,
           CASE WHEN (SELECT true FROM {schema}.steps s WHERE s.run_id = r.id AND s.claim = r.claim LIMIT 1)
                THEN 1 ELSE r.losses + 1 END AS losses
    FROM unnest($1::uuid[]) AS u(id) JOIN {schema}.runs r ON r.id = u.id
    WHERE r.worker IS NOT NULL
      AND NOT EXISTS (SELECT 1 FROM {schema}.workers w WHERE w.id = r.worker AND w.state <> 'dead')
), moved AS (
    UPDATE {schema}.runs r
    SET worker = NULL, token = NULL, losses = c.losses,
        status = CASE WHEN c.losses >= $2 THEN 'failed' WHEN r.undoing THEN 'compensating' ELSE 'queued' END,
        reason = CASE WHEN c.losses >= $2 THEN 'workers_lost' ELSE r.reason END,
        error = CASE WHEN c.losses >= $2 THEN $3 ELSE r.error END,
        asked = CASE WHEN c.losses < $2 THEN r.asked END,
        completed_at = CASE WHEN c.losses >= $2 THEN c.now END,
        place = CASE WHEN c.losses < $2 THEN c.now * 1000 + c.n END,
        visible_at = CASE WHEN c.losses < $2 THEN r.deadline_at END
    FROM counted c WHERE r.id = c.id AND (c.dag_id IS NULL OR c.losses < $2)
    RETURNING r.id, r.queue, r.workflow, r.priority, r.place IS NOT NULL AS ready, r.parent_id IS NOT NULL AS child
)
SELECT id, queue, workflow, priority, ready, child, NULL AS dag_id FROM moved
UNION ALL
SELECT id, NULL, NULL, NULL, false, false, dag_id FROM counted WHERE dag_id IS NOT NULL AND losses >= $2;

-- name: forget_dead
-- Dead workers with nothing left to reap.
DELETE FROM {schema}.workers w WHERE w.state = 'dead'
AND NOT EXISTS (SELECT 1 FROM {schema}.runs r WHERE r.worker = w.id);
