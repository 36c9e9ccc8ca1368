-- compatible from: 1
-- SCHEDULES start runs at certain times, their ticks: those of a cron expression in a time zone, or every so many
-- milliseconds, counted from `created_at`.
--
--   next_at     the first tick that nothing was decided about yet. Whoever starts its run moves it on, in the same
--               transaction and under a lock on the row; so each tick starts one run, which also has the key name@tick.
--   due_at      when a worker has to come to it: at `next_at`, or later, if it could not be started. Null: it is paused,
--               or there is no tick any more.
--   declared    code declares it. Only a worker whose code does so starts its runs (`workers.schedules`), so that it
--               sleeps while there is none.
--   woken_at    when a worker came that could start it, after there had been none: ticks until then were missed.
--   error       why it could not be started, since when nothing of it was.
--
-- A DEBOUNCED start keeps its key in `runs.debounced` rather than in `runs.key`: further starts of the key find the run
-- there and put it off, but only until a worker first claims it or it ends. That is the condition of an index, so that the
-- key is free again at that moment without anybody having to do anything for it.

CREATE TABLE {prefix}schedules (
    name       TEXT PRIMARY KEY NOT NULL,
    workflow   TEXT NOT NULL,
    cron       TEXT,
    every_ms   INTEGER,
    tz         TEXT NOT NULL,
    input      TEXT NOT NULL,
    format     INTEGER NOT NULL,
    options    TEXT NOT NULL,             -- JSON: options of the starts
    missed     TEXT NOT NULL,             -- skip, latest, all
    overlap    TEXT NOT NULL,             -- allow, skip
    jitter_ms  INTEGER NOT NULL,
    declared   INTEGER NOT NULL,
    paused     INTEGER NOT NULL,
    next_at    INTEGER,
    due_at     INTEGER,
    woken_at   INTEGER NOT NULL,
    last_at    INTEGER,                    -- the last tick that started a run, and which
    last_run    TEXT,
    error      TEXT,
    created_at INTEGER NOT NULL
);

-- What code declares is not in it, but found by name: if nobody has that code any more, it stays due for ever.
CREATE INDEX {prefix}schedules_due ON {prefix}schedules (due_at) WHERE due_at IS NOT NULL AND declared = 0;

ALTER TABLE {prefix}workers ADD COLUMN schedules TEXT NOT NULL DEFAULT '[]';   -- JSON: names that its code declares

ALTER TABLE {prefix}runs ADD COLUMN debounced TEXT;
CREATE UNIQUE INDEX {prefix}runs_debounced ON {prefix}runs (workflow, debounced)
    WHERE debounced IS NOT NULL AND started_at IS NULL AND completed_at IS NULL;

CREATE VIEW {prefix}schedules_readable AS
SELECT name, workflow, cron, every_ms / 1000.0 AS every, tz, missed, overlap, jitter_ms / 1000.0 AS jitter,
       declared, paused, CASE WHEN format = 1 THEN input END AS input, options, error,
       strftime('%Y-%m-%d %H:%M:%f', next_at / 1000.0, 'unixepoch') AS next_at,
       strftime('%Y-%m-%d %H:%M:%f', last_at / 1000.0, 'unixepoch') AS last_at, last_run,
       strftime('%Y-%m-%d %H:%M:%f', created_at / 1000.0, 'unixepoch') AS created_at
FROM {prefix}schedules;
