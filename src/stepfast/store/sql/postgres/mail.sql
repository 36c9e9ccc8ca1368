-- Mail: what others put into a run's box, and how it reaches the run. All changes of mail that exists are made under
-- the lock of the run it is for; only inserting needs none.

-- name: mail
-- A look into the boxes of some runs. One statement, so one snapshot: the counters are never newer than the mail. $2 has
-- for each run the names of signals that it waits for, as JSON, and how many of each are wanted (null: all); $3 is what
-- was brought before. Of each name the first comes in any case, or the run would sleep over it; the rest, and the ends
-- of children, up to $4 bytes.
SELECT r.id AS run_id, r.wakes, r.ends, m.id, m.kind, m.name, m.value, m.error, m.format, m.trace
FROM unnest($1::uuid[], $2::text[]) AS u(id, names) JOIN {schema}.runs r ON r.id = u.id
LEFT JOIN LATERAL (
    SELECT l.* FROM (
        SELECT b.*, row_number() OVER pile AS n, sum(b.size) OVER pile - b.size AS before
        FROM (SELECT x.id, x.kind, x.name, x.value, x.error, x.format, x.sent_at, x.trace,
                     COALESCE(octet_length(x.value), 0) + COALESCE(octet_length(x.error), 0) AS size,
                     CASE WHEN x.kind IN ('child', 'remote', 'callback') OR u.names IS NULL THEN 2147483647
                          ELSE ((u.names::json) ->> x.name)::integer END AS most
              FROM {schema}.mailbox x
              WHERE x.run_id = u.id AND x.kind IN ('signal', 'child', 'remote', 'callback') AND (x.id = ANY ($3::uuid[])) IS NOT TRUE
        ) AS b
        WHERE b.most IS NOT NULL
        WINDOW pile AS (PARTITION BY b.kind, CASE WHEN b.kind = 'signal' THEN b.name END ORDER BY b.sent_at, b.id)
    ) AS l
    WHERE l.n = 1 OR (l.n <= l.most AND l.before < $4::bigint)
) AS m ON true
ORDER BY r.id, m.sent_at, m.id;

-- name: send_usual
-- A signal for a run that waits, is ready or is executed, in one round trip. It is counted, and who waits is woken, as
-- wake() of model/transitions/signals.py decides it: a test compares the two. No row: the run stands otherwise, or the signal is
-- there, or $8 others are; the flow decides then, under the lock. How many there are is seen as it was before a wait for
-- the lock, so that $8 is well below the bound. The clock is read when the lock is there. With $10, and if every open wait
-- for the signal names a type, nothing is sent, and the plans of the waits are returned for the sender to check the value.
WITH awaited AS MATERIALIZED (
    SELECT array_agg(s.output) AS plans
    FROM {schema}.steps s
    WHERE $10::bool AND s.run_id = $1 AND s.name = $4 AND s.kind = 'signal' AND s.status = 'waiting'
    HAVING bool_and(COALESCE(s.output LIKE '%"type":%', false))
), locked AS MATERIALIZED (
    SELECT r.id, r.status, r.reason, r.worker IS NOT NULL AS held, r.status = 'waiting' AS waits, r.queue, r.workflow,
           r.priority
    FROM {schema}.runs r
    WHERE r.id = $1 AND r.status IN ('queued', 'running', 'waiting', 'compensating')
      AND r.waiting_for IS DISTINCT FROM 'steps' AND (r.graph IS NULL OR r.dag_id IS NOT NULL)
    FOR NO KEY UPDATE
), woken AS (
    UPDATE {schema}.runs r
    SET wakes = LEAST(r.wakes, {most_counted} - 1) + 1,
        status = CASE WHEN l.waits THEN 'queued' ELSE r.status END,
        place = CASE WHEN l.waits THEN {place} ELSE r.place END,
        visible_at = CASE WHEN l.waits THEN r.deadline_at ELSE r.visible_at END,
        waiting_for = CASE WHEN NOT l.waits THEN r.waiting_for END,
        awaits = CASE WHEN NOT l.waits THEN r.awaits END
    FROM locked l
    WHERE r.id = l.id AND (SELECT true FROM {schema}.mailbox b WHERE b.run_id = $1 AND b.id = $2) IS NULL
      AND (SELECT a.plans FROM awaited a) IS NULL
      AND (SELECT count(*) FROM (SELECT 1 FROM {schema}.mailbox b WHERE b.run_id = $1 AND b.kind = 'signal' LIMIT $8) AS x)
          < $8::bigint
    RETURNING l.status, l.reason, l.held, l.waits, l.queue, l.workflow, l.priority
), put AS (
    INSERT INTO {schema}.mailbox (run_id, id, kind, name, value, error, format, sent_at, trace)
    SELECT $1::uuid, $2::uuid, $3, $4, $5, $6, $7::smallint, {now}, $9 FROM woken
)
SELECT w.*, a.plans FROM (SELECT 1) AS one LEFT JOIN woken w ON true LEFT JOIN awaited a ON true;

