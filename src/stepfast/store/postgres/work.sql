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
-- A worker has left in good order.
DELETE FROM {schema}.workers WHERE id = ANY($1::uuid[]);

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
WHERE expires_at < {now} AND state <> 'dead' AND id <> $1 AND ($2::uuid[] IS NULL OR id = ANY($2::uuid[])) RETURNING id::text AS id;

-- name: forget_dead
-- Dead workers with nothing left to reap.
DELETE FROM {schema}.workers w WHERE w.state = 'dead'
AND NOT EXISTS (SELECT 1 FROM {schema}.runs r WHERE r.worker = w.id);
