-- Glances: what people who watch ask for, again and again, beside those who work. Each looks at no more rows than it is told
-- to, however many there are; none reads a payload that it was not asked for.

-- name: glance_parents
-- The runs above one ($1), the nearest first, up to $2.
WITH RECURSIVE ancestors AS (
    SELECT parent_id, 1 AS n FROM {schema}.runs WHERE id = $1::uuid
    UNION ALL
    SELECT r.parent_id, a.n + 1 FROM ancestors a {join} {schema}.runs r ON r.id = a.parent_id WHERE a.n < $2::integer
)
SELECT parent_id::text FROM ancestors WHERE parent_id IS NOT NULL ORDER BY n;

-- name: glance_mailbox
-- Signals that a run ($1) has not taken, the oldest first, up to $2; large values ($3 bytes) are left out.
SELECT m.id::text, name, sent_at, delivered, octet_length(value) AS size,
       CASE WHEN octet_length(value) <= $3::bigint THEN value END AS value, format
FROM {schema}.mailbox m WHERE run_id = $1 AND kind = 'signal' ORDER BY m.id LIMIT $2;

-- name: glance_steps
-- A page of the records of a run ($1), from one ($2, $3) on, up to $4; outputs and arguments of more than $5 bytes are left
-- out, and how large they are is told.
SELECT branch, position, seq, name, kind, status, CASE WHEN octet_length(output) <= $5::bigint THEN output END AS output, error,
       CASE WHEN octet_length(arguments) <= $5::bigint THEN arguments END AS arguments, attempts, started_at, completed_at,
       line, format, undo, claim, losses, octet_length(output) AS output_size, octet_length(arguments) AS arguments_size
FROM {schema}.steps WHERE run_id = $1 AND (branch, position) > ($2, $3) ORDER BY branch, position LIMIT $4;

-- name: glance_tries
-- Failed tries of the steps of a run ($1), and of the run itself, from a step ($2, $3) on, up to $4; errors of more than $5
-- bytes are left out.
SELECT branch, position, name, attempt, number, CASE WHEN octet_length(error) <= $5::bigint THEN error END AS error,
       started_at, completed_at, format, claim
FROM {schema}.tries WHERE run_id = $1 AND (branch, position) > ($2, $3)
ORDER BY branch, position, attempt, number LIMIT $4;

-- name: glance_step
-- One record of a run, with all that it holds.
SELECT output, arguments, error, format FROM {schema}.steps WHERE run_id = $1 AND branch = $2 AND position = $3 LIMIT 1;
