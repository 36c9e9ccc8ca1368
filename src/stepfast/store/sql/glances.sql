-- Glances: what people who watch ask for, again and again, beside those who work. Each looks at no more rows than it is told
-- to, however many there are; none reads a payload that it was not asked for.

-- name: glance_parents(run_id uuid, most integer)
-- The runs above one (`run_id`), the nearest first, up to `most`.
WITH RECURSIVE ancestors AS (
    SELECT parent_id, 1 AS n FROM {runs} WHERE id = :run_id
    UNION ALL
    SELECT r.parent_id, a.n + 1 FROM ancestors a {join} {runs} r ON r.id = a.parent_id WHERE a.n < :most
)
SELECT parent_id::text FROM ancestors WHERE parent_id IS NOT NULL ORDER BY n;

-- name: glance_mailbox(run_id, most, large bigint)
-- Signals that a run (`run_id`) has not taken, the oldest first, up to `most`; large values (`large` bytes) are left out.
SELECT m.id::text, name, sent_at, delivered, octet_length(value) AS size,
       CASE WHEN octet_length(value) <= :large THEN value END AS value, format
FROM {mailbox} m WHERE run_id = :run_id AND kind = 'signal' ORDER BY m.id LIMIT :most;

-- name: glance_steps(run_id, branch, position, most, large bigint)
-- A page of the records of a run (`run_id`), from one (`branch`, `position`) on, up to `most`; outputs and arguments of more than `large` bytes are left
-- out, and how large they are is told.
SELECT branch, position, seq, name, kind, status, CASE WHEN octet_length(output) <= :large THEN output END AS output, error,
       CASE WHEN octet_length(arguments) <= :large THEN arguments END AS arguments, attempts, started_at, completed_at,
       line, format, undo, claim, losses, octet_length(output) AS output_size, octet_length(arguments) AS arguments_size
FROM {steps} WHERE run_id = :run_id AND (branch, position) > (:branch, :position) ORDER BY branch, position LIMIT :most;

-- name: glance_tries(run_id, branch, position, most, large bigint)
-- Failed tries of the steps of a run (`run_id`), and of the run itself, from a step (`branch`, `position`) on, up to `most`; errors of more than `large`
-- bytes are left out.
SELECT branch, position, name, attempt, number, CASE WHEN octet_length(error) <= :large THEN error END AS error,
       started_at, completed_at, format, claim
FROM {tries} WHERE run_id = :run_id AND (branch, position) > (:branch, :position)
ORDER BY branch, position, attempt, number LIMIT :most;

-- name: glance_step(run_id, branch, position)
-- One record of a run, with all that it holds.
SELECT output, arguments, error, format FROM {steps} WHERE run_id = :run_id AND branch = :branch AND position = :position LIMIT 1;
