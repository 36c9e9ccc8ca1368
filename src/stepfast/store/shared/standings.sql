-- Where runs stand: read under a lock, decided by the functions of model/, and written back. {standing} are the columns of
-- a standing, in its order (model/run_state.py).

-- name: lock_free
-- Runs by their ids; those that somebody else holds are stepped over.
SELECT {wide}{now}, {standing}{/wide}
FROM unnest($1::uuid[]) AS u(id) {join} {schema}.runs r ON r.id = u.id
ORDER BY r.id
FOR NO KEY UPDATE OF r SKIP LOCKED;

-- name: change
-- What was decided of runs that are locked in this transaction. Payloads are not read for a decision: they are written
-- only if they were decided, too.
UPDATE {schema}.runs AS r
SET status = c.status, reason = c.reason, waiting_for = c.waiting_for, asked = c.asked,
    worker = CASE WHEN c.held THEN r.worker END, token = CASE WHEN c.held THEN r.token END, claim = c.claim,
    place = c.place, visible_at = c.visible_at, deadline_at = c.deadline_at, expires_at = c.expires_at,
    held_due = c.held_due, paused_at = c.paused_at, wakes = c.wakes, ends = c.ends, awaits = c.awaits,
    linger_ms = c.linger_ms, attempt = c.attempt, first_attempt = c.first_attempt, losses = c.losses,
    undoing = c.undoing, failing = c.failing, pending = c.pending, met = c.met, ready_at = c.ready_at,
    completed_at = c.completed_at, version = c.version, forget = c.forget,
    output = CASE WHEN c.has_output THEN c.output ELSE r.output END,
    output_format = CASE WHEN c.has_output THEN c.output_format ELSE r.output_format END,
    error = CASE WHEN c.has_error THEN c.error ELSE r.error END, unrecorded_losses = c.unrecorded_losses
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::boolean[], $7::integer[], $8::bigint[],
            $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[], $14::integer[], $15::integer[],
            $16::integer[], $17::integer[], $18::integer[], $19::integer[], $20::integer[], $21::boolean[],
            $22::boolean[], $23::integer[], $24::integer[], $25::bigint[], $26::bigint[], $27::text[], $28::text[],
            $29::boolean[], $30::text[], $31::smallint[], $32::boolean[], $33::text[], $34::integer[])
     AS c(id, status, reason, waiting_for, asked, held, claim, place, visible_at, deadline_at, expires_at, held_due,
          paused_at, wakes, ends, awaits, linger_ms, attempt, first_attempt, losses, undoing, failing, pending, met,
          ready_at, completed_at, version, forget, has_output, output, output_format, has_error, error,
          unrecorded_losses)
WHERE r.id = c.id;

-- name: set_aside
-- Runs of which a sweep could decide nothing, because the database refuses what they would become: paused, and in nobody's
-- hands, so that no sweep finds them. A resume makes them due when they were. What has ended stays ended.
UPDATE {schema}.runs AS r
SET status = CASE WHEN r.status IN ({ended}) THEN r.status ELSE 'paused' END,
    paused_at = CASE WHEN r.status IN ({ended}) THEN r.paused_at ELSE u.now END,
    held_due = COALESCE(r.visible_at, r.held_due), visible_at = NULL, place = NULL, worker = NULL, token = NULL, asked = NULL
FROM unnest($1::uuid[], $2::bigint[]) AS u(id, now)
WHERE r.id = u.id;

-- name: prioritize
-- The priorities of runs that are locked in this transaction.
UPDATE {schema}.runs AS r SET priority = u.priority FROM unnest($1::uuid[], $2::integer[]) AS u(id, priority)
WHERE r.id = u.id;

-- name: move_tries
-- When the next tries are due of steps of these runs, which are locked in this transaction.
UPDATE {schema}.tries AS t SET due_at = u.due_at FROM unnest($1::uuid[], $2::bigint[]) AS u(id, due_at)
WHERE t.run_id = u.id AND t.due_at > {now};

-- name: traces
-- What other rows tell of runs that are about to be cancelled: whether they have completed something that can be undone;
-- whether their last attempt failed and nobody has claimed them since; and of those that workers died with, a step that
-- was seen under way and has no outcome, and the last one that has.
SELECT r.id::text AS id,
       COALESCE((SELECT true FROM {schema}.steps s
                 WHERE s.run_id = r.id AND s.undo IS NOT NULL AND s.status = 'completed' LIMIT 1), false) AS undoable,
       COALESCE((SELECT true FROM {schema}.tries t
                 WHERE t.run_id = r.id AND t.branch = '' AND t.position = -1 AND t.attempt = r.attempt - 1
                   AND t.claim = r.claim LIMIT 1), false) AS between_attempts,
       CASE WHEN r.losses > 1 THEN (
           SELECT p.name FROM {schema}.progress p
           WHERE p.run_id = r.id AND NOT EXISTS (SELECT 1 FROM {schema}.steps s WHERE s.run_id = p.run_id
                                                 AND s.branch = p.branch AND s.position = p.position)
           ORDER BY p.updated_at DESC LIMIT 1) END AS running,
       CASE WHEN r.losses > 1 THEN (
           SELECT s.name FROM {schema}.steps s WHERE s.run_id = r.id ORDER BY s.seq DESC LIMIT 1) END AS last
