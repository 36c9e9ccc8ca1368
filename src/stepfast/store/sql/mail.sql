-- Mail: what others put into a run's box, and how it reaches the run. All changes of mail that exists are made under
-- the lock of the run it is for; only inserting needs none.

-- name: send(run_id uuid, id uuid, kind, name, value, error, format smallint, most bigint, trace)
-- A signal for a run that is locked in this transaction. If it is there already, or as many as `most` others are, nothing is
-- inserted.
INSERT INTO {mailbox} (run_id, id, kind, name, value, error, format, sent_at, delivered, trace)
SELECT :run_id, :id, :kind, :name, :value, :error, :format, {now}, true, :trace
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

-- name: words(u(run_id uuid, id uuid))
-- What pieces of mail (`u` their runs, `u` their ids) say, the oldest first.
SELECT m.run_id::text AS run_id, m.value
FROM {rows u} {join} {mailbox} m ON m.run_id = u.run_id AND m.id = u.id
ORDER BY m.sent_at, m.id;

-- name: forward(u(run_id uuid, id uuid, continuation uuid))
-- Mail (`u` its runs, `u` its ids) goes to the boxes of others (`u`), to be delivered there.
INSERT INTO {mailbox} (run_id, id, kind, name, value, error, format, sent_at, delivered, trace)
SELECT u.continuation, m.id, m.kind, m.name, m.value, m.error, m.format, m.sent_at, false, m.trace
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
FROM {mailbox} m WHERE m.run_id {in ids} AND m.kind IN ('signal', 'child', 'remote') ORDER BY m.sent_at, m.id;

-- name: bodies(u(run_id uuid, id uuid))
-- What some mail says, the oldest first.
SELECT m.run_id, m.id, m.kind, m.name, m.value, m.error, m.format, m.trace
FROM {rows u} {join} {mailbox} m ON m.run_id = u.run_id AND m.id = u.id
ORDER BY m.sent_at, m.id;
