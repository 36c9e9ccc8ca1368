-- Mailboxes, operators' wishes, and what runs are to each other. All but the two looks into mailboxes run in the writer's
-- transaction: what was looked at is still so when it is changed.

-- name: counters
-- What a look at mailboxes needs to know first, so that the mail it finds is never older than the numbers.
SELECT json_group_array(json_array(r.id, r.wakes, r.ends))
FROM json_each(?) AS asked CROSS JOIN {prefix}runs AS r ON r.id = asked.value;

-- name: mail
-- What lies in the mailboxes of some runs, delivered or not, and is new to who looks; a cancellation is not for the run's
-- own eyes. Each look is [run, {name: how many} or null for all]; then what was brought before, and how many bytes may
-- come. Of each name the first comes in any case, or the run would sleep over it. A large one is asked for by itself.
SELECT json_group_array(json_array(sent_at, run_id, id, kind, name, CASE WHEN size <= {large} THEN value END, error, format,
                                   size > {large}))
FROM (
    SELECT b.*, row_number() OVER pile AS n, sum(b.size) OVER pile - b.size AS before FROM (
        SELECT m.*, COALESCE({size}(m.value), 0) + COALESCE({size}(m.error), 0) AS size,
               CASE WHEN m.kind = 'child' OR json_type(asked.value, '$[1]') = 'null' THEN 2147483647
                    ELSE (SELECT wanted.value FROM json_each(asked.value, '$[1]') AS wanted WHERE wanted.key = m.name)
               END AS most
        FROM json_each(?) AS asked CROSS JOIN {prefix}mailbox AS m ON m.run_id = json_extract(asked.value, '$[0]')
        WHERE m.kind IN ('signal', 'child') AND m.id NOT IN (SELECT seen.value FROM json_each(?) AS seen)
    ) AS b
    WHERE b.most IS NOT NULL
    WINDOW pile AS (PARTITION BY b.run_id, b.kind, CASE WHEN b.kind = 'signal' THEN b.name END ORDER BY b.sent_at, b.id)
)
WHERE n = 1 OR (n <= most AND before < ?);

-- name: letter
-- The value of one.
SELECT value FROM {prefix}mailbox WHERE run_id = ? AND id = ?;

-- name: count_signals
-- How many signals lie in a mailbox, counted up to a limit.
SELECT count(*) FROM (SELECT 1 FROM {prefix}mailbox WHERE run_id = ? AND kind = 'signal' LIMIT ?);

-- name: standing
-- Where a run stands, for whoever is about to change that.
SELECT status, reason, worker, undoing, asked, queue, workflow, priority, waiting_for, place, held_due, ends, awaits,
       linger_ms, {now}, dag_id, graph, pending, failing, losses
FROM {prefix}runs WHERE id = ?;

-- name: last_steps
-- A step that was seen under way and has no outcome; and the last one that has.
SELECT (SELECT p.name FROM {prefix}progress p
        WHERE p.run_id = :run AND NOT EXISTS (SELECT 1 FROM {prefix}steps s WHERE s.run_id = p.run_id
                                              AND s.branch = p.branch AND s.position = p.position)
        ORDER BY p.updated_at DESC LIMIT 1),
       (SELECT s.name FROM {prefix}steps s WHERE s.run_id = :run ORDER BY s.seq DESC LIMIT 1);

-- name: go_on_first
-- A run that lost a worker since its last record is to be cancelled: it stands in line, marked, to come to a record first.
UPDATE {prefix}runs
SET asked = 'cancel', wakes = wakes + 1, status = 'queued', place = COALESCE(place, {now} * 1000), visible_at = deadline_at,
    waiting_for = NULL, awaits = NULL, held_due = NULL, paused_at = NULL
WHERE id = ?;

-- name: say_error
-- What is to be known of a run that ends.
UPDATE {prefix}runs SET error = ? WHERE id = ?;

-- name: send
-- Mail of which the run hears at once.
INSERT INTO {prefix}mailbox (run_id, id, kind, name, value, error, format, sent_at, delivered)
VALUES (?, ?, ?, ?, ?, ?, ?, {now}, 1)
ON CONFLICT DO NOTHING;

