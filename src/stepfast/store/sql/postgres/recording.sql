-- The journal: what workers record of their runs. Every statement here is hot; a test looks at the plan of each on a full
-- table.

-- name: flush
-- What the journal usually brings, in one round trip: completed steps of the main branch, tried once, and completed
-- runs; flush_telling also leaves the ends of children for their parents, as tell_parents does. The
-- fence locks the run rows in id order and steps over those that are locked. All or nothing: a run that did not
-- pass the fence, or a server that is not the one we know ($15), is a division by zero, a position that was recorded
-- before is a unique violation; either undoes it all, and the batch is written statement by statement instead. Without
-- ON CONFLICT each record is one entry less in the log of the server, which confirms every row of such an insert. Two
-- words keep it linear, because the planner takes every unnest for 10 rows: `IS TRUE` keeps the IN a hashed subplan
-- rather than a join, and `IS NOT DISTINCT FROM` keeps the fence from looking through all that the worker holds, by the
-- index on worker, for each of its rows. Columns come as texts (postgres/flush.py); `given` is asked by subqueries and
-- not joined, for a join would carry all of it along with each row of the fence.
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
    RETURNING 1
), completed AS (
    UPDATE {schema}.runs r
    SET status = 'completed', output = c.output, output_format = $14::smallint, error = NULL, reason = NULL,
        worker = NULL, token = NULL, asked = NULL, losses = 0, completed_at = (SELECT now FROM clock)
    FROM unnest((SELECT ended FROM given), string_to_array($13, chr(31), chr(30))) AS c(id, output)
    WHERE r.id = c.id AND (c.id IN (SELECT id FROM fence)) IS TRUE
    RETURNING 1
-- only in flush_telling
    , r.parent_id, r.reply_to, r.output
), told AS (
    INSERT INTO {schema}.mailbox (run_id, id, kind, name, value, format, sent_at, delivered)
    SELECT c.parent_id, c.reply_to, 'child', 'completed', c.output, $14::smallint, clock.now, false
    FROM completed c CROSS JOIN clock
    WHERE c.reply_to IS NOT NULL
    ORDER BY c.parent_id, c.reply_to
    ON CONFLICT (run_id, id) DO UPDATE
    SET kind = excluded.kind, name = excluded.name, value = excluded.value, error = NULL, format = excluded.format,
        sent_at = excluded.sent_at, delivered = false
-- end
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

-- name: record_steps
-- Outcomes of steps whose runs passed the fence in this transaction. An open record (`waiting`) is replaced by the
-- outcome, with either author, and by nothing else: what was decided once stays decided, and an outcome is final.
INSERT INTO {schema}.steps (run_id, claim, branch, position, seq, name, kind, status, output, error, arguments, attempts,
                            line, format, undo, losses, mail, started_at, completed_at)
SELECT DISTINCT ON (s.run_id, s.branch, s.position)
       s.run_id, s.claim, s.branch, s.position, s.seq, s.name, s.kind, s.status, s.output, s.error, s.arguments,
       s.attempts, s.line, s.format, s.undo, s.losses, s.mail, s.started_at, s.completed_at
FROM unnest($1::uuid[], $2::integer[], $3::text[], $4::integer[], $5::integer[], $6::text[], $7::text[], $8::text[],
            $9::text[], $10::text[], $11::text[], $12::integer[], $13::text[], $14::smallint[], $15::text[],
            $16::integer[], $17::uuid[], $18::bigint[], $19::bigint[]) WITH ORDINALITY
     AS s(run_id, claim, branch, position, seq, name, kind, status, output, error, arguments, attempts, line, format,
          undo, losses, mail, started_at, completed_at, n)
ORDER BY s.run_id, s.branch, s.position, (s.status = 'waiting'), s.n
ON CONFLICT (run_id, branch, position) DO UPDATE
SET claim = excluded.claim, seq = excluded.seq, name = excluded.name, kind = excluded.kind, status = excluded.status,
    output = excluded.output, error = excluded.error, arguments = excluded.arguments, attempts = excluded.attempts,
    line = excluded.line, format = excluded.format, undo = excluded.undo, losses = excluded.losses,
    mail = excluded.mail,
    started_at = excluded.started_at, completed_at = excluded.completed_at
WHERE steps.status = 'waiting' AND excluded.status <> 'waiting';
