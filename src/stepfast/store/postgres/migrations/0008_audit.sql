-- compatible from: 1
-- The AUDIT is what people have done by the console: a line for each action, written before it is carried out and closed
-- when its end is known. Nothing is done without a line; one that was never closed says that the process ended meanwhile,
-- and that the action may or may not have happened. Lines hold no payloads. Whoever writes a line deletes some of those
-- whose time is over (setting retention_audit).

CREATE TABLE {schema}.audit (
    id      uuid PRIMARY KEY,             -- sorts by time
    at      bigint NOT NULL,
    who     text NOT NULL,                -- the name that the console knows them by
    what    text NOT NULL,                -- run.cancel, queue.pause …
    which   text NOT NULL,                -- the run, queue or schedule; of many runs, what they were chosen by
    origin  text NOT NULL,                -- from where: the address of the client
    detail  text,                         -- JSON: what else was asked
    outcome text NOT NULL,                -- begun, done, refused, failed
    said    text                          -- what came of it, in words
);
-- What was done to one run, queue or schedule.
CREATE INDEX audit_which ON {schema}.audit (which, id);

CREATE VIEW {schema}.audit_readable AS
SELECT id, to_timestamp(at::numeric / 1000.0) AS at, who, what, which, origin, {schema}.as_json(detail) AS detail, outcome, said
FROM {schema}.audit;
