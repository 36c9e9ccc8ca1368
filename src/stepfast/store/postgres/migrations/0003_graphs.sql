-- compatible from: 1
--
-- Declared graphs. A dag run is one row of `runs`, and each of its steps is another, with `dag_id` and `dag_step`: a step
-- has its own place in the queue, its own claim, attempts and records, and any worker may take it.
--
--   pending      of a dag run: how many of its steps are not settled yet. It is not ready until that is 0, and then
--                to be finished. Of a step: how many of its dependencies are not settled yet. While there are any that it
--                needs it is `waiting` for `steps`, and has neither a place nor a time.
--   met          of a step: how many of them completed.
--   ready_at     of a step: when it became ready; what completes later is not for it. Of a dag run: the last time one of
--                its steps was settled: the next one is settled later than that, even within a millisecond.
--   graph        the version of the graph that a dag run and its steps go by.
--   failing      of a dag run: a step failed, or it was cancelled or late. None of its steps begins any more.
--   ordinal      of a step: its number in the declaration.
--
-- Whoever settles a step locks the row of the dag run first, and so the counts are changed by one at a time. Whoever
-- waits for rows of steps holds the row of their dag run; whoever holds rows of steps without it waits for nothing.

ALTER TABLE {schema}.runs
    ADD COLUMN pending     integer NOT NULL DEFAULT 0,
    ADD COLUMN met         integer NOT NULL DEFAULT 0,
    ADD COLUMN ready_at    bigint,
    ADD COLUMN graph       text,
    ADD COLUMN failing     boolean NOT NULL DEFAULT false,
    ADD COLUMN ordinal     integer;

CREATE UNIQUE INDEX runs_dag_step ON {schema}.runs (dag_id, dag_step) WHERE dag_id IS NOT NULL;
-- For reading on where one left off: what else has completed since.
CREATE INDEX runs_outputs ON {schema}.runs (dag_id, completed_at) WHERE dag_id IS NOT NULL AND status = 'completed';

-- Lists leave steps out, and many of them wait.
DROP INDEX {schema}.runs_at_rest;
CREATE INDEX runs_at_rest ON {schema}.runs (status, id)
    WHERE status IN ('waiting', 'paused', 'failed', 'cancelled', 'compensating', 'compensated') AND dag_id IS NULL;

-- How a dag run is shown whose row says that it runs: as its steps stand. If all of them that could be executed wait, it
-- waits; before the first of them has begun, and while all are put off, it is queued. (The sum keeps the planner from
-- walking through the timers of all runs for the earliest of these.)
CREATE INDEX runs_dags ON {schema}.runs (id) WHERE status = 'running' AND graph IS NOT NULL AND dag_id IS NULL;
CREATE VIEW {schema}.dags_shown AS
SELECT r.id,
       CASE WHEN (SELECT true FROM {schema}.runs s
                  WHERE s.dag_id = r.id AND (s.worker IS NOT NULL OR s.place IS NOT NULL) LIMIT 1) THEN 'running'
            WHEN (SELECT true FROM {schema}.runs s
                  WHERE s.dag_id = r.id AND s.status = 'waiting' AND s.waiting_for <> 'steps' LIMIT 1) THEN 'waiting'
            WHEN (SELECT true FROM {schema}.runs s WHERE s.dag_id = r.id AND s.started_at IS NOT NULL LIMIT 1)
            THEN 'running'
            WHEN (SELECT true FROM {schema}.runs s WHERE s.dag_id = r.id AND s.status = 'queued' LIMIT 1) THEN 'queued'
            ELSE 'running' END AS status,
       (SELECT s.waiting_for FROM {schema}.runs s
        WHERE s.dag_id = r.id AND s.status = 'waiting' AND s.waiting_for <> 'steps'
        ORDER BY s.visible_at IS NULL, s.visible_at, s.id LIMIT 1) AS waiting_for,
       (SELECT min(s.visible_at + 0) FROM {schema}.runs s
        WHERE s.dag_id = r.id AND (s.status = 'queued' OR (s.status = 'waiting' AND s.waiting_for <> 'steps'))) AS due_at
FROM {schema}.runs r
WHERE r.status = 'running' AND r.graph IS NOT NULL AND r.dag_id IS NULL
  AND r.worker IS NULL AND r.place IS NULL AND NOT r.failing;
