-- compatible from: 1
-- Waiting for more than a time: mail, children, operators' wishes, undo. What the columns mean is told in the Postgres
-- migration of the same number; here they differ in their types only.
--
-- A run counts the ends of its children that were delivered to it (`ends`), and sleeps until there are `awaits` of them; then
-- it gathers more for `linger_ms`. `reply_to` is the id under which its own parent waits for its end, `origin_id` the run
-- that it continues. `undoing` is set once its completed steps are being undone, and stays. `held_due` is when a paused run
-- would have been due. A step names its `undo` and the
-- `mail` that it took; a failed try says when the next is due. Mail that was only inserted, by
-- whoever could not or must not touch the run's row, is not `delivered`; the index holds just that.

ALTER TABLE {prefix}runs ADD COLUMN ends INTEGER NOT NULL DEFAULT 0;
ALTER TABLE {prefix}runs ADD COLUMN awaits INTEGER;
ALTER TABLE {prefix}runs ADD COLUMN linger_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE {prefix}runs ADD COLUMN undoing INTEGER NOT NULL DEFAULT 0;
ALTER TABLE {prefix}runs ADD COLUMN reply_to TEXT;
ALTER TABLE {prefix}runs ADD COLUMN origin_id TEXT;
ALTER TABLE {prefix}runs ADD COLUMN held_due INTEGER;

ALTER TABLE {prefix}steps ADD COLUMN undo TEXT;
ALTER TABLE {prefix}steps ADD COLUMN mail TEXT;

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

DROP VIEW {prefix}activity;
CREATE VIEW {prefix}activity AS
SELECT run_id, branch, position, name, 0 AS attempt, attempts AS number, status,
       arguments, output, error, format, started_at, completed_at
FROM {prefix}steps WHERE status NOT IN ('failed', 'waiting')   -- failed tries are in `tries`; an open record is no call yet
UNION ALL
SELECT run_id, branch, position, name, attempt, number, 'failed', arguments, NULL, error, format, started_at, completed_at
FROM {prefix}tries;

DROP VIEW {prefix}steps_readable;
CREATE VIEW {prefix}steps_readable AS
SELECT run_id, branch, position, seq, name, kind, status, attempts, line,
       CASE WHEN format = 1 THEN output END AS output,
       error,
       CASE WHEN format = 1 THEN arguments END AS arguments,
       undo,
       strftime('%Y-%m-%d %H:%M:%f', started_at / 1000.0, 'unixepoch') AS started_at,
       strftime('%Y-%m-%d %H:%M:%f', completed_at / 1000.0, 'unixepoch') AS completed_at
FROM {prefix}steps;
