-- compatible from: 1
--
-- Waiting, children, operators and undo: what a run needs in order to wait for something outside of it.
--
-- MAIL that others put into a run's box (a signal sent inside somebody's transaction, the end of a child, a parent's
-- cancellation) is only inserted, and locks no run. It is `delivered` a moment later by whichever worker looks next:
-- the run is counted up, and woken if that is what it waits for. Who sends a signal directly does both at once.
--
--   ends        how many ends of children were delivered. A run that waits for children names, in `awaits`, the count
--               at which it is to be woken, so that a parent of ten thousand is woken once; within `linger_ms` of that
--               some more are gathered.
--   reply_to    the id under which a parent waits for the end of this run.
--   undoing     completed steps are being undone. From then on the run is `compensating` wherever it would otherwise be
--               queued, running or waiting, and no longer has a deadline.
--   held_due    for a paused run: when it would have been due.
--   origin_id   the run that this one continues or repeats.
--
-- A STEP may now be open: with the status `waiting` its row is what was decided when it began (until when it sleeps,
-- that a child was started), and is replaced, once, by the outcome. `undo` names the function that undoes it,
-- `mail` the signal that it took, so that a sender who asks again does not send it twice. RUN_VALUES are what a run
-- lets others read while it goes on.

ALTER TABLE {schema}.runs
    ADD COLUMN ends      integer NOT NULL DEFAULT 0,
    ADD COLUMN awaits    integer,
    ADD COLUMN linger_ms integer NOT NULL DEFAULT 0,
    ADD COLUMN undoing   boolean NOT NULL DEFAULT false,
    ADD COLUMN reply_to  uuid,
    ADD COLUMN origin_id uuid,
    ADD COLUMN held_due  bigint;

ALTER TABLE {schema}.steps
    ADD COLUMN undo text,
    ADD COLUMN mail uuid;                 -- what it took out of the box

-- When the next try is due, so that a run woken early for another reason still waits for it.
ALTER TABLE {schema}.tries ADD COLUMN due_at bigint;

ALTER TABLE {schema}.mailbox ADD COLUMN delivered boolean NOT NULL DEFAULT true;
ALTER TABLE {schema}.mailbox SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
CREATE INDEX mailbox_undelivered ON {schema}.mailbox (sent_at) WHERE NOT delivered;

CREATE TABLE {schema}.run_values (
    run_id     uuid NOT NULL,
    key        text NOT NULL,
    value      text NOT NULL,
    format     smallint NOT NULL,
    updated_at bigint NOT NULL,
    PRIMARY KEY (run_id, key)
);

CREATE OR REPLACE VIEW {schema}.steps_readable AS
SELECT run_id, branch, position, seq, name, kind, status, attempts, line,
       CASE WHEN format = 1 THEN output::json END AS output,
       CASE WHEN error LIKE '{%' THEN error::json END AS error,
       CASE WHEN format = 1 THEN arguments::json END AS arguments,
       to_timestamp(started_at::numeric / 1000.0) AS started_at,
       to_timestamp(completed_at::numeric / 1000.0) AS completed_at,
       undo
FROM {schema}.steps;

CREATE OR REPLACE VIEW {schema}.activity AS
SELECT run_id, branch, position, name, 0 AS attempt, attempts AS number, status,
       arguments, output, error, format, started_at, completed_at
FROM {schema}.steps
WHERE status NOT IN ('failed', 'waiting')   -- each failed try of a step is in `tries`; an open one has no outcome yet
UNION ALL
SELECT run_id, branch, position, name, attempt, number, 'failed', arguments, NULL, error, format, started_at, completed_at
FROM {schema}.tries;