FROM unnest($1::uuid[]) AS u(id) {join} {schema}.runs r ON r.id = u.id;

-- name: untake
-- Signals that records took which are about to be forgotten go back into the box, before all others.
INSERT INTO {schema}.mailbox (run_id, id, kind, name, value, format, sent_at, delivered)
SELECT s.run_id, s.mail, 'signal', s.name, s.output, s.format, 0, true
FROM unnest($1::uuid[], $2::text[], $3::integer[]) AS f(run_id, branch, position)
{join} {schema}.steps s ON s.run_id = f.run_id AND s.branch = f.branch AND s.position = f.position
WHERE s.mail IS NOT NULL AND s.kind = 'signal' AND s.status = 'completed'
ON CONFLICT (run_id, id) DO NOTHING;

-- name: forget
-- Records that the next attempt is to make anew.
DELETE FROM {schema}.steps WHERE (run_id, branch, position) IN (
    SELECT f.run_id, f.branch, f.position
    FROM unnest($1::uuid[], $2::text[], $3::integer[]) AS f(run_id, branch, position));

-- name: inherit
-- Runs that go on as another ($1, just ended, and $2, just started): the successor has their parent, their tags, and their
-- count of wakes: at none it would not look for the mail that it inherits.
UPDATE {schema}.runs AS s
SET parent_id = r.parent_id, parent_branch = r.parent_branch, parent_position = r.parent_position,
    reply_to = r.reply_to, tags = r.tags, concurrency_key = r.concurrency_key, wakes = r.wakes, origin_id = COALESCE(s.origin_id, r.id)
FROM unnest($1::uuid[], $2::uuid[]) AS u(ended, successor) {join} {schema}.runs r ON r.id = u.ended
WHERE s.id = u.successor;

-- name: keep_traces
-- What observers leave for whoever takes these runs next. They are locked in this transaction.
UPDATE {schema}.runs AS r SET trace = u.trace FROM unnest($1::uuid[], $2::text[]) AS u(id, trace) WHERE r.id = u.id;

-- name: inherit_mail
-- Signals that the ended run did not take are its successor's, and so is a cancellation on its way.
UPDATE {schema}.mailbox AS m SET run_id = u.successor
FROM unnest($1::uuid[], $2::uuid[]) AS u(ended, successor)
WHERE m.run_id = u.ended AND m.kind IN ('signal', 'cancel');

-- name: cancel_heir
-- A cancellation ($1 whose, $2 of which run) that its run left unheard when it went on as another.
INSERT INTO {schema}.mailbox (run_id, id, kind, name, format, sent_at, delivered)
SELECT u.successor, u.ended, 'cancel', '', 1, {now}, false FROM unnest($1::uuid[], $2::uuid[]) AS u(successor, ended)
WHERE true
ON CONFLICT (run_id, id) DO NOTHING;

-- name: lock_own
-- Runs that a worker gives back ($2, under the claims $3), if they are its own. Rows that somebody holds are stepped over.
SELECT {wide}{now}, {standing}{/wide}
FROM unnest($2::uuid[], $3::integer[]) AS g(id, claim) {join} {schema}.runs r ON r.id = g.id
WHERE r.worker IS NOT DISTINCT FROM $1 AND r.claim = g.claim
ORDER BY r.id
FOR NO KEY UPDATE OF r SKIP LOCKED;

-- name: lock_held
-- What names a worker that leaves. Rows that somebody holds are stepped over.
SELECT {wide}{now}, {standing}{/wide}
FROM {schema}.runs r WHERE r.worker = $1
ORDER BY r.id
FOR NO KEY UPDATE OF r SKIP LOCKED;

-- name: lost
-- Of runs locked in this transaction, those that name no living worker.
SELECT {wide}{now}, {standing}{/wide}
FROM unnest($1::uuid[]) AS u(id) {join} {schema}.runs r ON r.id = u.id
WHERE (r.worker IS NOT NULL) IS TRUE
  AND NOT EXISTS (SELECT 1 FROM {schema}.workers w WHERE w.id = r.worker AND w.state <> 'dead');

-- name: recorded
-- Those of these runs whose present claim has made a record.
SELECT r.id::text AS id FROM unnest($1::uuid[]) AS u(id) {join} {schema}.runs r ON r.id = u.id
WHERE (SELECT true FROM {schema}.steps s WHERE s.run_id = r.id AND s.claim = r.claim LIMIT 1);
