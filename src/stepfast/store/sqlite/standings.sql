-- Where runs stand: read, decided by the functions of model/, and written back, in the writer's transaction. {standing} are
-- the columns of a standing, in its order (model/standing.py).

-- name: lock_runs
-- Runs by their ids. Nobody comes in between: there is nothing to lock.
SELECT json_group_array(json_array({now}, {standing}))
FROM json_each(?) AS u CROSS JOIN {prefix}runs AS r ON r.id = u.value;

-- name: lock_free
-- The same: nobody holds a row here.
SELECT json_group_array(json_array({now}, {standing}))
FROM json_each(?) AS u CROSS JOIN {prefix}runs AS r ON r.id = u.value;

-- name: change
-- What was decided of runs. Payloads are not read for a decision: they are written only if they were decided, too.
WITH c(id, status, reason, waiting_for, asked, held, claim, place, visible_at, deadline_at, expires_at, held_due,
       paused_at, wakes, ends, awaits, linger_ms, attempt, first_attempt, losses, undoing, failing, pending, met,
       ready_at, completed_at, version, forget, has_output, output, output_format, has_error, error)
AS (VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?))
UPDATE {prefix}runs AS r
SET status = c.status, reason = c.reason, waiting_for = c.waiting_for, asked = c.asked,
    worker = CASE WHEN c.held THEN r.worker END, token = CASE WHEN c.held THEN r.token END, claim = c.claim,
    place = c.place, visible_at = c.visible_at, deadline_at = c.deadline_at, expires_at = c.expires_at,
    held_due = c.held_due, paused_at = c.paused_at, wakes = c.wakes, ends = c.ends, awaits = c.awaits,
    linger_ms = c.linger_ms, attempt = c.attempt, first_attempt = c.first_attempt, losses = c.losses,
    undoing = c.undoing, failing = c.failing, pending = c.pending, met = c.met, ready_at = c.ready_at,
    completed_at = c.completed_at, version = c.version, forget = c.forget,
    output = CASE WHEN c.has_output THEN c.output ELSE r.output END,
    output_format = CASE WHEN c.has_output THEN c.output_format ELSE r.output_format END,
    error = CASE WHEN c.has_error THEN c.error ELSE r.error END
FROM c WHERE r.id = c.id;

-- name: traces
-- What other rows tell of runs that are about to be cancelled: whether they have completed something that can be undone;
-- whether their last attempt failed and nobody has claimed them since; and of those that workers died with, a step that
-- was seen under way and has no outcome, and the last one that has.
SELECT r.id,
       EXISTS (SELECT 1 FROM {prefix}steps s WHERE s.run_id = r.id AND s.undo IS NOT NULL AND s.status = 'completed'),
       EXISTS (SELECT 1 FROM {prefix}tries t
               WHERE t.run_id = r.id AND t.branch = '' AND t.position = -1 AND t.attempt = r.attempt - 1
                 AND t.claim = r.claim),
       CASE WHEN r.losses > 1 THEN (
           SELECT p.name FROM {prefix}progress p
           WHERE p.run_id = r.id AND NOT EXISTS (SELECT 1 FROM {prefix}steps s WHERE s.run_id = p.run_id
                                                 AND s.branch = p.branch AND s.position = p.position)
           ORDER BY p.updated_at DESC LIMIT 1) END,
       CASE WHEN r.losses > 1 THEN (
           SELECT s.name FROM {prefix}steps s WHERE s.run_id = r.id ORDER BY s.seq DESC LIMIT 1) END
FROM json_each(?) AS u CROSS JOIN {prefix}runs AS r ON r.id = u.value;

-- name: untake
-- Signals that records took which are about to be forgotten go back into the mailbox, before all others.
INSERT INTO {prefix}mailbox (run_id, id, kind, name, value, format, sent_at, delivered)
WITH address(run_id, branch, position) AS (VALUES (?, ?, ?))
SELECT s.run_id, s.mail, 'signal', s.name, s.output, s.format, 0, 1
FROM address CROSS JOIN {prefix}steps AS s
    ON s.run_id = address.run_id AND s.branch = address.branch AND s.position = address.position
WHERE s.mail IS NOT NULL AND s.kind = 'signal' AND s.status = 'completed'
ON CONFLICT DO NOTHING;