-- name: status_of
-- Where a run stands, without a lock; and, if it went on as another, whether who asks may read which one that is.
SELECT status, reason, graph IS NOT NULL AND dag_id IS NULL AS dag,
       CASE WHEN reason = 'continued' THEN has_column_privilege('{schema}.runs', 'output', 'SELECT') END AS reads
FROM {schema}.runs WHERE id = $1;

-- name: leave_mail
-- A signal inside a transaction of the sender's: only inserted, unless there are $8 already, here and with the run that
-- is going to read it ($10, the last that this one went on as, or the same). It is delivered after the commit.
INSERT INTO {schema}.mailbox (run_id, id, kind, name, value, error, format, sent_at, delivered, trace)
SELECT $1::uuid, $2::uuid, $3, $4, $5, $6, $7::smallint, {now}, false, $9
WHERE (SELECT count(*) FROM (SELECT 1 FROM {schema}.mailbox b
                             WHERE b.run_id IN ($1, $10::uuid) AND b.kind = 'signal' LIMIT $8) AS x)
      < $8::bigint
ON CONFLICT (run_id, id) DO NOTHING
RETURNING 1;

-- name: undelivered
-- The oldest mail that was only inserted; its runs are locked, and mail of runs that are locked already is passed
-- over, so that however much of it there is it keeps none from the others. The mail itself is seen as it was when the
-- statement began: the next statement looks again, under the lock.
SELECT m.run_id::text AS run_id, m.id::text AS id
FROM {schema}.mailbox m JOIN {schema}.runs r ON r.id = m.run_id
WHERE NOT m.delivered
ORDER BY m.sent_at LIMIT $1
FOR NO KEY UPDATE OF r SKIP LOCKED;

-- name: undelivered_of
-- The mail, that was only inserted, of one run and of all that it went on as but the last; those that have some are locked,
-- and waited for.
WITH RECURSIVE chain AS (
    SELECT $1::uuid AS id
    UNION ALL
    SELECT h.id FROM chain c JOIN {schema}.runs r ON r.id = c.id AND r.reason = 'continued'
    JOIN {schema}.runs h ON h.id = {went_on}
)
SELECT m.run_id::text AS run_id, m.id::text AS id
FROM chain c JOIN {schema}.runs r ON r.id = c.id AND r.reason = 'continued'
CROSS JOIN LATERAL (SELECT b.run_id, b.id FROM {schema}.mailbox b WHERE b.run_id = c.id AND NOT b.delivered OFFSET 0) AS m
ORDER BY r.id
FOR NO KEY UPDATE OF r;

-- name: still_undelivered
-- What of this mail ($1 its runs, locked in this transaction, $2 its ids) is still to be delivered: one row for each run,
-- which says where it stands.
SELECT b.ids, b.kinds, {now} AS now_ms, {standing}
FROM (SELECT m.run_id, array_agg(m.id::text ORDER BY m.sent_at, m.id) AS ids,
             array_agg(m.kind || CASE WHEN m.start IS NULL THEN '' ELSE '+' END ORDER BY m.sent_at, m.id) AS kinds
      FROM unnest($1::uuid[], $2::uuid[]) AS u(run_id, id)
      JOIN {schema}.mailbox m ON m.run_id = u.run_id AND m.id = u.id
      WHERE m.delivered IS DISTINCT FROM true
      GROUP BY m.run_id) AS b
