-- Where runs stand: read under a lock, decided by the functions of model/, and written back. {standing} are the columns of
-- a standing, in its order (model/run_state.py).

-- name: lock_free(u(id uuid))
-- Runs by their ids; those that are locked are stepped over.
SELECT {wide}{now}, {standing}{/wide}
FROM {rows u} {join} {runs} r ON r.id = u.id
ORDER BY r.id
{lock r skip};

-- name: change(c(id uuid, status text, reason text, waiting_for text, asked text, held boolean, claim integer,
--     place bigint, visible_at bigint, deadline_at bigint, expires_at bigint, held_due bigint, paused_at bigint,
--     wakes integer, ends integer, awaits integer, linger_ms integer, attempt integer, first_attempt integer,
--     losses integer, undoing boolean, failing boolean, pending integer, met integer, ready_at bigint, completed_at bigint,
--     version text, forget text, has_output boolean, output text, output_format smallint, has_error boolean, error text,
--     unrecorded_losses integer))
-- What was decided of runs that are locked in this transaction. Payloads are not read for a decision: they are written
-- only if they were decided, too.
{update runs r, c}
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
{from c}
WHERE r.id = c.id;

-- name: set_aside(u(id uuid, now bigint))
-- Runs of which a sweep could decide nothing, because the database refuses what they would become: paused, and held
-- by no worker, so that no sweep finds them. A resume makes them due when they were. What has ended stays ended.
{update runs r, u}
SET status = CASE WHEN r.status IN ({ended}) THEN r.status ELSE 'paused' END,
    paused_at = CASE WHEN r.status IN ({ended}) THEN r.paused_at ELSE u.now END,
    held_due = COALESCE(r.visible_at, r.held_due), visible_at = NULL, place = NULL, worker = NULL, token = NULL, asked = NULL
{from u}
WHERE r.id = u.id;

-- name: prioritize(u(id uuid, priority integer))
-- The priorities of runs that are locked in this transaction.
{update runs r, u} SET priority = u.priority {from u}
WHERE r.id = u.id;

-- name: move_tries(u(id uuid, due_at bigint))
-- When the next tries are due of steps of these runs, which are locked in this transaction.
{update tries t, u} SET due_at = u.due_at {from u}
WHERE t.run_id = u.id AND t.due_at > {stamp};

-- name: traces(u(id uuid))
-- What other rows tell of runs that are about to be cancelled: whether they have completed something that can be undone;
-- whether their last attempt failed and no worker has claimed them since; and of those that workers died with, a step
-- that was seen under way and has no outcome, and the last one that has.
SELECT r.id::text AS id,
       COALESCE((SELECT true FROM {steps} s
                 WHERE s.run_id = r.id AND s.undo IS NOT NULL AND s.undo NOT LIKE '~%' AND s.status = 'completed' LIMIT 1), false) AS undoable,
       COALESCE((SELECT true FROM {tries} t
                 WHERE t.run_id = r.id AND t.branch = '' AND t.position = -1 AND t.attempt = r.attempt - 1
                   AND t.claim = r.claim LIMIT 1), false) AS between_attempts,
       CASE WHEN r.losses > 1 THEN (
           SELECT p.name FROM {progress} p
           WHERE p.run_id = r.id AND NOT EXISTS (SELECT 1 FROM {steps} s WHERE s.run_id = p.run_id
                                                 AND s.branch = p.branch AND s.position = p.position)
           ORDER BY p.updated_at DESC LIMIT 1) END AS running,
       CASE WHEN r.losses > 1 THEN (
           SELECT s.name FROM {steps} s WHERE s.run_id = r.id ORDER BY s.seq DESC LIMIT 1) END AS last
FROM {rows u} {join} {runs} r ON r.id = u.id;

-- name: untake(f(run_id uuid, branch text, position integer))
-- Signals and questions that records took which are about to be forgotten go back into the box, before all others.
INSERT INTO {mailbox} (run_id, id, kind, name, value, format, sent_at, delivered)
SELECT s.run_id, s.mail, 'signal', COALESCE(q.name, s.name), s.output, s.format, 0, true
FROM {rows f}
{join} {steps} s ON s.run_id = f.run_id AND s.branch = f.branch AND s.position = f.position
LEFT JOIN {questions} q ON q.id = s.mail AND s.kind = 'question'
WHERE s.mail IS NOT NULL AND s.kind IN ('signal', 'question') AND s.status = 'completed'
{skip run_id, id};

