-- compatible from: 1
-- Stepfast on SQLite: the same rows as on Postgres, in a file.
--
-- What each table is for, and how a run passes through queue, claim, record and end, is told in the essay that opens the
-- Postgres schema (store/postgres/migrations/0001_initial.sql); names and meanings of columns are the same here. This
-- page tells what a single file changes.
--
-- ONE WRITER. SQLite lets one connection write at a time, so no row is ever locked by somebody else: there is nothing to
-- skip, no lock order to keep, and a flush never comes back "busy". What takes the place of row locks is one thread per process
-- which carries everything that waits in one BEGIN IMMEDIATE … COMMIT. A statement may therefore look first and write
-- afterwards; nobody comes in between.
--
-- PREFIX. There are no schemas: the namespace is the prefix of every table, index and view, so several of them share a file.
--
-- TYPES. Ids are the canonical text of UUIDv7; text sorts like the number, so "newest first" is "id descending" here too.
-- Truth is 0 or 1. JSON is text. Times are whole milliseconds, and "now" is julianday('now') scaled, because the handier
-- unixepoch('subsec') is younger than the oldest SQLite we serve. Each piece of work asks for the time once and uses
-- that answer throughout.
--
-- ROWS AND TREES. `runs` keeps its hidden rowid: rows land at the end of the table and the many small indexes carry eight bytes
-- instead of 36. The tables that are only found by their key (steps, tries, progress, mailbox, tags) have none, so that
-- a record is one entry in one tree instead of one in two.
--
-- PARTIAL INDEXES are used by SQLite only when the query repeats their condition word for word, never for a bound value. That
-- is why the statements say `losses < 2` and list the statuses at rest literally.
--
-- WAKE-UPS. There is no NOTIFY between processes. Each writer asks PRAGMA data_version, which moves when another connection has
-- committed; what moved it is found by looking.

CREATE TABLE {prefix}meta (
    name  TEXT PRIMARY KEY NOT NULL,
    value TEXT NOT NULL
);

CREATE TABLE {prefix}definitions (
    name          TEXT NOT NULL,
    version       TEXT NOT NULL,
    kind          TEXT NOT NULL,
    queue         TEXT NOT NULL,
    options       TEXT NOT NULL,
    input_schema  TEXT,
    graph         TEXT,
    registered_at INTEGER NOT NULL,
    seen_at       INTEGER NOT NULL,
    PRIMARY KEY (name, version)
);

CREATE TABLE {prefix}workers (
    id          TEXT PRIMARY KEY NOT NULL,
    host        TEXT NOT NULL,
    pid         INTEGER NOT NULL,
    process     TEXT,
    queues      TEXT,
    workflows   TEXT NOT NULL,
    modules     TEXT NOT NULL DEFAULT '{}',
    concurrency INTEGER NOT NULL,
    running     INTEGER NOT NULL DEFAULT 0,
    lease_ms    INTEGER NOT NULL,
    state       TEXT NOT NULL,
    started_at  INTEGER NOT NULL,
    beat_at     INTEGER NOT NULL,
    expires_at  INTEGER NOT NULL
);

