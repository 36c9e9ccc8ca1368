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

CREATE TABLE {schema}.schedules (
    name       text PRIMARY KEY,
    workflow   text NOT NULL,
    cron       text,
    every_ms   bigint,
    tz         text NOT NULL,
    input      text NOT NULL,
    format     smallint NOT NULL,
    options    text NOT NULL,             -- JSON: options of the starts
    missed     text NOT NULL,             -- skip, latest, all
    overlap    text NOT NULL,             -- allow, skip
    jitter_ms  bigint NOT NULL,
    declared   boolean NOT NULL,
    paused     boolean NOT NULL,
    next_at    bigint,
    due_at     bigint,
    woken_at   bigint NOT NULL,
    last_at    bigint,                    -- the last tick that started a run, and which
    last_run   uuid,
    error      text,
    created_at bigint NOT NULL
);

-- What code declares is not in it, but found by name: if nobody has that code any more, it stays due for ever.
CREATE INDEX schedules_due ON {schema}.schedules (due_at) WHERE due_at IS NOT NULL AND NOT declared;

ALTER TABLE {schema}.workers ADD COLUMN schedules text NOT NULL DEFAULT '[]';   -- JSON: names that its code declares

ALTER TABLE {schema}.runs ADD COLUMN debounced text;
CREATE UNIQUE INDEX runs_debounced ON {schema}.runs (workflow, debounced)
    WHERE debounced IS NOT NULL AND started_at IS NULL AND completed_at IS NULL;

CREATE VIEW {schema}.schedules_readable AS
SELECT name, workflow, cron, every_ms::numeric / 1000.0 AS every, tz, missed, overlap, jitter_ms::numeric / 1000.0 AS jitter,
       declared, paused, CASE WHEN format = 1 THEN {schema}.as_json(input) END AS input,
       {schema}.as_json(options) AS options, error,
       to_timestamp(next_at::numeric / 1000.0) AS next_at,
       to_timestamp(last_at::numeric / 1000.0) AS last_at, last_run,
       to_timestamp(created_at::numeric / 1000.0) AS created_at
FROM {schema}.schedules;
