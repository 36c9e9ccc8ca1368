-- Mail: what others put into a run's box, and how it reaches the run. All changes of mail that exists are made under
-- the lock of the run it is for; only inserting needs none.

-- name: send
-- A signal for a run that is locked in this transaction. If it is there already, or as many as $8 others are, nothing is
-- inserted.
INSERT INTO {schema}.mailbox (run_id, id, kind, name, value, error, format, sent_at, delivered, trace)
SELECT $1::uuid, $2::uuid, $3, $4, $5, $6, $7::smallint, {now}, true, $9
WHERE (SELECT count(*) FROM (SELECT 1 FROM {schema}.mailbox b WHERE b.run_id = $1 AND b.kind = 'signal' LIMIT $8) AS x)
      < $8::bigint
ON CONFLICT (run_id, id) DO NOTHING
RETURNING 1;

-- name: was_taken
-- Whether a run took this signal before: asked only by a sender whose reply was lost.
SELECT true FROM {schema}.steps WHERE run_id = $1 AND mail = $2 LIMIT 1;

-- name: was_taken_by_any
-- Whether a run, or one of those that it went on as, took this signal before: mail that is not taken goes on with the run.
WITH RECURSIVE chain AS (
    SELECT r.id, CASE WHEN r.reason = 'continued' THEN {went_on} END AS next FROM {schema}.runs r WHERE r.id = $1
    UNION ALL
    SELECT r.id, CASE WHEN r.reason = 'continued' THEN {went_on} END
    FROM chain c {join} {schema}.runs r ON r.id = c.next
)
SELECT true FROM chain c {join} {schema}.steps s ON s.run_id = c.id WHERE s.mail = $2 LIMIT 1;

-- name: is_there
-- Whether a signal lies in the box.
SELECT true FROM {schema}.mailbox WHERE run_id = $1 AND id = $2;

-- name: words
-- What pieces of mail ($1 their runs, $2 their ids) say, the oldest first.
SELECT m.run_id::text AS run_id, m.value
FROM unnest($1::uuid[], $2::uuid[]) AS u(run_id, id) {join} {schema}.mailbox m ON m.run_id = u.run_id AND m.id = u.id
ORDER BY m.sent_at, m.id;

-- name: forward
-- Mail ($1 its runs, $2 its ids) goes to the boxes of others ($3), to be delivered there.
INSERT INTO {schema}.mailbox (run_id, id, kind, name, value, error, format, sent_at, delivered, trace)
SELECT u.continuation, m.id, m.kind, m.name, m.value, m.error, m.format, m.sent_at, false, m.trace
FROM unnest($1::uuid[], $2::uuid[], $3::uuid[]) AS u(run_id, id, continuation)
{join} {schema}.mailbox m ON m.run_id = u.run_id AND m.id = u.id
WHERE true
ON CONFLICT (run_id, id) DO NOTHING;
