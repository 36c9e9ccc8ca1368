-- compatible from: 1
-- Dag runs: each step is a row of `runs` with `dag_id` and `dag_step`, beside the row of the dag run itself.
--
-- `pending` counts what a row waits for: of a dag run the steps that are not settled yet, of a step its dependencies; `met` those of
-- them that completed. A blocked step is 'waiting' for 'steps' and has neither place nor time; it becomes ready, at
-- `ready_at`, by the transaction that settles the dependency it waited for; what completes later is not for it. Of a dag
-- run that is when a step of it was last settled: the next one is settled later than that, be it by a millisecond that has not
-- passed yet, or though the clock went back. `graph` is the version of the graph that a
-- dag run and its steps go by. `failing` is set once a step of a dag run has failed, or the run was cancelled or late:
-- nothing of it becomes ready any more.
--
-- A dag run is not ready while its steps are at work; whoever settles the last of them makes it ready, to be finished.

ALTER TABLE {prefix}runs ADD COLUMN pending INTEGER NOT NULL DEFAULT 0;
ALTER TABLE {prefix}runs ADD COLUMN met INTEGER NOT NULL DEFAULT 0;
ALTER TABLE {prefix}runs ADD COLUMN ready_at INTEGER;
ALTER TABLE {prefix}runs ADD COLUMN graph TEXT;
ALTER TABLE {prefix}runs ADD COLUMN failing INTEGER NOT NULL DEFAULT 0;

CREATE UNIQUE INDEX {prefix}runs_dag_step ON {prefix}runs (dag_id, dag_step) WHERE dag_id IS NOT NULL;
-- For reading on where one left off: what else has completed since.
CREATE INDEX {prefix}runs_outputs ON {prefix}runs (dag_id, completed_at) WHERE dag_id IS NOT NULL AND status = 'completed';

-- Lists leave steps out, and there may be many that wait.
DROP INDEX {prefix}runs_at_rest;
CREATE INDEX {prefix}runs_at_rest ON {prefix}runs (status, id)
    WHERE status IN ('waiting', 'paused', 'failed', 'cancelled', 'compensating', 'compensated') AND dag_id IS NULL;

-- How a dag run is shown whose row says that it runs: as its steps stand. If all of them that could be executed wait, it
-- waits; before the first of them has begun, and while all are put off, it is queued. (The sum keeps the planner from
-- walking through the timers of all runs for the earliest of these.)
CREATE INDEX {prefix}runs_dags ON {prefix}runs (id) WHERE status = 'running' AND graph IS NOT NULL AND dag_id IS NULL;
CREATE VIEW {prefix}dags_shown AS
SELECT r.id,
       CASE WHEN EXISTS (SELECT 1 FROM {prefix}runs s
                         WHERE s.dag_id = r.id AND s.dag_id IS NOT NULL AND (s.worker IS NOT NULL OR s.place IS NOT NULL)) THEN 'running'
            WHEN EXISTS (SELECT 1 FROM {prefix}runs s
                         WHERE s.dag_id = r.id AND s.dag_id IS NOT NULL AND s.status = 'waiting' AND s.waiting_for <> 'steps') THEN 'waiting'
            WHEN EXISTS (SELECT 1 FROM {prefix}runs s WHERE s.dag_id = r.id AND s.dag_id IS NOT NULL AND s.status = 'queued')
                 AND NOT EXISTS (SELECT 1 FROM {prefix}runs s WHERE s.dag_id = r.id AND s.dag_id IS NOT NULL AND s.started_at IS NOT NULL)
            THEN 'queued' ELSE 'running' END AS status,
       (SELECT s.waiting_for FROM {prefix}runs s
        WHERE s.dag_id = r.id AND s.dag_id IS NOT NULL AND s.status = 'waiting' AND s.waiting_for <> 'steps'
        ORDER BY s.visible_at IS NULL, s.visible_at, s.id LIMIT 1) AS waiting_for,
       (SELECT min(s.visible_at + 0) FROM {prefix}runs s
        WHERE s.dag_id = r.id AND s.dag_id IS NOT NULL AND (s.status = 'queued' OR (s.status = 'waiting' AND s.waiting_for <> 'steps'))) AS due_at
FROM {prefix}runs r
WHERE r.status = 'running' AND r.graph IS NOT NULL AND r.dag_id IS NULL
  AND r.worker IS NULL AND r.place IS NULL AND NOT r.failing;
