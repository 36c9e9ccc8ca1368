-- compatible from: 1
--
-- Queues that somebody has said something about: that they are paused, or limited. A queue without a row is neither.
--
-- A queue that is paused or limited is GATED: the usual claim leaves it out. A paused one is claimed by nobody; a limited
-- one by a claim of its own, which holds the row of the queue locked while it counts what runs there and what was
-- started lately, and takes no more than its limits allow.
--
--   declared         JSON: the limits that the code declares, by whom and when.
--   chosen           JSON: what an operator has set. Each limit in it wins over the declared one; null lifts that.
--   limited          whether a limit on claims holds: on what runs at once, or on what is started in a time.
--   limited_since    since when. What a worker held by then was claimed without being counted;
--   counted_at       when such runs were last looked for, and counted in.
--   max_ready        how many runs may be ready before a start is refused.
--
-- RUNS.COUNTED_ATTEMPT is the attempt that a run was last claimed for in a limited queue. Such a run counts
-- against the limits while it names a worker, and is found by `runs_counted`. Claimed again for the same attempt (after a wait, or
-- from a dead worker) it counts against no rate: `runs_resuming` has these, and dag runs that are to be finished.
--
-- QUEUE_STARTS is the log of a rate: how many attempts were begun at a time, of the whole queue (key '') or of one key.
-- What no window can reach any more is deleted by the claims themselves.

CREATE TABLE {schema}.queues (
    name          text PRIMARY KEY,
    paused        boolean NOT NULL DEFAULT false,
    paused_at     bigint,
    declared      text,
    declared_by   text,
    declared_at   bigint,
    chosen        text,
    limited       boolean NOT NULL DEFAULT false,
    limited_since bigint,
    counted_at    bigint,
    max_ready     integer,
    pruned_at     bigint NOT NULL DEFAULT 0
);
CREATE INDEX queues_gated ON {schema}.queues (name) WHERE paused OR limited;

CREATE TABLE {schema}.queue_starts (
    queue  text NOT NULL,
    key    text NOT NULL,
    at     bigint NOT NULL,
    number integer NOT NULL,
    PRIMARY KEY (queue, key, at)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500);

ALTER TABLE {schema}.runs ADD COLUMN counted_attempt integer;
-- JSON: queue -> the limits that the code of this worker declares.
ALTER TABLE {schema}.workers ADD COLUMN limits text NOT NULL DEFAULT '{}';

CREATE INDEX runs_counted ON {schema}.runs (queue, concurrency_key)
    WHERE worker IS NOT NULL AND counted_attempt IS NOT NULL;
CREATE INDEX runs_resuming ON {schema}.runs (queue, workflow, priority DESC, place)
    WHERE place IS NOT NULL AND losses < 2 AND (counted_attempt = attempt OR (graph IS NOT NULL AND dag_id IS NULL));
-- What is ready of one key: a customer with a hundred thousand runs is passed by in one step.
CREATE INDEX runs_keyed ON {schema}.runs (queue, workflow, concurrency_key, priority DESC, place)
    WHERE place IS NOT NULL AND losses < 2 AND concurrency_key IS NOT NULL;