-- name: forget
-- Records that the next attempt is to make anew.
WITH address(run_id, branch, position) AS (VALUES (?, ?, ?))
DELETE FROM {prefix}steps WHERE (run_id, branch, position) IN (SELECT run_id, branch, position FROM address);

-- name: inherit
-- Runs that go on as another: the successor has their parent, their tags, and their count of wakes: at none it would not
-- look for the mail that it inherits.
WITH pair(ended, successor) AS (VALUES (?, ?))
UPDATE {prefix}runs AS s
SET parent_id = r.parent_id, parent_branch = r.parent_branch, parent_position = r.parent_position,
    reply_to = r.reply_to, tags = r.tags, concurrency_key = r.concurrency_key, wakes = r.wakes, origin_id = COALESCE(s.origin_id, r.id)
FROM pair CROSS JOIN {prefix}runs AS r ON r.id = pair.ended
WHERE s.id = pair.successor;

-- name: keep_traces
-- What observers leave for whoever takes these runs next.
WITH kept(id, trace) AS (VALUES (?, ?))
UPDATE {prefix}runs AS r SET trace = kept.trace FROM kept WHERE r.id = kept.id;

-- name: inherit_tags
-- The same for finding them by their tags.
INSERT INTO {prefix}run_tags (tag, run_id)
WITH pair(ended, successor) AS (VALUES (?, ?))
SELECT tag.value, pair.successor FROM pair CROSS JOIN {prefix}runs AS r ON r.id = pair.ended
CROSS JOIN json_each(CASE WHEN NOT json_valid(r.tags) THEN '[]' WHEN json_type(r.tags) = 'array' THEN r.tags ELSE '[]' END) AS tag
WHERE r.tags IS NOT NULL
ON CONFLICT DO NOTHING;

-- name: inherit_mail
-- Signals that the ended run did not take are its successor's, and so is a cancellation on its way.
WITH pair(ended, successor) AS (VALUES (?, ?))
UPDATE {prefix}mailbox AS m SET run_id = pair.successor
FROM pair WHERE m.run_id = pair.ended AND m.kind IN ('signal', 'cancel');

-- name: cancel_heir
-- A cancellation (whose, of which run) that its run left unheard when it went on as another.
INSERT INTO {prefix}mailbox (run_id, id, kind, name, format, sent_at, delivered)
WITH pair(successor, ended) AS (VALUES (?, ?))
SELECT successor, ended, 'cancel', '', 1, {now}, 0 FROM pair
WHERE true
ON CONFLICT DO NOTHING;

-- name: lock_own
-- Runs that a worker gives back ([run, claim] of each), if they are its own.
SELECT json_group_array(json_array({now}, {standing}))
FROM json_each(?2) AS u CROSS JOIN {prefix}runs AS r ON r.id = json_extract(u.value, '$[0]')
WHERE r.worker = ?1 AND r.claim = json_extract(u.value, '$[1]');

-- name: lock_held
-- What names a worker that leaves.
SELECT json_group_array(json_array({now}, {standing})) FROM {prefix}runs AS r WHERE r.worker = ?;

-- name: lock_due
-- Runs whose timer has gone off. What is paused only if it is late.
SELECT json_group_array(json_array({now}, {standing})) FROM (
    SELECT rowid AS row FROM {prefix}runs WHERE visible_at <= {now} AND (status <> 'paused' OR deadline_at <= {now})
    ORDER BY visible_at LIMIT ?
) AS due CROSS JOIN {prefix}runs AS r ON r.rowid = due.row;

-- name: lock_lost
-- A bounded batch of runs that name no living worker.
SELECT r.id FROM {prefix}runs AS r INDEXED BY {prefix}runs_worker
WHERE r.worker IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM {prefix}workers w WHERE w.id = r.worker AND w.state <> 'dead')
LIMIT ?;

-- name: lost
-- Of these runs, those that name no living worker.
SELECT json_group_array(json_array({now}, {standing}))
FROM json_each(?) AS u CROSS JOIN {prefix}runs AS r ON r.id = u.value
WHERE r.worker IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM {prefix}workers w WHERE w.id = r.worker AND w.state <> 'dead');

-- name: recorded
-- Those of these runs whose present claim has made a record.
SELECT r.id FROM json_each(?) AS u CROSS JOIN {prefix}runs AS r ON r.id = u.value
WHERE EXISTS (SELECT 1 FROM {prefix}steps s WHERE s.run_id = r.id AND s.claim = r.claim);