-- name: forget(f(run_id uuid, branch text, position integer))
-- Records that the next attempt is to make again.
{delete steps by f};

-- name: inherit(u(ended uuid, successor uuid))
-- Runs that go on as another (`u`, just ended, and `u`, just started): the successor has their parent, their tags, their name,
-- and their count of wakes: at none it would not look for the mail that it inherits.
UPDATE {runs} AS s
SET parent_id = r.parent_id, parent_branch = r.parent_branch, parent_position = r.parent_position,
    reply_to = r.reply_to, tags = r.tags, concurrency_key = r.concurrency_key, wakes = r.wakes, unique_name = r.unique_name,
    hands_on = r.hands_on, origin_id = COALESCE(s.origin_id, r.id)
FROM {rows u} {join} {runs} r ON r.id = u.ended
WHERE s.id = u.successor;

-- name: keep_traces(u(id uuid, trace text))
-- What observers leave for the workers that take these runs next. They are locked in this transaction.
{update runs r, u} SET trace = u.trace {from u} WHERE r.id = u.id;

-- name: inherit_mail(u(ended uuid, successor uuid))
-- Signals that the ended run did not take are its successor's, and so is a cancellation on its way.
{update mailbox m, u} SET run_id = u.successor
{from u}
WHERE m.run_id = u.ended AND m.kind IN ('signal', 'cancel');

-- name: inherit_signal_ids(u(ended uuid, successor uuid))
-- The ids of signals that the ended run was sent: its successor takes none of them again.
{update run_values v, u} SET run_id = u.successor
{from u}
WHERE v.run_id = u.ended AND v.key LIKE '~signal/%';

-- name: cancel_continuation(u(successor uuid, ended uuid))
-- A cancellation (`u` whose, `u` of which run) that its run left unheard when it went on as another.
INSERT INTO {mailbox} (run_id, id, kind, name, format, sent_at, delivered)
SELECT u.successor, u.ended, 'cancel', '', 1, {now}, false FROM {rows u}
WHERE true
{skip run_id, id};

-- name: lock_own(worker, g(id uuid, claim integer))
-- Runs that a worker gives back (`g`, under the claims `g`), if they are its own. Locked rows are stepped over.
SELECT {wide}{now}, {standing}{/wide}
FROM {rows g} {join} {runs} r ON r.id = g.id
WHERE {same r.worker, :worker} AND r.claim = g.claim
ORDER BY r.id
{lock r skip};

-- name: lock_held(worker)
-- What names a worker that leaves. Rows that are locked are stepped over.
SELECT {wide}{now}, {standing}{/wide}
FROM {runs} r {index runs_worker} WHERE r.worker = :worker
ORDER BY r.id
{lock r skip};

-- name: lost(u(id uuid))
-- Of runs locked in this transaction, those that name no living worker.
SELECT {wide}{now}, {standing}{/wide}
FROM {rows u} {join} {runs} r ON r.id = u.id
WHERE (r.worker IS NOT NULL) IS TRUE
  AND NOT EXISTS (SELECT 1 FROM {workers} w WHERE w.id = r.worker AND w.state <> 'dead');

-- name: recorded(u(id uuid))
-- Those of these runs whose present claim has made a record.
SELECT r.id::text AS id FROM {rows u} {join} {runs} r ON r.id = u.id
WHERE (SELECT true FROM {steps} s WHERE s.run_id = r.id AND s.claim = r.claim LIMIT 1);

-- name: lock_runs(u(id uuid))
-- Runs by their ids, waited for. The clock is read when the lock is there.
SELECT {wide}{now}, {standing}{/wide}
FROM {rows u} {join} {runs} r ON r.id = u.id
ORDER BY r.id
{lock r};

-- name: inherit_tags(u(ended uuid, successor uuid))
-- The tags of runs that went on as another are their successors' as well, for finding them.
INSERT INTO {run_tags} (tag, run_id)
SELECT tag.value, u.successor
FROM {rows u} {join} {runs} r ON r.id = u.ended {join} {elements r.tags, tag}
WHERE r.tags IS NOT NULL
{skip_any tag};

-- name: detach(u(id uuid))
-- Children that are not cancelled with their parents.
{update runs r, u} SET detached = true {from u} WHERE r.id = u.id;

-- name: spare_children(u(id uuid, spares boolean))
-- Whether the children of a run that is cancelled go on.
{update runs r, u} SET spares_children = u.spares {from u} WHERE r.id = u.id AND r.spares_children <> u.spares;
