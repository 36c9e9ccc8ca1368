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

-- name: glance_stream(run_id, name, low, high, large bigint)
-- Items of a stream between two numbers; values larger than this (`large` bytes) are left out, and only measured.
SELECT number, attempt, restarted, CASE WHEN octet_length(value) <= :large THEN value END AS value, format, sent_at,
       octet_length(value) AS size
FROM {stream_items} WHERE run_id = :run_id AND name = :name AND number > :low AND number <= :high ORDER BY number;

-- name: glance_step(run_id, branch, position)
-- One record of a run, with all that it holds.
SELECT output, arguments, error, format FROM {steps} WHERE run_id = :run_id AND branch = :branch AND position = :position LIMIT 1;

-- name: glance_runs(workflow, status, queue, before, reason, key, most, since, older, far, tag)
-- The statements that find runs are given all filters, walk `far` rows along an index from the newest back (or, with the
-- words in braces the other way round, from the oldest on), and stop when they have `most`. They bring ids, and whether the
-- run is a dag run under way, which may be shown otherwise than its row says. The walk is a query of its own with an order;
-- the one around it has none, for SQLite would then walk to the end and sort. It passes rows on as they come.
-- This one goes along the ids of all runs.
SELECT r.id, r.status = 'running' AND r.graph IS NOT NULL AS dag
FROM (SELECT id, workflow, status, queue, reason, key, debounced, created_at, graph, dag_id FROM {runs}
      WHERE id {beyond} COALESCE(:before, '{edge}') ORDER BY id {direction} LIMIT :far) AS r
WHERE r.dag_id IS NULL
  AND (:workflow IS NULL OR r.workflow = :workflow)
  AND (:status IS NULL OR r.status = :status)
  AND (:queue IS NULL OR r.queue = :queue)
  AND (:reason IS NULL OR r.reason = :reason)
  AND (:key IS NULL OR r.key = :key OR r.debounced = :key)
  AND (:since IS NULL OR r.created_at >= {now} - :since)
  AND (:older IS NULL OR r.created_at < {now} - :older)
  AND :tag IS NULL
LIMIT :most;

-- name: glance_at_rest(workflow, status, queue, before, reason, key, most, since, older, far, tag)
-- Along the index of a status in which runs stay.
SELECT r.id, 0 AS dag
FROM (SELECT id, workflow, queue, reason, key, debounced, created_at FROM {runs} {index runs_at_rest}
      WHERE status = :status AND status IN ('waiting', 'paused', 'failed', 'cancelled', 'compensating', 'compensated')
        AND dag_id IS NULL
        AND id {beyond} COALESCE(:before, '{edge}') ORDER BY id {direction} LIMIT :far) AS r
WHERE (:workflow IS NULL OR r.workflow = :workflow)
  AND (:queue IS NULL OR r.queue = :queue)
  AND (:reason IS NULL OR r.reason = :reason)
  AND (:key IS NULL OR r.key = :key OR r.debounced = :key)
  AND (:since IS NULL OR r.created_at >= {now} - :since)
  AND (:older IS NULL OR r.created_at < {now} - :older)
  AND :tag IS NULL
LIMIT :most;

-- name: glance_running(workflow, status, queue, before, reason, key, most, since, older, far, tag)
-- Those that workers hold, and dag runs under way: few beside all others.
SELECT r.id, r.graph IS NOT NULL AS dag
FROM (SELECT w.id FROM (SELECT id FROM {runs} {index runs_worker} WHERE worker IS NOT NULL LIMIT :far) AS w
      UNION
      SELECT d.id FROM (SELECT id FROM {runs} {index runs_dags}
                        WHERE status = 'running' AND graph IS NOT NULL AND dag_id IS NULL
                        ORDER BY id {direction} LIMIT :far) AS d) AS h
{join} {runs} r ON r.id = h.id
WHERE r.dag_id IS NULL AND r.status = :status
  AND r.id {beyond} COALESCE(:before, '{edge}')
  AND (:workflow IS NULL OR r.workflow = :workflow)
  AND (:queue IS NULL OR r.queue = :queue)
  AND (:reason IS NULL OR r.reason = :reason)
  AND (:key IS NULL OR r.key = :key OR r.debounced = :key)
  AND (:since IS NULL OR r.created_at >= {now} - :since)
  AND (:older IS NULL OR r.created_at < {now} - :older)
  AND :tag IS NULL
