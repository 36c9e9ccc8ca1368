-- Mailboxes: what is sent to a run, and how it reaches the run. All but the looks into mailboxes run in the writer's
-- transaction: what was looked at is still so when it is changed.

-- name: mail
-- What lies in the mailboxes of some runs, delivered or not, and is new to who looks; a cancellation is not for the run's
-- own eyes. Each look is [run, {name: how many} or null for all]; then what was brought before, and how many bytes may
-- come. Of each name the first comes in any case, or the run would sleep over it. A large one is asked for by itself.
SELECT json_group_array(json_array(sent_at, run_id, id, kind, name, CASE WHEN size <= {large} THEN value END, error, format,
                                   trace, size > {large}))
FROM (
    SELECT b.*, row_number() OVER pile AS n, sum(b.size) OVER pile - b.size AS before FROM (
        SELECT m.*, COALESCE(octet_length(m.value), 0) + COALESCE(octet_length(m.error), 0) AS size,
               CASE WHEN m.kind IN ('child', 'remote', 'callback') OR json_type(named.value, '$[1]') = 'null' THEN 2147483647
                    ELSE (SELECT wanted.value FROM json_each(named.value, '$[1]') AS wanted WHERE wanted.key = m.name)
               END AS most
        FROM json_each(?) AS named CROSS JOIN {prefix}mailbox AS m ON m.run_id = json_extract(named.value, '$[0]')
        WHERE m.kind IN ('signal', 'child', 'remote', 'callback') AND m.id NOT IN (SELECT seen.value FROM json_each(?) AS seen)
    ) AS b
    WHERE b.most IS NOT NULL
    WINDOW pile AS (PARTITION BY b.run_id, b.kind, CASE WHEN b.kind = 'signal' THEN b.name END ORDER BY b.sent_at, b.id)
)
WHERE n = 1 OR (n <= most AND before < ?);

-- name: mail_value
-- The value of one piece of mail.
SELECT value FROM {prefix}mailbox WHERE run_id = ? AND id = ?;

-- name: status_of
-- Where a run stands. Who may open the file may read everything.
SELECT status, reason, graph IS NOT NULL AND dag_id IS NULL AS dag, true AS reads FROM {prefix}runs WHERE id = ?;

-- name: count_signals
-- How many signals lie in a mailbox, counted up to a limit.
SELECT count(*) FROM (SELECT 1 FROM {prefix}mailbox WHERE run_id = ? AND kind = 'signal' LIMIT ?);

-- name: post
-- Mail left for a run that takes it (way_to_signal of model/transitions/signals.py), for a sweep to deliver. One statement, which
-- writes before anything was read: a transaction that reads first may find that it is not allowed to write any more.
-- Mail to a dag run is for its steps.
INSERT INTO {prefix}mailbox (run_id, id, kind, name, value, error, format, sent_at, delivered, trace)
SELECT id, ?, ?, ?, ?, ?, ?, {now}, 0, ? FROM {prefix}runs
WHERE id = ? AND status NOT IN ({ended})
  AND (graph IS NULL OR dag_id IS NOT NULL)
ON CONFLICT DO NOTHING;

-- name: unpost
-- Mail that was left in this transaction, and is not wanted.
DELETE FROM {prefix}mailbox WHERE run_id = ? AND id = ?;

-- name: undelivered
-- The oldest mail that was only inserted, and whose run is there.
SELECT json_group_array(json_array(run_id, id)) FROM (
    SELECT m.run_id, m.id FROM {prefix}mailbox AS m INDEXED BY {prefix}mailbox_undelivered
    WHERE NOT m.delivered AND EXISTS (SELECT 1 FROM {prefix}runs r WHERE r.id = m.run_id)
    ORDER BY m.sent_at, m.run_id, m.id LIMIT ?
);

-- name: undelivered_of
-- The mail, that was only inserted, of one run and of all that it went on as but the last.
WITH RECURSIVE chain AS (
    SELECT ? AS id
    UNION ALL
    SELECT h.id FROM chain AS c CROSS JOIN {prefix}runs AS r ON r.id = c.id AND r.reason = 'continued'
    CROSS JOIN {prefix}runs AS h ON h.id = {went_on}
)
SELECT m.run_id, m.id
FROM chain AS c CROSS JOIN {prefix}runs AS r ON r.id = c.id AND r.reason = 'continued'
CROSS JOIN {prefix}mailbox AS m ON m.run_id = c.id AND NOT m.delivered;

-- name: still_undelivered
-- What of this mail ([run, mail] of each) is to be delivered: one row for each run, which says where it stands.
SELECT json_group_array(json_array(json(b.ids), json(b.kinds), {now}, {standing}))
FROM (SELECT m.run_id, json_group_array(m.id) AS ids, json_group_array(m.kind || iif(m.start IS NULL, '', '+')) AS kinds
      FROM json_each(?) AS u
      CROSS JOIN {prefix}mailbox AS m ON m.run_id = json_extract(u.value, '$[0]') AND m.id = json_extract(u.value, '$[1]')
      WHERE NOT m.delivered
      GROUP BY m.run_id) AS b
CROSS JOIN {prefix}runs AS r ON r.id = b.run_id;

-- name: remove_orphans
-- Mail that was never delivered to a run that is gone by now.
DELETE FROM {prefix}mailbox WHERE (run_id, id) IN (
    SELECT m.run_id, m.id FROM {prefix}mailbox AS m INDEXED BY {prefix}mailbox_undelivered
    WHERE NOT m.delivered AND NOT EXISTS (SELECT 1 FROM {prefix}runs r WHERE r.id = m.run_id)
    ORDER BY m.sent_at LIMIT ?
)
RETURNING 1;
