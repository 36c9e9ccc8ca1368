-- PostgreSQL: a schema of its own, rows locked by FOR NO KEY UPDATE (by FOR UPDATE only to remove them). An index on
-- (workflow, id) would serve lists of one workflow, but every claim and every completion would have to write it too:
-- without it, noop tasks ran 6 to 24 % faster in three of four runs side by side.

-- after: queues
-- What is done by one process at a time, without a lock on rows of others: who does it has locked the row of its name,
-- `removal` or `starts QUEUE`. These are rows, not advisory locks, because a pooler or a cluster may ask another server for
-- the lock than for the rows.
CREATE TABLE {schema}.turns (
    name text NOT NULL PRIMARY KEY
);
INSERT INTO {schema}.turns (name) VALUES ('removal');

-- before: runs_readable
-- What the views show as JSON. A text that is no JSON, written by hand, is shown as a JSON text; otherwise one such row
-- would make every query of the view fail.
CREATE FUNCTION {schema}.as_json(value text) RETURNS json LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
    RETURN value::pg_catalog.json;
EXCEPTION WHEN OTHERS THEN
    RETURN to_json(value);
END
$$;

-- instead of: sleeps
CREATE VIEW {sleeps} AS
SELECT s.run_id, s.branch, s.position, e.ended_at
FROM {steps} s
CROSS JOIN LATERAL (SELECT COALESCE(substring(s.output, '"until": *([0-9]{1,15})[,}]')::bigint,
                                    s.completed_at + substring(s.output, '"for": *([0-9]{1,15})[,}]')::bigint)
                               AS ended_at) e
WHERE s.kind = 'sleep' AND s.status = 'waiting'
  AND e.ended_at <= COALESCE((SELECT r.completed_at FROM {runs} r WHERE r.id = s.run_id), {now});

-- after: checkpoints
-- The later of two is the greater by its characters, and not by the language of the database.
ALTER TABLE {schema}.checkpoints ALTER COLUMN checkpoint TYPE text COLLATE "C";