ORDER BY r.id {direction} LIMIT :most;

-- name: glance_tagged(workflow, status, queue, before, reason, key, most, since, older, far, tag)
-- Along the runs that have a tag.
SELECT r.id, r.status = 'running' AND r.graph IS NOT NULL AS dag
FROM (SELECT run_id FROM {run_tags} WHERE tag = :tag AND run_id {beyond} COALESCE(:before, '{edge}')
      ORDER BY run_id {direction} LIMIT :far) AS t
{join} {runs} r ON r.id = t.run_id
WHERE r.dag_id IS NULL
  AND (:workflow IS NULL OR r.workflow = :workflow)
  AND (:status IS NULL OR r.status = :status)
  AND (:queue IS NULL OR r.queue = :queue)
  AND (:reason IS NULL OR r.reason = :reason)
  AND (:key IS NULL OR r.key = :key OR r.debounced = :key)
  AND (:since IS NULL OR r.created_at >= {now} - :since)
  AND (:older IS NULL OR r.created_at < {now} - :older)
LIMIT :most;

-- name: glance_keyed(workflow, status, queue, before, reason, key, most, since, older, far, tag)
-- By a key, of every workflow that is known: the key of a run, or one that starts are debounced by. Of the latter those
-- that have begun are in no index.
SELECT r.id, r.status = 'running' AND r.graph IS NOT NULL AS dag
FROM (SELECT k.id FROM (SELECT DISTINCT name FROM {definitions}) AS d
      {join} {runs} k ON k.workflow = d.name AND k.key = :key AND k.key IS NOT NULL
      UNION
      SELECT k.id FROM (SELECT DISTINCT name FROM {definitions}) AS d
      {join} {runs} k ON k.workflow = d.name AND k.debounced = :key AND k.debounced IS NOT NULL
          AND k.started_at IS NULL AND k.completed_at IS NULL) AS h
{join} {runs} r ON r.id = h.id
WHERE r.dag_id IS NULL AND r.id {beyond} COALESCE(:before, '{edge}')
  AND (:workflow IS NULL OR r.workflow = :workflow)
  AND (:status IS NULL OR r.status = :status)
  AND (:queue IS NULL OR r.queue = :queue)
  AND (:reason IS NULL OR r.reason = :reason)
  AND (:since IS NULL OR r.created_at >= {now} - :since)
  AND (:older IS NULL OR r.created_at < {now} - :older)
  AND :far IS NOT NULL AND :tag IS NULL
ORDER BY r.id {direction} LIMIT :most;

-- name: glance_queued(workflow, status, queue, before, reason, key, most, since, older, far, tag)
-- Those that are ready or put off, found by the indexes of both: `far` of each at most. The last column says whether these
-- were all; if not, others of the same status are found only along the ids.
WITH ready {once} (
    SELECT a.id FROM (SELECT id FROM {runs} {index runs_ready} WHERE place IS NOT NULL AND losses < 2 LIMIT :far) AS a
    UNION ALL
    SELECT b.id FROM (SELECT id FROM {runs} {index runs_suspect} WHERE place IS NOT NULL AND losses >= 2 LIMIT :far) AS b
), due {once} (
    SELECT id FROM {runs} {index runs_due} WHERE visible_at IS NOT NULL ORDER BY visible_at LIMIT :far
)
SELECT r.id, 0 AS dag, (SELECT count(*) FROM ready) < :far AND (SELECT count(*) FROM due) < :far AS complete
FROM (SELECT id FROM ready UNION SELECT id FROM due) AS h {join} {runs} r ON r.id = h.id
WHERE r.dag_id IS NULL AND r.status = :status
  AND r.id {beyond} COALESCE(:before, '{edge}')
  AND (:workflow IS NULL OR r.workflow = :workflow)
  AND (:queue IS NULL OR r.queue = :queue)
  AND (:reason IS NULL OR r.reason = :reason)
  AND (:key IS NULL OR r.key = :key OR r.debounced = :key)
  AND (:since IS NULL OR r.created_at >= {now} - :since)
  AND (:older IS NULL OR r.created_at < {now} - :older)
  AND :tag IS NULL
