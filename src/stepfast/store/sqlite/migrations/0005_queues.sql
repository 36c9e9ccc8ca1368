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

CREATE TABLE {prefix}queues (
    name          TEXT PRIMARY KEY NOT NULL,
    paused        INTEGER NOT NULL DEFAULT 0,
    paused_at     INTEGER,
    declared      TEXT,
    declared_by   TEXT,
    declared_at   INTEGER,
    chosen        TEXT,
    limited       INTEGER NOT NULL DEFAULT 0,
    limited_since INTEGER,
    counted_at    INTEGER,
    max_ready     INTEGER,
    pruned_at     INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX {prefix}queues_gated ON {prefix}queues (name) WHERE paused OR limited;

CREATE TABLE {prefix}queue_starts (
    queue  TEXT NOT NULL,
    key    TEXT NOT NULL,
    at     INTEGER NOT NULL,
    number INTEGER NOT NULL,
    PRIMARY KEY (queue, key, at)
) WITHOUT ROWID;

ALTER TABLE {prefix}runs ADD COLUMN counted_attempt INTEGER;
-- JSON: queue -> the limits that the code of this worker declares.
ALTER TABLE {prefix}workers ADD COLUMN limits TEXT NOT NULL DEFAULT '{}';

CREATE INDEX {prefix}runs_counted ON {prefix}runs (queue, concurrency_key)
    WHERE worker IS NOT NULL AND counted_attempt IS NOT NULL;
CREATE INDEX {prefix}runs_resuming ON {prefix}runs (queue, workflow, priority DESC, place)
    WHERE place IS NOT NULL AND losses < 2 AND (counted_attempt = attempt OR (graph IS NOT NULL AND dag_id IS NULL));
-- What is ready of one key: a customer with a hundred thousand runs is passed by in one step.
CREATE INDEX {prefix}runs_keyed ON {prefix}runs (queue, workflow, concurrency_key, priority DESC, place)
    WHERE place IS NOT NULL AND losses < 2 AND concurrency_key IS NOT NULL;
