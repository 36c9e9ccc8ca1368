-- compatible from: 1
-- Waiting for more than a time: mail, children, operators' wishes, undo. What the columns mean is told in the Postgres
-- migration of the same number; here they differ in their types only.
--
-- A run counts the ends of its children that were delivered to it (`ends`), and sleeps until there are `awaits` of them; then
-- it gathers more for `linger_ms`. `reply_to` is the id under which its own parent waits for its end, `origin_id` the run
-- that it continues. `undoing` is set once its completed steps are being undone, and stays. `held_due` is when a paused run
-- would have been due. `unrecorded_losses` are the workers that died with it since its last new record, `losses` those since
-- that record or since it last came to a wait. A step names its `undo` and the
-- `mail` that it took, and how many workers died while it was under way (`losses`); a failed try says when the next is due. Mail that was only inserted, by
-- whoever could not or must not touch the run's row, is not `delivered`; the index holds just that.

ALTER TABLE {prefix}runs ADD COLUMN ends INTEGER NOT NULL DEFAULT 0;
ALTER TABLE {prefix}runs ADD COLUMN awaits INTEGER;
ALTER TABLE {prefix}runs ADD COLUMN linger_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE {prefix}runs ADD COLUMN undoing INTEGER NOT NULL DEFAULT 0;
ALTER TABLE {prefix}runs ADD COLUMN reply_to TEXT;
ALTER TABLE {prefix}runs ADD COLUMN origin_id TEXT;
ALTER TABLE {prefix}runs ADD COLUMN held_due INTEGER;
ALTER TABLE {prefix}runs ADD COLUMN unrecorded_losses INTEGER NOT NULL DEFAULT 0;

ALTER TABLE {prefix}steps ADD COLUMN undo TEXT;
ALTER TABLE {prefix}steps ADD COLUMN mail TEXT;
ALTER TABLE {prefix}steps ADD COLUMN losses INTEGER;

ALTER TABLE {prefix}tries ADD COLUMN due_at INTEGER;

ALTER TABLE {prefix}mailbox ADD COLUMN delivered INTEGER NOT NULL DEFAULT 1;
CREATE INDEX {prefix}mailbox_undelivered ON {prefix}mailbox (sent_at) WHERE delivered = 0;

CREATE TABLE {prefix}run_values (
    run_id     TEXT NOT NULL,
    key        TEXT NOT NULL,
    value      TEXT NOT NULL,
    format     INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (run_id, key)
) WITHOUT ROWID;

-- The record of a sleep stays as it was made when the sleep began. When it was over, if it is, follows from its plan; a
-- sleep that its run did not live to see the end of is not over. What is open has no end.
CREATE VIEW {prefix}sleeps AS
SELECT * FROM (
    SELECT run_id, branch, position,
           COALESCE(json_extract(output, '$.until'), completed_at + json_extract(output, '$.for')) AS ended_at
    FROM {prefix}steps WHERE kind = 'sleep' AND status = 'waiting' AND json_valid(output)) AS s
WHERE ended_at <= COALESCE((SELECT r.completed_at FROM {prefix}runs r WHERE r.id = s.run_id), {now});

DROP VIEW {prefix}activity;
CREATE VIEW {prefix}activity AS
SELECT run_id, branch, position, name, 0 AS attempt, attempts AS number, status,
       arguments, output, error, format, started_at, completed_at, claim, losses
FROM {prefix}steps WHERE status NOT IN ('failed', 'waiting')   -- what failed is in `tries`; what is open has no outcome yet
UNION ALL
SELECT s.run_id, s.branch, s.position, s.name, 0, s.attempts, 'completed', s.output, NULL, NULL, s.format, s.started_at, e.ended_at,
       s.claim, NULL
FROM {prefix}sleeps e
JOIN {prefix}steps s ON s.run_id = e.run_id AND s.branch = e.branch AND s.position = e.position
UNION ALL
SELECT run_id, branch, position, name, attempt, number, 'failed', arguments, NULL, error, format, started_at, completed_at,
       claim, NULL
FROM {prefix}tries;

DROP VIEW {prefix}steps_readable;
CREATE VIEW {prefix}steps_readable AS
SELECT s.run_id, s.branch, s.position, s.seq, s.name, s.kind,
       CASE WHEN e.ended_at IS NULL THEN s.status ELSE 'completed' END AS status, s.attempts, s.line,
       CASE WHEN s.format = 1 THEN s.output END AS output,
       CASE WHEN s.error LIKE '{%' THEN s.error END AS error,
       CASE WHEN s.format = 1 THEN s.arguments END AS arguments,
       s.undo,
       strftime('%Y-%m-%d %H:%M:%f', s.started_at / 1000.0, 'unixepoch') AS started_at,
       strftime('%Y-%m-%d %H:%M:%f', CASE WHEN s.status = 'waiting' THEN e.ended_at ELSE s.completed_at END / 1000.0, 'unixepoch')
           AS completed_at,
       s.executed_by, (SELECT w.host FROM {prefix}known_workers w WHERE w.id = s.executed_by) AS host,
       (SELECT w.pid FROM {prefix}known_workers w WHERE w.id = s.executed_by) AS pid,
       CASE WHEN s.format = 1 THEN s.arguments END AS parameters
FROM (SELECT t.*, COALESCE((SELECT c.worker FROM {prefix}claims c
                         WHERE c.run_id = t.run_id AND c.claim >= t.claim ORDER BY c.claim LIMIT 1),
                        (SELECT r.executed_by FROM {prefix}runs r WHERE r.id = t.run_id)) AS executed_by
      FROM {prefix}steps t) AS s
LEFT JOIN {prefix}sleeps e ON e.run_id = s.run_id AND e.branch = s.branch AND e.position = s.position;

CREATE VIEW {prefix}progress_readable AS
SELECT run_id, branch, position, name, detail, CASE WHEN format = 1 THEN data END AS data,
       strftime('%Y-%m-%d %H:%M:%f', started_at / 1000.0, 'unixepoch') AS started_at,
       strftime('%Y-%m-%d %H:%M:%f', updated_at / 1000.0, 'unixepoch') AS updated_at
FROM {prefix}progress;

CREATE VIEW {prefix}values_readable AS
SELECT run_id, key, CASE WHEN format = 1 THEN value END AS value,
       strftime('%Y-%m-%d %H:%M:%f', updated_at / 1000.0, 'unixepoch') AS updated_at
FROM {prefix}run_values WHERE key NOT LIKE '~until/%' AND key NOT LIKE '~graph%';