-- name: post
-- Mail left for a run that has not ended, for a sweep to deliver. One statement, which writes before anything was read: a
-- transaction that reads first may find that it is not allowed to write any more. Mail to a dag run is for its steps.
INSERT INTO {prefix}mailbox (run_id, id, kind, name, value, error, format, sent_at, delivered)
SELECT id, ?, ?, ?, ?, ?, ?, {now}, 0 FROM {prefix}runs
WHERE id = ? AND status NOT IN ('completed', 'failed', 'cancelled', 'compensated', 'skipped')
  AND (graph IS NULL OR dag_id IS NOT NULL)
ON CONFLICT DO NOTHING;

-- name: status
-- Where a run stands, for whoever posts mail.
SELECT status, reason, graph IS NOT NULL AND dag_id IS NULL FROM {prefix}runs WHERE id = ?;

-- name: wake
-- Signals have come. Who waits is ready; who is held while it waits acts on them when it goes on; all others only count.
UPDATE {prefix}runs
SET wakes = wakes + ?,
    status = CASE WHEN status = 'waiting' THEN 'queued' ELSE status END,
    place = CASE WHEN status = 'waiting' THEN {now} * 1000 ELSE place END,
    visible_at = CASE WHEN status = 'waiting' THEN deadline_at ELSE visible_at END,
    held_due = CASE WHEN status = 'paused' AND waiting_for IS NOT NULL THEN NULL ELSE held_due END,
    waiting_for = CASE WHEN status NOT IN ('waiting', 'paused') THEN waiting_for END,
    awaits = CASE WHEN status NOT IN ('waiting', 'paused') THEN awaits END
WHERE id = ?;

-- name: count_wakes
-- Signals have come for a step that waits for others: it acts on them when its turn has come.
UPDATE {prefix}runs SET wakes = wakes + ? WHERE id = ?;

-- name: undelivered
-- The oldest mail that was only inserted.
SELECT json_group_array(json_array(run_id, id, kind)) FROM (
    SELECT run_id, id, kind FROM {prefix}mailbox INDEXED BY {prefix}mailbox_undelivered
    WHERE delivered = 0 ORDER BY sent_at, run_id, id LIMIT ?
);

-- name: delivered
-- Mail that its run has heard of.
WITH letters(run_id, id) AS (VALUES (?, ?))
UPDATE {prefix}mailbox SET delivered = 1 WHERE (run_id, id) IN (SELECT run_id, id FROM letters);

-- name: take_mail
-- Mail that its run has taken, or that nobody can take.
WITH letters(run_id, id) AS (VALUES (?, ?))
DELETE FROM {prefix}mailbox WHERE (run_id, id) IN (SELECT run_id, id FROM letters);

-- name: count_ends
-- Ends of children have come.
UPDATE {prefix}runs SET ends = ends + ? WHERE id = ?;

-- name: linger
-- Enough of them to be woken: in a moment, so that those which follow on their heels do not wake it again.
UPDATE {prefix}runs SET visible_at = min(COALESCE(visible_at, {now} + linger_ms), {now} + linger_ms) WHERE id = ?;

-- name: stop_waiting
-- What a held run waited for has come: it goes on as soon as it is let go.
UPDATE {prefix}runs SET waiting_for = NULL, awaits = NULL, held_due = NULL WHERE id = ?;

-- name: make_ready
-- A run that nobody holds stands in line at once.
UPDATE {prefix}runs
SET status = CASE WHEN undoing THEN 'compensating' ELSE 'queued' END, place = {now} * 1000, waiting_for = NULL, awaits = NULL,
    held_due = NULL, paused_at = NULL,
    visible_at = CASE WHEN started_at IS NOT NULL THEN deadline_at
                      ELSE min(COALESCE(expires_at, deadline_at), COALESCE(deadline_at, expires_at)) END
WHERE id = ?;

-- name: mark
-- An operator's wish, for the owner of the run to see; and how many wakes it is worth.
UPDATE {prefix}runs SET asked = ?, wakes = wakes + ? WHERE id = ?;

-- name: has_undo
-- Whether a run has completed something that can be undone.
SELECT 1 FROM {prefix}steps WHERE run_id = ? AND undo IS NOT NULL AND status = 'completed' LIMIT 1;

-- name: undo_cancelled
-- A run that nobody holds was cancelled, and has something to undo.
UPDATE {prefix}runs
SET status = 'compensating', undoing = 1, reason = 'cancelled', place = {now} * 1000, visible_at = NULL, deadline_at = NULL,
    completed_at = NULL, losses = CASE WHEN status = 'failed' THEN 0 ELSE losses END, waiting_for = NULL, awaits = NULL,
    held_due = NULL, paused_at = NULL, asked = NULL, wakes = wakes + 1