ORDER BY r.id {direction} LIMIT :most;

-- name: glance_end_runs(before, far)
-- The last of `far` runs from one back, and how many there are, up to so many.
SELECT {last}(w.id), count(*) AS seen
FROM (SELECT id FROM {runs} WHERE id {beyond} COALESCE(:before, '{edge}') ORDER BY id {direction} LIMIT :far) AS w;

-- name: glance_end_at_rest(before, far, status)
-- The same of those that stand in a status.
SELECT {last}(w.id), count(*) AS seen
FROM (SELECT id FROM {runs} {index runs_at_rest}
      WHERE status = :status AND status IN ('waiting', 'paused', 'failed', 'cancelled', 'compensating', 'compensated')
        AND dag_id IS NULL
        AND id {beyond} COALESCE(:before, '{edge}') ORDER BY id {direction} LIMIT :far) AS w;

-- name: glance_end_tagged(before, far, tag)
-- The same of those that have a tag.
SELECT {last}(w.run_id), count(*) AS seen
FROM (SELECT run_id FROM {run_tags} WHERE tag = :tag AND run_id {beyond} COALESCE(:before, '{edge}')
      ORDER BY run_id {direction} LIMIT :far) AS w;

-- name: glance_dags_as(status, before, most, far)
-- Dag runs that are shown with a status which their rows do not have, among the newest `far` under way.
SELECT d.id, d.status, d.waiting_for, d.due_at
FROM (SELECT id FROM {runs} {index runs_dags}
      WHERE status = 'running' AND graph IS NOT NULL AND dag_id IS NULL AND id {beyond} COALESCE(:before, '{edge}')
      ORDER BY id {direction} LIMIT :far) AS r
{join} {dags_shown} d ON d.id = r.id
WHERE d.status = :status ORDER BY d.id {direction} LIMIT :most;

-- name: glance_id_ends(digits, far, most)
-- Runs whose ids end like this, among the newest `far`. No index knows how ids end.
SELECT r.id FROM (SELECT id FROM {runs} ORDER BY id DESC LIMIT :far) AS n {join} {runs} r ON r.id = n.id
WHERE substr(replace(n.id, '-', ''), -length(:digits)) = :digits AND r.dag_id IS NULL LIMIT :most;

-- name: glance_inputs(u(id uuid), one text, other text, largest)
-- Which of these runs have one of two texts in their inputs, and which of them cannot be looked into, because they passed
-- through a codec (2) or are larger than so many bytes (1); 0: it was found.
SELECT r.id, CASE WHEN r.format <> 1 THEN 2 WHEN octet_length(r.input) > :largest THEN 1 ELSE 0 END AS closed
FROM {rows u} {join} {runs} r ON r.id = u.id
WHERE CASE WHEN r.format <> 1 OR octet_length(r.input) > :largest THEN true
           ELSE instr(r.input, :one) > 0 OR instr(r.input, :other) > 0 END;

-- name: glance_depths(most)
-- Of each queue: how many runs workers hold, how many wait, how many were put off; counted up to `most` of each over all
-- queues.
SELECT queue, 'running' AS stands, count(*) AS number
FROM (SELECT queue FROM {runs} {index runs_worker} WHERE worker IS NOT NULL LIMIT :most) AS a GROUP BY queue
UNION ALL
SELECT queue, 'waiting', count(*)
FROM (SELECT queue FROM {runs} {index runs_at_rest}
      WHERE status = 'waiting' AND status IN ('waiting', 'paused', 'failed', 'cancelled', 'compensating', 'compensated')
        AND dag_id IS NULL
      ORDER BY id DESC LIMIT :most) AS b GROUP BY queue
UNION ALL
SELECT queue, CASE WHEN visible_at > {now} THEN 'delayed' ELSE 'due' END AS stands, count(*)
FROM (SELECT queue, visible_at, place, status FROM {runs} {index runs_due}
      WHERE visible_at IS NOT NULL ORDER BY visible_at LIMIT :most) AS c
WHERE place IS NULL AND status = 'queued' GROUP BY queue, stands;