CREATE TABLE {prefix}past_workers (
    id      TEXT PRIMARY KEY NOT NULL,
    host    TEXT NOT NULL,
    pid     INTEGER NOT NULL,
    left_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX {prefix}past_workers_left ON {prefix}past_workers (left_at);

CREATE VIEW {prefix}known_workers AS
SELECT id, host, pid FROM {prefix}workers
UNION ALL
SELECT p.id, p.host, p.pid FROM {prefix}past_workers p
WHERE NOT EXISTS (SELECT 1 FROM {prefix}workers w WHERE w.id = p.id);

CREATE TABLE {prefix}runs (
    id              TEXT PRIMARY KEY NOT NULL,
    workflow        TEXT NOT NULL,
    version         TEXT NOT NULL,
    queue           TEXT NOT NULL,
    status          TEXT NOT NULL,
    reason          TEXT,
    waiting_for     TEXT,
    priority        INTEGER NOT NULL DEFAULT 0,
    place           INTEGER,
    visible_at      INTEGER,
    worker          TEXT,
    claim           INTEGER NOT NULL DEFAULT 0,
    executed_by     TEXT,
    token           INTEGER,
    wakes           INTEGER NOT NULL DEFAULT 0,
    asked           TEXT,
    attempt         INTEGER NOT NULL DEFAULT 0,
    first_attempt   INTEGER NOT NULL DEFAULT 1,
    max_attempts    INTEGER,
    losses          INTEGER NOT NULL DEFAULT 0,
    timeout_ms      INTEGER,
    deadline_ms     INTEGER,              -- the length of the deadline, which a retry has anew
    deadline_at     INTEGER,
    expires_at      INTEGER,
    format          INTEGER NOT NULL,
    input           TEXT NOT NULL,
    output          TEXT,
    output_format   INTEGER,              -- of output and error, which another process may have written
    error           TEXT,
    forget          TEXT,
    key             TEXT,
    tags            TEXT,
    concurrency_key TEXT,
    seed            TEXT NOT NULL,
    parent_id       TEXT,
    parent_branch   TEXT,
    parent_position INTEGER,
    dag_id          TEXT,
    dag_step            TEXT,
    created_at      INTEGER NOT NULL,
    started_at      INTEGER,
    completed_at    INTEGER,
    paused_at       INTEGER
);

CREATE INDEX {prefix}runs_ready ON {prefix}runs (queue, workflow, priority, place) WHERE place IS NOT NULL AND losses < 2;
CREATE INDEX {prefix}runs_suspect ON {prefix}runs (losses, priority DESC, place) WHERE place IS NOT NULL AND losses >= 2;
CREATE INDEX {prefix}runs_due ON {prefix}runs (visible_at) WHERE visible_at IS NOT NULL;
-- Holds all that the fence and a repeated claim ask for, so that neither touches the table.
CREATE INDEX {prefix}runs_worker ON {prefix}runs (worker, token, id, claim, asked) WHERE worker IS NOT NULL;
CREATE UNIQUE INDEX {prefix}runs_key ON {prefix}runs (workflow, key) WHERE key IS NOT NULL;
CREATE INDEX {prefix}runs_parent ON {prefix}runs (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX {prefix}runs_workflow ON {prefix}runs (workflow, id);
CREATE INDEX {prefix}runs_at_rest ON {prefix}runs (status, id)
    WHERE status IN ('waiting', 'paused', 'failed', 'cancelled', 'compensating', 'compensated');

CREATE TABLE {prefix}run_tags (
    tag    TEXT NOT NULL,
    run_id TEXT NOT NULL,
    PRIMARY KEY (tag, run_id)
) WITHOUT ROWID;

CREATE TABLE {prefix}claims (
    run_id TEXT NOT NULL,
    claim  INTEGER NOT NULL,
    worker TEXT NOT NULL,
    PRIMARY KEY (run_id, claim)
) WITHOUT ROWID;

CREATE TABLE {prefix}steps (
    run_id       TEXT NOT NULL,
    branch       TEXT NOT NULL,
    position     INTEGER NOT NULL,
    seq          INTEGER NOT NULL,
    claim        INTEGER NOT NULL,
    name         TEXT NOT NULL,
    kind         TEXT NOT NULL,
    status       TEXT NOT NULL,
    attempts     INTEGER NOT NULL,
    output       TEXT,
    error        TEXT,
    arguments    TEXT,
    line         TEXT,
    format       INTEGER NOT NULL,
    started_at   INTEGER NOT NULL,
    completed_at INTEGER NOT NULL,
    PRIMARY KEY (run_id, branch, position)
) WITHOUT ROWID;

CREATE TABLE {prefix}tries (
    run_id       TEXT NOT NULL,
    branch       TEXT NOT NULL,
    position     INTEGER NOT NULL,
    attempt      INTEGER NOT NULL,
    number       INTEGER NOT NULL,
    claim        INTEGER NOT NULL,
    name         TEXT NOT NULL,
    error        TEXT NOT NULL,
    arguments    TEXT,
    format       INTEGER NOT NULL,
    started_at   INTEGER NOT NULL,
    completed_at INTEGER NOT NULL,
    PRIMARY KEY (run_id, branch, position, attempt, number)
) WITHOUT ROWID;

CREATE TABLE {prefix}progress (
    run_id     TEXT NOT NULL,
    branch     TEXT NOT NULL,
    position   INTEGER NOT NULL,
    name       TEXT NOT NULL,
    detail     TEXT,
    data       TEXT,
    format     INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (run_id, branch, position)
) WITHOUT ROWID;

CREATE TABLE {prefix}mailbox (
    run_id  TEXT NOT NULL,
    id      TEXT NOT NULL,
    kind    TEXT NOT NULL,
    name    TEXT NOT NULL,
    value   TEXT,
    error   TEXT,
    format  INTEGER NOT NULL,
    sent_at INTEGER NOT NULL,
    PRIMARY KEY (run_id, id)
) WITHOUT ROWID;

CREATE VIEW {prefix}runs_readable AS
SELECT id, workflow, version, queue, status, reason, waiting_for, priority, attempt, losses, worker, key, parent_id,
       CASE WHEN format = 1 THEN input END AS input,
       CASE WHEN output_format = 1 THEN output END AS output,
       CASE WHEN error LIKE '{%' THEN error END AS error, tags,
       strftime('%Y-%m-%d %H:%M:%f', created_at / 1000.0, 'unixepoch') AS created_at,
       strftime('%Y-%m-%d %H:%M:%f', started_at / 1000.0, 'unixepoch') AS started_at,
       strftime('%Y-%m-%d %H:%M:%f', completed_at / 1000.0, 'unixepoch') AS completed_at,
       strftime('%Y-%m-%d %H:%M:%f', visible_at / 1000.0, 'unixepoch') AS visible_at,
       strftime('%Y-%m-%d %H:%M:%f', deadline_at / 1000.0, 'unixepoch') AS deadline_at,
       strftime('%Y-%m-%d %H:%M:%f', paused_at / 1000.0, 'unixepoch') AS paused_at,
       executed_by, (SELECT w.host FROM {prefix}known_workers w WHERE w.id = executed_by) AS host,
       (SELECT w.pid FROM {prefix}known_workers w WHERE w.id = executed_by) AS pid
FROM {prefix}runs WHERE dag_id IS NULL;

CREATE VIEW {prefix}claims_readable AS
SELECT c.run_id, COALESCE(lag(c.claim) OVER (PARTITION BY c.run_id ORDER BY c.claim), 0) + 1 AS first_claim,
       c.claim AS last_claim, c.worker AS executed_by, w.host, w.pid
FROM (SELECT run_id, claim, worker FROM {prefix}claims
      UNION ALL
      SELECT id, claim, executed_by FROM {prefix}runs WHERE executed_by IS NOT NULL) AS c
LEFT JOIN {prefix}known_workers w ON w.id = c.worker;

CREATE VIEW {prefix}steps_readable AS
SELECT run_id, branch, position, seq, name, kind, status, attempts, line,
       CASE WHEN format = 1 THEN output END AS output,
       CASE WHEN error LIKE '{%' THEN error END AS error,
       CASE WHEN format = 1 THEN arguments END AS arguments,
       strftime('%Y-%m-%d %H:%M:%f', started_at / 1000.0, 'unixepoch') AS started_at,
       strftime('%Y-%m-%d %H:%M:%f', completed_at / 1000.0, 'unixepoch') AS completed_at
FROM {prefix}steps;

CREATE VIEW {prefix}activity AS
SELECT run_id, branch, position, name, 0 AS attempt, attempts AS number, status,
       arguments, output, error, format, started_at, completed_at, claim
FROM {prefix}steps WHERE status <> 'failed'   -- each failed try of a step is in `tries`, and stays there
UNION ALL
SELECT run_id, branch, position, name, attempt, number, 'failed', arguments, NULL, error, format, started_at, completed_at,
       claim
FROM {prefix}tries;

CREATE VIEW {prefix}activity_readable AS
SELECT run_id, branch, position, name, attempt, number, status,
       CASE WHEN format = 1 THEN arguments END AS arguments,
       CASE WHEN format = 1 THEN output END AS output,
       CASE WHEN error LIKE '{%' THEN error END AS error,
       strftime('%Y-%m-%d %H:%M:%f', started_at / 1000.0, 'unixepoch') AS started_at,
       (completed_at - started_at) / 1000.0 AS seconds,
       executed_by, (SELECT w.host FROM {prefix}known_workers w WHERE w.id = executed_by) AS host,
       (SELECT w.pid FROM {prefix}known_workers w WHERE w.id = executed_by) AS pid,
       CASE WHEN format = 1 THEN arguments END AS parameters
FROM (SELECT a.*, COALESCE((SELECT c.worker FROM {prefix}claims c
                         WHERE c.run_id = a.run_id AND c.claim >= a.claim ORDER BY c.claim LIMIT 1),
                        (SELECT r.executed_by FROM {prefix}runs r WHERE r.id = a.run_id)) AS executed_by
      FROM {prefix}activity a) AS a;

CREATE VIEW {prefix}workers_readable AS
SELECT id, host, pid, queues, workflows, concurrency, running, state,
       strftime('%Y-%m-%d %H:%M:%f', started_at / 1000.0, 'unixepoch') AS started_at,
       strftime('%Y-%m-%d %H:%M:%f', beat_at / 1000.0, 'unixepoch') AS beat_at,
       strftime('%Y-%m-%d %H:%M:%f', expires_at / 1000.0, 'unixepoch') AS expires_at
FROM {prefix}workers;