WHERE id = ?;

-- name: end_cancelled
-- A run that nobody holds was cancelled, and that was it. An attempt that it only waited for is not counted.
UPDATE {prefix}runs AS r
SET attempt = attempt - EXISTS (
        SELECT 1 FROM {prefix}tries t
        WHERE t.run_id = r.id AND t.branch = '' AND t.position = -1 AND t.attempt = r.attempt - 1 AND t.claim = r.claim),
    status = 'cancelled', reason = 'cancelled', completed_at = {now}, place = NULL, visible_at = NULL, waiting_for = NULL,
    awaits = NULL, held_due = NULL, paused_at = NULL, asked = NULL
WHERE id = ?;

-- name: hold
-- An operator holds a run that nobody executes. The time it would be due is kept aside; that at which it ends goes on.
UPDATE {prefix}runs
SET status = 'paused', paused_at = {now}, place = NULL, asked = NULL,
    held_due = CASE WHEN place IS NULL AND (status = 'queued' OR visible_at IS NOT deadline_at) THEN visible_at END,
    waiting_for = CASE WHEN status = 'waiting' THEN waiting_for END,
    visible_at = deadline_at
WHERE id = ?;

-- name: sleep_on
-- A run is let go before it is due: it sleeps on, and its deadline is in view again.
UPDATE {prefix}runs
SET status = CASE WHEN waiting_for IS NULL THEN 'queued' ELSE 'waiting' END, wakes = wakes + 1,
    held_due = NULL, paused_at = NULL,
    visible_at = min(COALESCE(held_due, deadline_at), COALESCE(deadline_at, held_due))
WHERE id = ?;

-- name: tell_parents
-- The ends of children go into their parents' mailboxes, in the transaction that ends them. One that was retried ends again.
INSERT INTO {prefix}mailbox (run_id, id, kind, name, value, error, format, sent_at, delivered)
WITH ended(id) AS (VALUES (?))
SELECT r.parent_id, r.reply_to, 'child', r.status, r.output, r.error, COALESCE(r.output_format, r.format), {now}, 0
FROM ended CROSS JOIN {prefix}runs AS r ON r.id = ended.id
WHERE r.parent_id IS NOT NULL AND r.reply_to IS NOT NULL
ON CONFLICT (run_id, id) DO UPDATE
SET name = excluded.name, value = excluded.value, error = excluded.error, format = excluded.format,
    sent_at = excluded.sent_at, delivered = 0;

-- name: tell_again
-- Children that completed while their parent had ended too: their mail was thrown away, and a retried parent may wait for
-- it. Those that failed are retried by the parent itself.
INSERT INTO {prefix}mailbox (run_id, id, kind, name, value, error, format, sent_at, delivered)
SELECT parent_id, reply_to, 'child', status, output, error, COALESCE(output_format, format), {now}, 0
FROM {prefix}runs
WHERE parent_id = :parent AND parent_id IS NOT NULL AND reply_to IS NOT NULL AND status = 'completed'
  AND reason IS NOT 'continued'
  AND reply_to NOT IN (SELECT mail FROM {prefix}steps WHERE run_id = :parent AND mail IS NOT NULL)
ON CONFLICT DO NOTHING;

-- name: name_mail
-- Which mail a record took, so that a sender who asks again does not send it twice.
UPDATE {prefix}steps SET mail = ? WHERE run_id = ? AND branch = ? AND position = ?;

-- name: was_taken
-- Whether a signal was taken before: asked only by a sender whose reply was lost.
SELECT 1 FROM {prefix}steps WHERE run_id = ? AND mail = ?;

-- name: tell_children
-- Children are cancelled with their parent, by mail: they may be many, and workers hold some of them.
INSERT INTO {prefix}mailbox (run_id, id, kind, name, format, sent_at, delivered)
WITH cancelled(id) AS (VALUES (?))
SELECT child.id, p.id, 'cancel', '', p.format, {now}, 0
FROM cancelled CROSS JOIN {prefix}runs AS p ON p.id = cancelled.id CROSS JOIN {prefix}runs AS child ON child.parent_id = p.id
WHERE child.parent_id IS NOT NULL AND (p.status = 'cancelled' OR p.reason = 'cancelled')
  AND child.status NOT IN ('completed', 'failed', 'cancelled', 'compensated')
ON CONFLICT DO NOTHING;
