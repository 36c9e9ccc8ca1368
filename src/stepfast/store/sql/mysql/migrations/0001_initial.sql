-- MariaDB and MySQL: tables with the prefix of the namespace, in InnoDB.
--
-- TEXTS are compared by code points, with blanks at their ends. Ids are texts in ASCII; they sort like the numbers they
-- are. Truth is 0 or 1.
--
-- PARTIAL INDEXES there are none of. Where the rows of an index are few among those of its table, a generated column says
-- that a row belongs to it, and is the first column of the index; of all other rows it is null, and they stand together at
-- the beginning. Statements are rendered with these columns in place of the conditions (store/dialects.py).
--
-- A MIGRATION is no transaction here: each statement is committed by itself. One that was begun says so in `meta` until it
-- is done, and is begun again by the next process.

-- before: runs_ready
-- `keyed_lane` is a short name of queue and workflow, because an index takes no more than 3072 bytes. Columns in which an
-- index is sorted are generated, too, where they change for rows that are not in it: every claim changes `place`.
ALTER TABLE {runs}
    ADD COLUMN is_ready tinyint AS (CASE WHEN place IS NOT NULL AND losses < 2 THEN 1 END) STORED,
    ADD COLUMN is_resuming tinyint AS (CASE WHEN place IS NOT NULL AND losses < 2 AND
        (counted_attempt = attempt OR (graph IS NOT NULL AND dag_id IS NULL)) THEN 1 END) STORED,
    ADD COLUMN is_counted tinyint AS (CASE WHEN worker IS NOT NULL AND counted_attempt IS NOT NULL THEN 1 END) STORED,
    ADD COLUMN resuming_place bigint AS (CASE WHEN place IS NOT NULL AND losses < 2 AND
        (counted_attempt = attempt OR (graph IS NOT NULL AND dag_id IS NULL)) THEN place END) STORED,
    ADD COLUMN is_suspect tinyint AS (CASE WHEN place IS NOT NULL AND losses >= 2 THEN 1 END) STORED,
    ADD COLUMN suspect_place bigint AS (CASE WHEN place IS NOT NULL AND losses >= 2 THEN place END) STORED,
    ADD COLUMN keyed_place bigint AS (CASE WHEN place IS NOT NULL AND losses < 2 AND concurrency_key IS NOT NULL
        THEN place END) STORED,
    ADD COLUMN is_unstarted tinyint AS (CASE WHEN debounced IS NOT NULL AND started_at IS NULL AND completed_at IS NULL
        THEN 1 END) STORED,
    ADD COLUMN is_live tinyint AS (CASE WHEN unique_name IS NOT NULL AND completed_at IS NULL THEN 1 END) STORED,
    ADD COLUMN is_handing_on tinyint AS (CASE WHEN hands_on AND completed_at IS NOT NULL THEN 1 END) STORED,
    ADD COLUMN keyed_lane binary(16) AS (CASE WHEN place IS NOT NULL AND losses < 2 AND concurrency_key IS NOT NULL
        THEN unhex(md5(concat(queue, char(0), workflow))) END) STORED;

-- instead of: runs_ready
-- A lane is (queue, workflow, priority); within it the oldest first. Rows of a workflow that no worker of an application
-- knows are lanes that it never reads, however many they are.
CREATE INDEX runs_ready ON {runs} (is_ready, queue, workflow, priority, place);

-- instead of: runs_suspect
CREATE INDEX runs_suspect ON {runs} (is_suspect, losses, priority DESC, suspect_place);

-- instead of: runs_debounced
CREATE UNIQUE INDEX runs_debounced ON {runs} (workflow, debounced, is_unstarted);

-- instead of: runs_unique_name
CREATE UNIQUE INDEX runs_unique_name ON {runs} (workflow, unique_name, is_live);

-- instead of: runs_hands_on
CREATE INDEX runs_hands_on ON {runs} (is_handing_on, id);

-- instead of: runs_at_rest
-- For lists by status. Steps of dags are left out of them. Dag runs under way are found by it, too.
CREATE INDEX runs_at_rest ON {runs} (status, dag_id, id);

-- instead of: runs_dags

-- instead of: runs_counted
CREATE INDEX runs_counted ON {runs} (is_counted, queue, concurrency_key);

-- instead of: runs_resuming
CREATE INDEX runs_resuming ON {runs} (is_resuming, queue, workflow, priority DESC, resuming_place);

-- instead of: runs_keyed
-- What is ready of one key: a key with a hundred thousand runs is passed over in one step.
CREATE INDEX runs_keyed ON {runs} (keyed_lane, concurrency_key, priority DESC, keyed_place);

-- instead of: mailbox_undelivered
CREATE INDEX mailbox_undelivered ON {mailbox} (delivered, sent_at);

-- after: queues
-- Rows that transactions change so that those of two nodes of a cluster meet; elsewhere it stays empty.
CREATE TABLE {prefix}turns (
    name   CHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    number BIGINT NOT NULL
) ENGINE = InnoDB;

-- before: remote_steps_open
ALTER TABLE {remote_steps} ADD COLUMN is_open tinyint AS (CASE WHEN state IN ('outbox', 'sent') THEN 1 END) STORED;

-- instead of: remote_steps_open
CREATE INDEX remote_steps_open ON {remote_steps} (is_open, run_id, seq);

-- instead of: queues_gated

-- instead of: schedules_due
-- What code declares is found by name: without that code it stays due for ever.
CREATE INDEX schedules_due ON {schedules} (declared, due_at);

-- instead of: sleeps
CREATE VIEW {sleeps} AS
SELECT s.run_id, s.branch, s.position, s.ended_at
FROM (SELECT t.run_id, t.branch, t.position,
             COALESCE(CAST(JSON_VALUE(t.output, '$.until') AS signed),
                      t.completed_at + CAST(JSON_VALUE(t.output, '$.for') AS signed)) AS ended_at
      FROM {steps} t WHERE t.kind = 'sleep' AND t.status = 'waiting' AND json_valid(t.output)) AS s
WHERE s.ended_at <= COALESCE((SELECT r.completed_at FROM {runs} r WHERE r.id = s.run_id), {now});

-- at the end
-- Who removes old runs locks this row: one process at a time.
INSERT INTO {meta} (name, value) VALUES ('removal', '');
INSERT INTO {meta} (name, value) VALUES ('prefix', '{prefix}');

-- instead of: events_new
CREATE INDEX events_new ON {events} (number, published_at, made);

-- instead of: events_number
