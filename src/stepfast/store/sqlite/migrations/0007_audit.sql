-- compatible from: 1
-- The AUDIT is what people have done by the console: a line for each action, written before it is carried out and closed
-- when its end is known. Nothing is done without a line; one that was never closed says that the process ended meanwhile,
-- and that the action may or may not have happened. Lines hold no payloads. Whoever writes a line deletes some of those
-- whose time is over (setting retention_audit).

CREATE TABLE {prefix}audit (
    id      TEXT PRIMARY KEY NOT NULL,    -- sorts by time
    at      INTEGER NOT NULL,
    who     TEXT NOT NULL,                -- the name that the console knows them by
    what    TEXT NOT NULL,                -- run.cancel, queue.pause …
    which   TEXT NOT NULL,                -- the run, queue or schedule; of many runs, what they were chosen by
    origin  TEXT NOT NULL,                -- from where: the address of the client
    detail  TEXT,                         -- JSON: what else was asked
    outcome TEXT NOT NULL,                -- begun, done, refused, failed
    said    TEXT                          -- what came of it, in words
) WITHOUT ROWID;
-- What was done to one run, queue or schedule.
CREATE INDEX {prefix}audit_which ON {prefix}audit (which, id);

CREATE VIEW {prefix}audit_readable AS
SELECT id, strftime('%Y-%m-%d %H:%M:%f', at / 1000.0, 'unixepoch') AS at, who, what, which, origin, detail, outcome, said
FROM {prefix}audit;
