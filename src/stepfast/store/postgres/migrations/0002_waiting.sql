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
--   unrecorded_losses   workers that died with it since its last new record. `losses` are those since that record or
--               since the run last came to a wait: by the one a dead letter is known, by the other that a step may have
--               acted of which there is no record.
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
    ADD COLUMN held_due  bigint,
    ADD COLUMN unrecorded_losses integer NOT NULL DEFAULT 0;

ALTER TABLE {schema}.steps
    ADD COLUMN undo text,
    ADD COLUMN mail uuid,                 -- what it took out of the box
    ADD COLUMN losses integer;            -- workers that died while the call was under way, or may have been; null: none

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

-- The record of a sleep stays as it was made when the sleep began. When it was over, if it is, follows from its plan; a
-- sleep that its run did not live to see the end of is not over. What is open has no end.
CREATE VIEW {schema}.sleeps AS
SELECT s.run_id, s.branch, s.position, e.ended_at
FROM {schema}.steps s
CROSS JOIN LATERAL (SELECT COALESCE(substring(s.output, '"until": *([0-9]{1,15})[,}]')::bigint,
                                    s.completed_at + substring(s.output, '"for": *([0-9]{1,15})[,}]')::bigint)
                               AS ended_at) e
WHERE s.kind = 'sleep' AND s.status = 'waiting'
  AND e.ended_at <= COALESCE((SELECT r.completed_at FROM {schema}.runs r WHERE r.id = s.run_id), {now});

CREATE OR REPLACE VIEW {schema}.steps_readable AS
SELECT s.run_id, s.branch, s.position, s.seq, s.name, s.kind,
       CASE WHEN e.ended_at IS NULL THEN s.status ELSE 'completed' END AS status, s.attempts, s.line,
       CASE WHEN s.format = 1 THEN {schema}.as_json(s.output) END AS output,
       CASE WHEN s.error LIKE '{%' THEN {schema}.as_json(s.error) END AS error,
       CASE WHEN s.format = 1 THEN {schema}.as_json(s.arguments) END AS arguments,
       to_timestamp(s.started_at::numeric / 1000.0) AS started_at,
       to_timestamp((CASE WHEN s.status = 'waiting' THEN e.ended_at ELSE s.completed_at END)::numeric / 1000.0)
           AS completed_at,
       s.undo,
       s.executed_by, (SELECT w.host FROM {schema}.known_workers w WHERE w.id = s.executed_by) AS host,
       (SELECT w.pid FROM {schema}.known_workers w WHERE w.id = s.executed_by) AS pid,
       CASE WHEN s.format = 1 THEN {schema}.as_json(s.arguments) END AS parameters
FROM (SELECT t.*, COALESCE((SELECT c.worker FROM {schema}.claims c
                         WHERE c.run_id = t.run_id AND c.claim >= t.claim ORDER BY c.claim LIMIT 1),
                        (SELECT r.executed_by FROM {schema}.runs r WHERE r.id = t.run_id)) AS executed_by
      FROM {schema}.steps t) AS s
LEFT JOIN {schema}.sleeps e ON e.run_id = s.run_id AND e.branch = s.branch AND e.position = s.position;

CREATE OR REPLACE VIEW {schema}.activity AS
SELECT run_id, branch, position, name, 0 AS attempt, attempts AS number, status,
       arguments, output, error, format, started_at, completed_at, claim, losses
FROM {schema}.steps
WHERE status NOT IN ('failed', 'waiting')   -- what failed is in `tries`, and stays there; what is open has no outcome yet
UNION ALL
SELECT s.run_id, s.branch, s.position, s.name, 0, s.attempts, 'completed', s.output, NULL, NULL, s.format, s.started_at, e.ended_at,
       s.claim, NULL
FROM {schema}.sleeps e
JOIN {schema}.steps s ON s.run_id = e.run_id AND s.branch = e.branch AND s.position = e.position
UNION ALL
SELECT run_id, branch, position, name, attempt, number, 'failed', arguments, NULL, error, format, started_at, completed_at,
       claim, NULL
FROM {schema}.tries;

CREATE VIEW {schema}.progress_readable AS
SELECT run_id, branch, position, name, detail, CASE WHEN format = 1 THEN {schema}.as_json(data) END AS data,
       to_timestamp(started_at::numeric / 1000.0) AS started_at,
       to_timestamp(updated_at::numeric / 1000.0) AS updated_at
FROM {schema}.progress;

CREATE VIEW {schema}.values_readable AS
SELECT run_id, key, CASE WHEN format = 1 THEN {schema}.as_json(value) END AS value,
       to_timestamp(updated_at::numeric / 1000.0) AS updated_at
FROM {schema}.run_values WHERE key NOT LIKE '~until/%' AND key NOT LIKE '~graph%';
