-- Mail: what others put into a run's box, and how it reaches the run.

-- name: undelivered(most)
-- The oldest mail that was only inserted; its runs are locked, and mail of runs that others hold is passed over.
SELECT m.run_id, m.id FROM {mailbox} m {index mailbox_undelivered} {join} {runs} r ON r.id = m.run_id
WHERE NOT m.delivered
ORDER BY m.sent_at LIMIT :most
{lock r skip};

-- name: undelivered_of(run_id uuid)
-- The mail, that was only inserted, of one run and of all that it went on as but the last; those that have some are
-- locked, and waited for.
WITH RECURSIVE chain AS (
    SELECT r.id, r.reason, CASE WHEN r.reason = 'continued' THEN {went_on} END AS next FROM {runs} r WHERE r.id = :run_id
    UNION ALL
    SELECT r.id, r.reason, CASE WHEN r.reason = 'continued' THEN {went_on} END FROM chain c {join} {runs} r ON r.id = c.next
)
SELECT f.run_id, f.id
FROM (SELECT m.run_id, m.id FROM chain c {join} {mailbox} m ON m.run_id = c.id
      WHERE c.reason = 'continued' AND NOT m.delivered ORDER BY m.run_id LIMIT 1000000) AS f
{join} {runs} r ON r.id = f.run_id
{lock r};

-- name: still_undelivered(u(run_id uuid, id uuid))
-- What of this mail is still to be delivered: one row for each run, locked in this transaction, which says where it
-- stands; ids and kinds as words.
SELECT b.ids, b.kinds, {now} AS now_ms, {standing}
FROM (SELECT m.run_id, GROUP_CONCAT(m.id ORDER BY m.sent_at, m.id SEPARATOR ' ') AS ids,
             GROUP_CONCAT(concat(m.kind, CASE WHEN m.start IS NULL THEN '' ELSE '+' END) ORDER BY m.sent_at, m.id SEPARATOR ' ') AS kinds
      FROM {rows u} {join} {mailbox} m ON m.run_id = u.run_id AND m.id = u.id
      WHERE NOT m.delivered
      GROUP BY m.run_id) AS b
{join} {runs} r ON r.id = b.run_id;

-- name: remove_orphans(most)
-- Mail that was never delivered to a run that is gone by now.
DELETE m FROM (
    SELECT o.run_id, o.id FROM {mailbox} o {index mailbox_undelivered}
    WHERE NOT o.delivered AND NOT EXISTS (SELECT 1 FROM {runs} r WHERE r.id = o.run_id)
    ORDER BY o.sent_at LIMIT :most
    {lock o skip}
) AS gone STRAIGHT_JOIN {mailbox} AS m ON m.run_id = gone.run_id AND m.id = gone.id;

-- name: count_signals(run_ids uuid[], most)
-- How many signals lie in mailboxes, counted up to a limit.
SELECT count(*) FROM (SELECT 1 FROM {mailbox} b WHERE b.run_id {in run_ids} AND b.kind = 'signal' LIMIT :most) AS x;

-- name: leave_signal_id(run_id uuid, key)
-- Keep the id of a signal inside a transaction of the sender's, unless one of it was sent before.
INSERT INTO {run_values} (run_id, key, value, format, updated_at) VALUES (:run_id, :key, 'null', 1, {now})
{skip run_id, key};

-- name: leave_mail(run_id uuid, id uuid, kind, name, value, error, format smallint, trace, start)
-- A signal inside a transaction of the sender's: only inserted, and nothing is read with it, because the sender's session
-- may lock what it reads for an INSERT. It is delivered after the commit.
INSERT INTO {mailbox} (run_id, id, kind, name, value, error, format, sent_at, delivered, trace, start)
VALUES (:run_id, :id, :kind, :name, :value, :error, :format, {now}, false, :trace, :start)
{skip run_id, id};

-- name: status_of(run_id)
-- Where a run stands, without a lock.
SELECT status, reason, graph IS NOT NULL AND dag_id IS NULL AS dag FROM {runs} WHERE id = :run_id;
