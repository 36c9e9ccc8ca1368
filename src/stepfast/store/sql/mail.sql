-- Mail: what others put into a run's box, and how it reaches the run. All changes of mail that exists are made under
-- the lock of the run it is for; only inserting needs none.

-- name: send(run_id uuid, id uuid, kind, name, value, error, format smallint, most bigint, trace, start)
-- A signal for a run that is locked in this transaction. If it is there already, or as many as `most` others are, nothing is
-- inserted.
INSERT INTO {mailbox} (run_id, id, kind, name, value, error, format, sent_at, delivered, trace, start)
SELECT :run_id, :id, :kind, :name, :value, :error, :format, {now}, true, :trace, :start
WHERE (SELECT count(*) FROM (SELECT 1 FROM {mailbox} b WHERE b.run_id = :run_id AND b.kind = 'signal' LIMIT :most) AS x)
      < :most
{skip run_id, id}
RETURNING 1;

-- name: was_taken(run_id, mail)
-- Whether a run took this signal before: asked only by a sender whose reply was lost.
SELECT true FROM {steps} WHERE run_id = :run_id AND mail = :mail LIMIT 1;

-- name: was_taken_by_any(run_id, mail)
-- Whether a run, or one of those that it went on as, took this signal before: mail that is not taken goes on with the run.
WITH RECURSIVE chain AS (
    SELECT r.id, CASE WHEN r.reason = 'continued' THEN {went_on} END AS next FROM {runs} r WHERE r.id = :run_id
    UNION ALL
    SELECT r.id, CASE WHEN r.reason = 'continued' THEN {went_on} END
    FROM chain c {join} {runs} r ON r.id = c.next
)
SELECT true FROM chain c {join} {steps} s ON s.run_id = c.id WHERE s.mail = :mail LIMIT 1;

-- name: is_there(run_id, id)
-- Whether a signal lies in the box.
SELECT true FROM {mailbox} WHERE run_id = :run_id AND id = :id;

-- name: has_signal_id(run_id, key)
-- Whether a signal of this id was sent to a run before. The ids go on with a run that goes on as another.
SELECT true FROM {run_values} WHERE run_id = :run_id AND key = :key;

-- name: put_signal_id(run_id uuid, key)
-- Keep the id of a signal, unless one of it was sent before.
INSERT INTO {run_values} (run_id, key, value, format, updated_at)
SELECT r.id, :key, 'null', 1, {now} FROM {runs} r WHERE r.id = :run_id
{skip run_id, key}
RETURNING 1;

-- name: words(u(run_id uuid, id uuid))
-- What pieces of mail (`u` their runs, `u` their ids) say, the oldest first.
SELECT m.run_id::text AS run_id, m.value
FROM {rows u} {join} {mailbox} m ON m.run_id = u.run_id AND m.id = u.id
ORDER BY m.sent_at, m.id;

-- name: forward(u(run_id uuid, id uuid, continuation uuid))
-- Mail (`u` its runs, `u` its ids) goes to the boxes of others (`u`), to be delivered there.
INSERT INTO {mailbox} (run_id, id, kind, name, value, error, format, sent_at, delivered, trace, start)
SELECT u.continuation, m.id, m.kind, m.name, m.value, m.error, m.format, m.sent_at, false, m.trace, m.start
FROM {rows u}
{join} {mailbox} m ON m.run_id = u.run_id AND m.id = u.id
WHERE true
{skip run_id, id};

-- name: counters(ids uuid[])
-- What a look at mailboxes reads first.
SELECT r.id, r.wakes, r.ends FROM {runs} r WHERE r.id {in ids};

-- name: heads(ids uuid[])
-- What is in the mailboxes of some runs, the oldest first, without what it says. A cancellation is not for the run.
SELECT m.run_id, m.id, m.kind, m.name, COALESCE(octet_length(m.value), 0) + COALESCE(octet_length(m.error), 0) AS size
FROM {mailbox} m WHERE m.run_id {in ids} AND m.kind IN ('signal', 'child', 'remote', 'callback') ORDER BY m.sent_at, m.id;

-- name: bodies(u(run_id uuid, id uuid))
-- What some mail says, the oldest first.
SELECT m.run_id, m.id, m.kind, m.name, m.value, m.error, m.format, m.trace
FROM {rows u} {join} {mailbox} m ON m.run_id = u.run_id AND m.id = u.id
ORDER BY m.sent_at, m.id;

-- name: delivered(u(run_id uuid, id uuid))
-- Mail that its run has heard of.
{update mailbox m, u} SET delivered = true {from u} WHERE m.run_id = u.run_id AND m.id = u.id;

-- name: take_mail(u(run_id uuid, id uuid))
-- Mail that its run has taken, or that no run can take.
{delete mailbox by u};

-- name: tell_parents(u(id uuid))
-- The ends of children go into their parents' mailboxes, in the transaction that ends them. One that was retried ends again.
INSERT INTO {mailbox} (run_id, id, kind, name, value, error, format, sent_at, delivered)
SELECT r.parent_id, r.reply_to, 'child', r.status, r.output, r.error, COALESCE(r.output_format, r.format), {now}, false
FROM {rows u} {join} {runs} r ON r.id = u.id
WHERE r.parent_id IS NOT NULL AND r.reply_to IS NOT NULL
{upsert run_id, id} kind = {new.kind}, name = {new.name}, value = {new.value}, error = {new.error}, format = {new.format},
    sent_at = {new.sent_at}, delivered = false;

-- name: tell_again(u(id uuid))
-- Results of children that their parents, which are being retried, have not taken: what came after they had ended was
-- thrown away. A child that failed is retried with its parent, and tells of its end by itself.
INSERT INTO {mailbox} (run_id, id, kind, name, value, error, format, sent_at, delivered)
SELECT c.parent_id, c.reply_to, 'child', c.status, c.output, c.error, COALESCE(c.output_format, c.format), {now}, false
FROM {rows u} {join} {runs} c ON c.parent_id = u.id
WHERE c.parent_id IS NOT NULL AND c.reply_to IS NOT NULL AND c.status = 'completed' AND {differs c.reason, 'continued'}
  AND c.reply_to NOT IN (SELECT s.mail FROM {steps} s WHERE s.run_id = u.id AND s.mail IS NOT NULL)
{skip run_id, id};

-- name: tell_children(u(id uuid))
-- Children are cancelled with their parent, by mail: they may be many, and workers hold some of them.
INSERT INTO {mailbox} (run_id, id, kind, name, format, sent_at, delivered)
SELECT c.id, p.id, 'cancel', '', 1, {now}, false
FROM {rows u} {join} {runs} p ON p.id = u.id {join} {runs} c ON c.parent_id = p.id
WHERE c.parent_id IS NOT NULL AND (p.status = 'cancelled' OR p.reason = 'cancelled')
  AND c.status NOT IN ({ended}) AND NOT c.detached AND NOT p.spares_children
{skip run_id, id};
