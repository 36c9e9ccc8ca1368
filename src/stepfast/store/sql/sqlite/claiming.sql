-- Claims: a worker takes runs, and the histories that come along. What is chosen is still so when it is taken: nobody comes
-- in between two statements of the writer.

-- name: ready
-- The first runs of one lane, oldest first. Whether a run expired unclaimed is asked here too, because the sweep that
-- ends it may be late. The marks of the protocol are not needed: a row that is ready no more leaves nothing to walk over.
-- A gated queue (paused, or limited) gives nothing: that is asked once, before anything is looked for.
SELECT json_group_array(json_array(place, row, version, size)) FROM (
    SELECT place, rowid AS row, version, octet_length(input) AS size FROM {prefix}runs
    WHERE (SELECT paused OR limited FROM {prefix}queues WHERE name = ?1) IS NOT 1
      AND queue = ?1 AND workflow = ?2 AND priority = ?3 AND place IS NOT NULL AND losses < 2
      AND (expires_at IS NULL OR started_at IS NOT NULL OR expires_at > {now})
      AND (deadline_at IS NULL OR deadline_at > {now})
    ORDER BY place LIMIT ?4
);

-- name: suspects
-- Runs that workers have died with, in the order in which they are taken: those with the fewest losses first, so that the
-- likely innocent are not kept waiting nor taken along by a likely culprit.
SELECT losses, place, rowid, version, workflow, queue, octet_length(input) FROM {prefix}runs
WHERE place IS NOT NULL AND losses >= 2 AND (deadline_at IS NULL OR deadline_at > {now})
  AND queue NOT IN (SELECT name FROM {prefix}queues WHERE paused OR limited)
ORDER BY losses, priority DESC, place;

-- name: count_suspects
-- How many of them are ready, by queue and workflow.
SELECT queue, workflow, count(*) FROM {prefix}runs WHERE place IS NOT NULL AND losses >= 2
GROUP BY queue, workflow ORDER BY queue, workflow;

-- name: log_claims_of
-- Whose the claims of some runs (a list of rows) were before, where that is another worker than the one that takes them now.
INSERT OR IGNORE INTO {prefix}claims (run_id, claim, worker)
SELECT r.id, r.claim, r.executed_by FROM json_each(?1) AS j CROSS JOIN {prefix}runs r ON r.rowid = j.value
WHERE r.executed_by <> ?2;

-- name: take
-- Hand runs to a worker: a new claim number each, and ready no more. Here and everywhere a run that is being undone has
-- the one status 'compensating', whether it is ready, is executed or waits.
WITH picked(row, worker, token, version) AS (VALUES (?, ?, ?, ?))
UPDATE {prefix}runs AS r
SET status = CASE WHEN r.undoing THEN 'compensating' ELSE 'running' END, worker = p.worker, executed_by = p.worker, token = p.token, version = p.version, claim = {next_claim}, place = NULL,
    visible_at = NULL, waiting_for = NULL, attempt = max(r.attempt, r.first_attempt), started_at = COALESCE(r.started_at, {now})
FROM picked AS p WHERE r.rowid = p.row;

-- name: taken
-- What the call of a token took: this one, or an earlier one whose reply was lost on the way.
SELECT json_group_array(json_array(
    rowid, id, workflow, queue, priority, claim, attempt, first_attempt, losses, wakes, format, input, max_attempts,
    timeout_ms, deadline_at - {now}, started_at, 0, NULL, asked, ends, undoing, parent_id, {now}, dag_id, dag_step, graph,
    ready_at, failing, reason, seed, trace, unrecorded_losses))
FROM {prefix}runs WHERE worker = ? AND token = ?;

-- name: history
-- The first records of a claimed run; the reader stops when it has enough.
SELECT branch, position, seq, name, kind, status, output, error, arguments, attempts, started_at, completed_at, line, format,
       undo
FROM {prefix}steps WHERE run_id = ? ORDER BY branch, position;

-- name: history_tries
-- Failed tries of the present attempt, so that a step which waited for its retry knows how many it has had, and
-- when the next is due if something else woke the run before.
SELECT branch, position, count(*), COALESCE(max(due_at), 0) FROM {prefix}tries
WHERE run_id = ? AND attempt = ? AND position >= 0 GROUP BY branch, position;
