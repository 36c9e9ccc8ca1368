-- compatible from: 1
--
-- Stepfast on PostgreSQL: the tables, and how a run flows through them.
--
-- A RUN is one execution of a workflow, and one row of `runs`. The row is also the run's place in the queue and its
-- lease, because the three change together and a single row cannot disagree with itself:
--
--   place       not null: the run is ready, and this is its place in its queue; the smaller, the older. Only ready rows
--               are in the index `runs_ready`, so that a claim never walks past sleepers or finished runs.
--   visible_at  the only timer. For a sleeper: when it becomes ready. For a ready run: when it expires. Retries,
--               delays, sleeps, deadlines and polls are all this column, and all in the index `runs_due`.
--   worker      not null: a worker executes it. Together with `claim`, which is new for every claim, it is the FENCE:
--               every write of a worker names both, and matches nothing once the run was given to somebody else.
--   wakes       counts what happened to the run from outside (a signal, a child's end). A worker that says "now
--               waiting" names the count it saw; if it has moved on, the run becomes ready instead of being slept over.
--
-- A STEP's outcome is one row of `steps`, written once and never changed: the checkpoint. (run, branch, position) says
-- where in the code it was called; `seq` in which order outcomes were recorded. What failed and was tried again
-- is in `tries`. What is under way for longer than a second is in `progress`, where the latest word wins.
-- The activity log is a view over steps and tries, not a second copy.
--
-- DEFINITIONS are what the database knows of the code: a trigger that lacks the code is checked against them. WORKERS
-- are the processes that live, each with one heartbeat for all it holds. The MAILBOX keeps what is sent to a run until the
-- run takes it, in the transaction that records it. QUEUES are those that were paused or limited. The AUDIT
-- (0008) says what people have done by the console.
-- What an observer sends along, so that a trace goes on in another process, is beside a run or a signal as `trace` (0009).
--
-- Whoever has no Python at hand starts and signals runs by functions (0007), as part of a transaction of their own.
--
-- Locks: rows of `runs` are locked in id order, by FOR NO KEY UPDATE (by FOR UPDATE only to remove them). Claims, flushes
-- and sweeps skip a locked row; operators, signals, and whoever moves the steps of a dag run wait for it.
-- Times are milliseconds since 1970 by the server's clock, and no other clock decides anything. Payloads are JSON
-- text; `format` 2 says that they passed through the application's codec. The views at the end are for people.
-- No table refers to another schema, so a namespace can be moved to a server of its own.

CREATE TABLE {schema}.meta (
    name  text PRIMARY KEY,
    value text NOT NULL
);

CREATE TABLE {schema}.definitions (
    name          text NOT NULL,
    version       text NOT NULL,
    kind          text NOT NULL,          -- task, workflow, dag
    queue         text NOT NULL,
    options       text NOT NULL,          -- JSON: max_attempts, timeout, deadline
    input_schema  text,                   -- JSON schema, or null: anything
    graph         text,                   -- JSON, for a dag: the runs in flight keep the version they started with
    registered_at bigint NOT NULL,
    seen_at       bigint NOT NULL,        -- the newest of a name is the one a start is checked against
    PRIMARY KEY (name, version)
);

CREATE TABLE {schema}.workers (
    id          uuid PRIMARY KEY,         -- new at every process start
    host        text NOT NULL,
    pid         integer NOT NULL,
    process     text,                     -- machine, pid and beginning, where they can be known: known to be gone at once
    queues      text,                     -- JSON list, or null: every queue
    workflows   text NOT NULL,            -- JSON: name -> version of the code
    modules     text NOT NULL DEFAULT '{}', -- JSON: name -> module the code is from
    concurrency integer NOT NULL,
    running     integer NOT NULL DEFAULT 0,
    lease_ms    bigint NOT NULL,
    state       text NOT NULL,            -- live, stopping, dead
    started_at  bigint NOT NULL,
    beat_at     bigint NOT NULL,
    expires_at  bigint NOT NULL           -- silent beyond this: dead
);

-- Where workers ran that are gone: a run names the last one that executed it for as long as it is kept.
CREATE TABLE {schema}.past_workers (
    id      uuid PRIMARY KEY,
    host    text NOT NULL,
    pid     integer NOT NULL,
    left_at bigint NOT NULL               -- deleted some time after every run that is older
);
CREATE INDEX past_workers_left ON {schema}.past_workers (left_at);

CREATE VIEW {schema}.known_workers AS
SELECT id, host, pid FROM {schema}.workers
UNION ALL
SELECT p.id, p.host, p.pid FROM {schema}.past_workers p
WHERE NOT EXISTS (SELECT 1 FROM {schema}.workers w WHERE w.id = p.id);

CREATE TABLE {schema}.runs (
    id              uuid PRIMARY KEY,
    workflow        text NOT NULL,
    version         text NOT NULL,        -- of the code that started it, then of the code that claimed it last
    queue           text NOT NULL,
    status          text NOT NULL,
    reason          text,                 -- why it ended without a result
    waiting_for     text,
    priority        integer NOT NULL DEFAULT 0,
    place           bigint,
    visible_at      bigint,
    worker          uuid,
    claim           integer NOT NULL DEFAULT 0,
    executed_by     uuid,                 -- the worker of the last claim; unlike `worker` it stays
    token           bigint,               -- of the claim call, so that a claim whose reply was lost can be asked for again
    wakes           integer NOT NULL DEFAULT 0,
    asked           text,                 -- what an operator wants of the owner: cancel, pause
    attempt         integer NOT NULL DEFAULT 0,   -- tries of the code
    first_attempt   integer NOT NULL DEFAULT 1,   -- where the present budget of attempts began (an operator's retry)
    max_attempts    integer,              -- null: the definition's
    losses          integer NOT NULL DEFAULT 0,   -- workers that died with it since its last new record or wait
    timeout_ms      bigint,
    deadline_ms     bigint,               -- the length of the deadline, which a retry has anew
    deadline_at     bigint,
    expires_at      bigint,
    format          smallint NOT NULL,
    input           text NOT NULL,
    output          text,
    output_format   smallint,             -- of output and error, which another process may have written
    error           text,
    forget          text,                 -- JSON: records that a retry is to make anew
    key             text,
    tags            text,                 -- JSON list
    concurrency_key text,
    seed            text NOT NULL,        -- what its random values are made from; a secret, in no view
    parent_id       uuid,                 -- the run that started this one, and the place in its code
    parent_branch   text,
    parent_position integer,
    dag_id          uuid,                 -- for a step of a declared graph: its run
    dag_step            text,
    created_at      bigint NOT NULL,
    started_at      bigint,
    completed_at    bigint,
    paused_at       bigint                -- since when it is paused; null: it is not
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);

-- A lane is (queue, workflow, priority); within it the oldest first. The rows of a workflow that nobody here knows are
-- lanes never visited, however many they are.
CREATE INDEX runs_ready ON {schema}.runs (queue, workflow, priority, place) WHERE place IS NOT NULL AND losses < 2;
-- Runs that two workers died with stand apart. They are tried in groups, those with the fewest losses first.
CREATE INDEX runs_suspect ON {schema}.runs (losses, priority DESC, place) WHERE place IS NOT NULL AND losses >= 2;
CREATE INDEX runs_due ON {schema}.runs (visible_at) WHERE visible_at IS NOT NULL;
CREATE INDEX runs_worker ON {schema}.runs (worker) WHERE worker IS NOT NULL;
CREATE UNIQUE INDEX runs_key ON {schema}.runs (workflow, key) WHERE key IS NOT NULL;
CREATE INDEX runs_parent ON {schema}.runs (parent_id) WHERE parent_id IS NOT NULL;
-- For lists. What is in trouble or at rest is found by its status; everything else by walking from the newest run back.
-- An index on (workflow, id) would serve lists of one workflow, but every claim and every completion would have to write
-- it too: without it, noop tasks ran 6 to 24 % faster in three of four runs side by side.
CREATE INDEX runs_at_rest ON {schema}.runs (status, id)
    WHERE status IN ('waiting', 'paused', 'failed', 'cancelled', 'compensating', 'compensated');

CREATE TABLE {schema}.run_tags (
    tag    text NOT NULL,
    run_id uuid NOT NULL,
    PRIMARY KEY (tag, run_id)
);

-- Whose the earlier claims of a run were: a row is written when another worker than the last one claims it, so that a run
-- with one worker has none. Claims up to `claim`, from the row before on, were of `worker`; later ones of `executed_by`.
CREATE TABLE {schema}.claims (
    run_id uuid NOT NULL,
    claim  integer NOT NULL,
    worker uuid NOT NULL,
    PRIMARY KEY (run_id, claim)
);

CREATE TABLE {schema}.steps (
    run_id       uuid NOT NULL,
    branch       text NOT NULL,           -- '' is the main branch
    position     integer NOT NULL,
    seq          integer NOT NULL,
    claim        integer NOT NULL,        -- by which claim it was recorded
    name         text NOT NULL,
    kind         text NOT NULL,
    status       text NOT NULL,           -- completed, failed, cancelled
    attempts     integer NOT NULL,
    output       text,
    error        text,
    arguments    text,
    line         text,                    -- file and line of the call, for the message of a divergence
    format       smallint NOT NULL,
    started_at   bigint NOT NULL,
    completed_at bigint NOT NULL,
    PRIMARY KEY (run_id, branch, position)
);

CREATE TABLE {schema}.tries (
    run_id       uuid NOT NULL,
    branch       text NOT NULL,
    position     integer NOT NULL,        -- -1: the run as a whole
    attempt      integer NOT NULL,
    number       integer NOT NULL,
    claim        integer NOT NULL,
    name         text NOT NULL,
    error        text NOT NULL,
    arguments    text,
    format       smallint NOT NULL,
    started_at   bigint NOT NULL,
    completed_at bigint NOT NULL,
    PRIMARY KEY (run_id, branch, position, attempt, number)
);

CREATE TABLE {schema}.progress (
    run_id     uuid NOT NULL,
    branch     text NOT NULL,
    position   integer NOT NULL,
    name       text NOT NULL,
    detail     text,
    data       text,
    format     smallint NOT NULL,
    started_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    PRIMARY KEY (run_id, branch, position)
);

CREATE TABLE {schema}.mailbox (
    run_id  uuid NOT NULL,
    id      uuid NOT NULL,                -- made by the sender; in order of sending
    kind    text NOT NULL,                -- signal, child
    name    text NOT NULL,
    value   text,
    error   text,
    format  smallint NOT NULL,
    sent_at bigint NOT NULL,
    PRIMARY KEY (run_id, id)
);

-- What the views show as JSON. A text that is none, because somebody has written to the tables by hand, is shown as a
-- JSON text; otherwise one such row would make every question to the view fail.
CREATE FUNCTION {schema}.as_json(value text) RETURNS json LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
    RETURN value::pg_catalog.json;
EXCEPTION WHEN OTHERS THEN
    RETURN to_json(value);
END
$$;

CREATE VIEW {schema}.runs_readable AS
SELECT id, workflow, version, queue, status, reason, waiting_for, priority, attempt, losses, worker, key, parent_id,
       CASE WHEN format = 1 THEN {schema}.as_json(input) END AS input,
       CASE WHEN output_format = 1 THEN {schema}.as_json(output) END AS output,
       CASE WHEN error LIKE '{%' THEN {schema}.as_json(error) END AS error,
       {schema}.as_json(tags) AS tags,
       to_timestamp(created_at::numeric / 1000.0) AS created_at,
       to_timestamp(started_at::numeric / 1000.0) AS started_at,
       to_timestamp(completed_at::numeric / 1000.0) AS completed_at,
       to_timestamp(visible_at::numeric / 1000.0) AS visible_at,
       to_timestamp(deadline_at::numeric / 1000.0) AS deadline_at,
       to_timestamp(paused_at::numeric / 1000.0) AS paused_at,
       executed_by, (SELECT w.host FROM {schema}.known_workers w WHERE w.id = executed_by) AS host,
       (SELECT w.pid FROM {schema}.known_workers w WHERE w.id = executed_by) AS pid
FROM {schema}.runs WHERE dag_id IS NULL;

-- Who executed a run, one row per worker and stretch of claims.
CREATE VIEW {schema}.claims_readable AS
SELECT c.run_id, COALESCE(lag(c.claim) OVER (PARTITION BY c.run_id ORDER BY c.claim), 0) + 1 AS first_claim,
       c.claim AS last_claim, c.worker AS executed_by, w.host, w.pid
FROM (SELECT run_id, claim, worker FROM {schema}.claims
      UNION ALL
      SELECT id, claim, executed_by FROM {schema}.runs WHERE executed_by IS NOT NULL) AS c
LEFT JOIN {schema}.known_workers w ON w.id = c.worker;

CREATE VIEW {schema}.steps_readable AS
SELECT run_id, branch, position, seq, name, kind, status, attempts, line,
       CASE WHEN format = 1 THEN {schema}.as_json(output) END AS output,
       CASE WHEN error LIKE '{%' THEN {schema}.as_json(error) END AS error,
       CASE WHEN format = 1 THEN {schema}.as_json(arguments) END AS arguments,
       to_timestamp(started_at::numeric / 1000.0) AS started_at,
       to_timestamp(completed_at::numeric / 1000.0) AS completed_at
FROM {schema}.steps;

CREATE VIEW {schema}.activity AS
SELECT run_id, branch, position, name, 0 AS attempt, attempts AS number, status,
       arguments, output, error, format, started_at, completed_at, claim
FROM {schema}.steps WHERE status <> 'failed'   -- each failed try of a step is in `tries`, and stays there
UNION ALL
SELECT run_id, branch, position, name, attempt, number, 'failed', arguments, NULL, error, format, started_at, completed_at,
       claim
FROM {schema}.tries;

CREATE VIEW {schema}.activity_readable AS
SELECT run_id, branch, position, name, attempt, number, status,
       CASE WHEN format = 1 THEN {schema}.as_json(arguments) END AS arguments,
       CASE WHEN format = 1 THEN {schema}.as_json(output) END AS output,
       CASE WHEN error LIKE '{%' THEN {schema}.as_json(error) END AS error,
       to_timestamp(started_at::numeric / 1000.0) AS started_at,
       (completed_at - started_at)::numeric / 1000.0 AS seconds,
       executed_by, (SELECT w.host FROM {schema}.known_workers w WHERE w.id = executed_by) AS host,
       (SELECT w.pid FROM {schema}.known_workers w WHERE w.id = executed_by) AS pid,
       CASE WHEN format = 1 THEN {schema}.as_json(arguments) END AS parameters
FROM (SELECT a.*, COALESCE((SELECT c.worker FROM {schema}.claims c
                         WHERE c.run_id = a.run_id AND c.claim >= a.claim ORDER BY c.claim LIMIT 1),
                        (SELECT r.executed_by FROM {schema}.runs r WHERE r.id = a.run_id)) AS executed_by
      FROM {schema}.activity a) AS a;

CREATE VIEW {schema}.workers_readable AS
SELECT id, host, pid, {schema}.as_json(queues) AS queues, {schema}.as_json(workflows) AS workflows, concurrency, running, state,
       to_timestamp(started_at::numeric / 1000.0) AS started_at,
       to_timestamp(beat_at::numeric / 1000.0) AS beat_at,
       to_timestamp(expires_at::numeric / 1000.0) AS expires_at
FROM {schema}.workers;