JOIN {schema}.runs r ON r.id = b.run_id;

-- override: delivered
-- Mail that its run has heard of.
UPDATE {schema}.mailbox m SET delivered = true FROM unnest($1::uuid[], $2::uuid[]) AS u(run_id, id)
WHERE m.run_id = u.run_id AND m.id = u.id;

-- name: remove_orphans
-- Mail that was never delivered to a run that is gone by now.
WITH orphans AS MATERIALIZED (
    SELECT m.run_id, m.id FROM {schema}.mailbox m
    WHERE NOT m.delivered AND (SELECT true FROM {schema}.runs r WHERE r.id = m.run_id) IS NULL
    ORDER BY m.sent_at LIMIT $1
    FOR UPDATE SKIP LOCKED
)
DELETE FROM {schema}.mailbox m USING orphans o WHERE m.run_id = o.run_id AND m.id = o.id RETURNING 1;

-- override: tell_parents
-- The ends of these runs, for those of them that have a parent: left in its box, in the transaction that ends them. A
-- child that an operator retried ends a second time. Who has a parent is told by reply_to, because a plan that asks for
-- parent_id may walk through the index of all children instead.
INSERT INTO {schema}.mailbox (run_id, id, kind, name, value, error, format, sent_at, delivered)
SELECT r.parent_id, r.reply_to, 'child', r.status, r.output, r.error, COALESCE(r.output_format, r.format), {now}, false
FROM unnest($1::uuid[]) AS u(id) JOIN {schema}.runs r ON r.id = u.id
WHERE r.reply_to IS NOT NULL
ORDER BY r.parent_id, r.reply_to
ON CONFLICT (run_id, id) DO UPDATE
SET kind = excluded.kind, name = excluded.name, value = excluded.value, error = excluded.error,
    format = excluded.format, sent_at = excluded.sent_at, delivered = false
RETURNING 1;

-- override: tell_again
-- Results of children that their parents, which are being retried, have not taken: what came after they had ended was
-- thrown away. A child that failed is retried with its parent, and tells of its end by itself.
INSERT INTO {schema}.mailbox (run_id, id, kind, name, value, error, format, sent_at, delivered)
SELECT c.parent_id, c.reply_to, 'child', c.status, c.output, c.error, COALESCE(c.output_format, c.format), {now}, false
FROM unnest($1::uuid[]) AS u(id)
CROSS JOIN LATERAL (SELECT * FROM {schema}.runs k WHERE k.parent_id = u.id OFFSET 0) AS c
WHERE c.reply_to IS NOT NULL AND c.status = 'completed' AND c.reason IS DISTINCT FROM 'continued'
  AND c.reply_to NOT IN (SELECT s.mail FROM {schema}.steps s WHERE s.run_id = u.id AND s.mail IS NOT NULL)
ON CONFLICT (run_id, id) DO NOTHING;

-- override: tell_children
-- Children of those of these runs that were cancelled are to be cancelled too. OFFSET 0 keeps the planner from walking
-- through all the children there are, once, instead of looking those of each parent up.
INSERT INTO {schema}.mailbox (run_id, id, kind, name, format, sent_at, delivered)
SELECT c.id, p.id, 'cancel', '', 1, {now}, false
FROM unnest($1::uuid[]) AS u(id)
JOIN {schema}.runs p ON p.id = u.id
CROSS JOIN LATERAL (SELECT k.id, k.status FROM {schema}.runs k
                    WHERE k.parent_id = p.id AND NOT k.detached OFFSET 0) AS c
WHERE (p.status = 'cancelled' OR p.reason = 'cancelled') AND NOT p.spares_children
  AND c.status NOT IN ({ended})
ORDER BY c.id
ON CONFLICT (run_id, id) DO NOTHING
RETURNING 1;

-- override: take_mail
-- Mail that runs take, in the transaction that records that they did.
DELETE FROM {schema}.mailbox m USING unnest($1::uuid[], $2::uuid[]) AS t(run_id, id)
WHERE m.run_id = t.run_id AND m.id = t.id;
