-- compatible from: 1
--
-- The tables of Stepfast, and how a run passes through them.
--
-- This text is rendered for each database (store/dialects.py): types, names with the schema or the prefix of the
-- namespace, and what the files of the same number in the folder of a database add or replace.
--
-- A RUN is one execution of a workflow, and one row of `runs`. The row is also the run's place in its queue and its
-- lease, because the three change together, and a single row cannot contradict itself:
--
--   place       not null: the run is ready, and this is its place in its queue; the smaller, the older. Only ready rows
--               are in the index `runs_ready`, so that a claim reads neither sleeping nor finished runs.
--   visible_at  the only timer. Of a sleeping run: when it becomes ready. Of a ready run: when it expires. Retries,
--               delays, sleeps, deadlines and polls are all this column, and all in the index `runs_due`.
--   worker      not null: a worker executes the run. Together with `claim`, which is new for each claim, it is the
--               FENCE: every write of a worker names both, and matches no row once the run was given to another claim.
--   wakes       counts what happened to the run from outside: signals, a resume, a cancel. A worker that releases the
--               run names the count it read; if the row has another, the run becomes ready instead of waiting.
--   ends        counts the ends of children that were delivered. A run that waits for children names, in `awaits`, the
--               count at which it is to be woken, so that a parent of ten thousand is woken once; for `linger_ms` more
--               of them are gathered.
--
-- Two workers that died with a run make it a suspect (`losses`); suspects are claimed in groups, by an index of their
-- own. `losses` counts since the last new record or the last release to a wait, `unrecorded_losses` since the last new
-- record alone: the first decides on dead letters, the second says that a step may have acted without a record.
--
-- A STEP's outcome is one row of `steps`, written once and never changed: the checkpoint. (run, branch, position) is
-- where in the code it was called; `seq` is the order in which outcomes were recorded. An OPEN step has the status
-- `waiting`: its row is what was decided when it began (until when it sleeps, that a child was started), and is replaced
-- once, by the outcome; the row of a sleep stays. What failed and was tried again is in `tries`. What has been under way
-- for longer than a second is in `progress`, where the latest report wins. The activity log is a view over steps and
-- tries, not a second copy.
--
-- The MAILBOX keeps what is sent to a run until the run takes it, in the transaction that records it. What is sent
-- within a caller's transaction, the end of a child and the cancellation by a parent are only inserted, and lock no run.
-- A worker delivers them soon after (`delivered`): it counts them in the row of the run, and wakes the run if it waits
-- for them. A direct signal does both at once.
--
-- UNDO: `undoing` is set once completed steps are undone. From then on the run is `compensating` where it would be
-- queued, running or waiting, and has no deadline. A step names the function that undoes it in `undo`.
--
-- DAGS. A dag run is one row of `runs`, and each of its steps is another, with `dag_id` and `dag_step`: a step has its
-- own place in a queue, its own claim, attempts and records, and any worker may execute it.
--
--   pending     of a dag run: how many of its steps have not ended. It is ready when that is 0, to be finished. Of a
--               step: how many of its dependencies have not ended. Until then it is `waiting` for `steps`, and has
--               neither a place nor a time.
--   met         of a step: how many of its dependencies completed.
--   ready_at    of a step: when it became ready; outputs of later steps are not for it. Of a dag run: when one of its
--               steps last ended; the next end is later than that, even within a millisecond.
--   graph       the version of the graph that a dag run and its steps use.
--   failing     of a dag run: a step failed, or it was cancelled or late. No step of it begins after that.
--   ordinal     of a step: its number in the declaration.
--
-- The transaction that ends a step locks the row of the dag run first, so these counts are changed by one at a time. A
-- transaction that waits for rows of steps holds the row of their dag run; one that holds rows of steps without it waits
-- for none.
--
-- REMOTE STEPS are served by workers elsewhere, over a transport whose tables are not among these. A row of
-- `remote_steps` is what the engine knows of one, from the record that it has begun until the run is deleted.
--
--   seq         its number in the run: from 0 upward, and below 0 for undos; given under the lock of the run, and never
--               twice. `<run_id>:<seq>` is the id of the step on the transport, for all its attempts.
--   id          the id under which its outcome comes into the mailbox of the run.
--   state       outbox: to be sent when it is due. sent: with the transport. settled: its outcome is in the mailbox, or
--               was. withdrawn: its run does not wait for it any more.
--   due_at      when a worker has to handle it: to send it, to check whether its task exists, to take it back. Null:
--               nothing is left to do. Workers read results while there is a row that has one.
--   carrier     the prefix of the transport's tables: only a worker with that transport handles the row.
--   resent      how often its task was sent once more, because it had vanished or an old failure came instead.
--   queue_ms    how long it waited for a worker: from `dispatched_at` to the time that the worker names.
--
-- With the transport in this database the task is inserted in the transaction that inserts the row, and the result is
-- deleted in the one that settles it. Otherwise the row is sent after the commit, and the result deleted after the row
-- was settled.
--
-- QUEUES have a row if they were ever paused, limited or declared. One that is paused or limited is GATED: the usual
-- claim leaves it out. A paused queue is claimed by no worker; a limited one by a claim of its own, which locks the row
-- of the queue while it counts what runs there and what was started lately, and takes no more than its limits allow.
-- `runs.counted_attempt` is the attempt that a run was last claimed for in a limited queue. Such a run counts against
-- the limits while it names a worker (`runs_counted`). Claimed again for the same attempt, after a wait or from a dead
-- worker, it counts against no rate (`runs_resuming`). QUEUE_STARTS is the log of a rate: how many attempts began at a
-- time, of the whole queue (key '') or of one key. Claims delete what no window reaches any more.
--
-- SCHEDULES start runs at their ticks: the times of a cron expression in a time zone, or every so many milliseconds from
-- `created_at`. `next_at` is the first tick that was not handled; the transaction that starts its run moves it on, with
-- the row locked, so each tick starts one run, which also has the key name@tick. `due_at` is when a worker has to handle
-- it. Only a worker whose code declares a schedule (`workers.schedules`) starts the runs of a declared one; ticks before
-- `woken_at`, when such a worker came after there had been none, were missed.
--
-- A DEBOUNCED start keeps its key in `runs.debounced`: further starts of the key find the run there and put it off,
-- until a worker first claims it or it ends. That is the condition of an index, so the key is free from that moment on.
--
-- A run that was started by a NAME (`unique_name`) has it for as long as it lives: an index over live runs keeps a second
-- one out, and the transaction that ends the run takes it out of that index. What a run goes on as takes the name over.
-- A run that waits for the name of another has it in `awaits_name`. `hands_on` says that such runs wait for the end of
-- this one, or that signals in its mailbox came from starts (`mailbox.start` is what these would have started): when it
-- has ended, a worker gives the name to the first of the runs, or makes one for the signals, and moves these to it.
--
-- ATTRIBUTES are typed values by which runs are found: a row for each, written with the start or with the record that
-- sets it. A name has values of one type, which is stored before the first of them, in a transaction of its own.
--
-- DEFINITIONS are what the database knows of the code; a start without the code is checked against them. WORKERS are the
-- processes that live, each with one heartbeat for all runs it holds. The AUDIT has what operators did in the console.
-- RUN_VALUES are what a run lets others read while it is under way. STREAMS are what its code sends while it works, one
-- row of `stream_items` for each item, numbered when it is committed, under the lock of the row of its stream.
-- `stream_sources` counts what each branch and step has sent: an item that is there already, because a reply was lost or
-- the code is executed again, is not stored twice, and the first item of a later try of a step is marked. QUESTIONS
-- are requests to runs: the request is a message in the mailbox, the answer is in the row, whether or not anyone reads it.
-- One that is open when its run has ended has ended with the run. CALLBACKS have a token that is stored nowhere, but for
-- its hash: who has it gives the run an outcome, which is a message in the mailbox as the end of a child is. EVENTS are facts that anyone may publish: one row, and
-- no lock. `number` is null until a worker has given it one, after the commit, with the row of `event_order` locked: so
-- numbers are in the order in which they can be read. `event_waits` has what runs wait for, by name and key ('' without
-- one); a run that is `armed` is woken once, by a message of the kind `event` in its mailbox, and reads then what it has
-- not taken (`event_takes`). `event_subscriptions` are the workflows that events start, `event_starts` those starts: to be
-- made while they have a `due_at`. CHECKPOINTS and SESSION_ITEMS belong to no run: they are the state of graphs of LangGraph,
-- by thread, and the conversations of agents. They stay until they are deleted. `trace` is what observers send along with a run, a
-- signal or a remote step: JSON, an object of short texts. Null without observers.
--
-- LOCKS. Rows of `runs` are locked in the order of ids. Claims, flushes and sweeps skip locked rows; operators, signals
-- and the end of a dag's step wait for them. Times are milliseconds since 1970 by the database's clock, and no other
-- clock decides. Payloads are JSON text; `format` 2 says that they passed through the application's codec. The views at
-- the end are for people. No table refers to another schema, so a namespace can be moved to another server.

CREATE TABLE {meta} (
    name  varchar(200) NOT NULL PRIMARY KEY,
    value text NOT NULL
);

CREATE TABLE {definitions} (
    name          varchar(200) NOT NULL,
    version       varchar(200) NOT NULL,
    kind          varchar(20) NOT NULL,   -- task, workflow, dag
    queue         varchar(200) NOT NULL,
    options       text NOT NULL,          -- JSON: max_attempts, timeout, deadline
    input_schema  text,                   -- JSON schema, or null: any input
    graph         text,                   -- JSON, of a dag: runs in flight keep the version they started with
    registered_at bigint NOT NULL,
    seen_at       bigint NOT NULL,        -- a start is checked against the newest of its name
    PRIMARY KEY (name, version)
);

CREATE TABLE {workers} (
    id          uuid NOT NULL PRIMARY KEY, -- new at every process start
    host        text NOT NULL,
    pid         integer NOT NULL,
    process     text,                     -- machine, pid and beginning, if known: then its end is detected at once
    queues      text,                     -- JSON list, or null: every queue
    workflows   text NOT NULL,            -- JSON: name -> version of the code
    modules     text NOT NULL DEFAULT ('{}'), -- JSON: name -> module the code is from
    limits      text NOT NULL DEFAULT ('{}'), -- JSON: queue -> the limits that its code declares
    schedules   text NOT NULL DEFAULT ('[]'), -- JSON: names of the schedules that its code declares
    concurrency integer NOT NULL,
    running     integer NOT NULL DEFAULT 0,
    lease_ms    bigint NOT NULL,
    state       varchar(20) NOT NULL,     -- live, stopping, dead
    started_at  bigint NOT NULL,
    beat_at     bigint NOT NULL,
    expires_at  bigint NOT NULL           -- without a heartbeat until then: dead
);

-- Where workers ran that are gone: a run names the worker of its last claim for as long as it is kept.
CREATE TABLE {past_workers} (
    id      uuid NOT NULL PRIMARY KEY,
    host    text NOT NULL,
    pid     integer NOT NULL,
    left_at bigint NOT NULL               -- deleted some time after every run that is older
);
CREATE INDEX past_workers_left ON {past_workers} (left_at);

CREATE TABLE {runs} (
    id              uuid NOT NULL PRIMARY KEY,
    workflow        varchar(401) NOT NULL, -- of a dag's step: DAG/STEP
    version         varchar(200) NOT NULL, -- of the code that started it, then of the code that claimed it last
    queue           varchar(200) NOT NULL,
    status          varchar(20) NOT NULL,
    reason          varchar(200),         -- why it ended without a result
    waiting_for     text,
    priority        integer NOT NULL DEFAULT 0,
    place           bigint,
    visible_at      bigint,
    worker          uuid,
    claim           integer NOT NULL DEFAULT 0,
    executed_by     uuid,                 -- the worker of the last claim; unlike `worker` it stays
    token           bigint,               -- of the claim call, so that one whose reply was lost can be asked for again
    wakes           integer NOT NULL DEFAULT 0,
    ends            integer NOT NULL DEFAULT 0,
    awaits          integer,
    linger_ms       integer NOT NULL DEFAULT 0,
    asked           varchar(20),          -- what an operator wants of the worker that has it: cancel, pause
    undoing         boolean NOT NULL DEFAULT false,
    attempt         integer NOT NULL DEFAULT 0,   -- tries of the code
    first_attempt   integer NOT NULL DEFAULT 1,   -- where the present budget of attempts began (an operator's retry)
    max_attempts    integer,              -- null: the definition's
    losses          integer NOT NULL DEFAULT 0,
    unrecorded_losses integer NOT NULL DEFAULT 0,
    timeout_ms      bigint,
    deadline_ms     bigint,               -- the length of the deadline, which a retry has again
    deadline_at     bigint,
    expires_at      bigint,
    held_due        bigint,               -- of a paused run: when it would have been due
    format          smallint NOT NULL,
    input           text NOT NULL,
    output          text,
    output_format   smallint,             -- of output and error, which another process may have written
    error           text,
    forget          text,                 -- JSON: records that a retry executes again
    key             varchar(200),
    debounced       varchar(200),
    unique_name     varchar(200),
    awaits_name     varchar(200),
    hands_on        boolean NOT NULL DEFAULT false,
    tags            text,                 -- JSON list
    concurrency_key varchar(200),
    counted_attempt integer,
    seed            text NOT NULL,        -- what its random values are made from; a secret, in no view
    parent_id       uuid,                 -- the run that started this one, and where in its code
    parent_branch   text,
    parent_position integer,
    reply_to        uuid,                 -- the id under which the parent waits for the end of this run
    detached        boolean NOT NULL DEFAULT false, -- of a child: it is not cancelled with its parent
    spares_children boolean NOT NULL DEFAULT false, -- it was cancelled without its children
    origin_id       uuid,                 -- the run that this one continues or repeats
    dag_id          uuid,
    dag_step        varchar(200),
    graph           varchar(200),
    pending         integer NOT NULL DEFAULT 0,
    met             integer NOT NULL DEFAULT 0,
    ordinal         integer,
    ready_at        bigint,
    failing         boolean NOT NULL DEFAULT false,
    trace           text,
    created_at      bigint NOT NULL,
    started_at      bigint,
    completed_at    bigint,
    paused_at       bigint,               -- since when it is paused; null: it is not
    links_gone      integer               -- how many runs of its chain, between it and the next, were removed; null: none
);

-- A lane is (queue, workflow, priority); within it the oldest first. Rows of a workflow that no worker of an application
-- knows are lanes that it never reads, however many they are.
CREATE INDEX runs_ready ON {runs} (queue, workflow, priority, place) WHERE place IS NOT NULL AND losses < 2;
-- Suspects are apart, those with the fewest losses first.
CREATE INDEX runs_suspect ON {runs} (losses, priority DESC, place) WHERE place IS NOT NULL AND losses >= 2;
CREATE INDEX runs_due ON {runs} (visible_at) WHERE visible_at IS NOT NULL;
CREATE INDEX runs_worker ON {runs} (worker) WHERE worker IS NOT NULL;
CREATE UNIQUE INDEX runs_key ON {runs} (workflow, key) WHERE key IS NOT NULL;
CREATE UNIQUE INDEX runs_debounced ON {runs} (workflow, debounced)
    WHERE debounced IS NOT NULL AND started_at IS NULL AND completed_at IS NULL;
CREATE UNIQUE INDEX runs_unique_name ON {runs} (workflow, unique_name)
    WHERE unique_name IS NOT NULL AND completed_at IS NULL;
CREATE INDEX runs_awaits_name ON {runs} (workflow, awaits_name, id)
    WHERE awaits_name IS NOT NULL AND completed_at IS NULL;
CREATE INDEX runs_hands_on ON {runs} (id) WHERE hands_on AND completed_at IS NOT NULL;
CREATE INDEX runs_parent ON {runs} (parent_id) WHERE parent_id IS NOT NULL;
-- For lists. What is in trouble or at rest is found by its status; all else by reading from the newest run back. Lists
-- leave steps of dags out, and many of them wait.
CREATE INDEX runs_at_rest ON {runs} (status, id)
    WHERE status IN ('waiting', 'paused', 'failed', 'cancelled', 'compensating', 'compensated') AND dag_id IS NULL;
CREATE UNIQUE INDEX runs_dag_step ON {runs} (dag_id, dag_step) WHERE dag_id IS NOT NULL;
-- The outputs of a dag run that were completed since a time.
CREATE INDEX runs_outputs ON {runs} (dag_id, completed_at) WHERE dag_id IS NOT NULL AND status = 'completed';
CREATE INDEX runs_dags ON {runs} (id) WHERE status = 'running' AND graph IS NOT NULL AND dag_id IS NULL;
CREATE INDEX runs_counted ON {runs} (queue, concurrency_key) WHERE worker IS NOT NULL AND counted_attempt IS NOT NULL;
CREATE INDEX runs_resuming ON {runs} (queue, workflow, priority DESC, place)
    WHERE place IS NOT NULL AND losses < 2 AND (counted_attempt = attempt OR (graph IS NOT NULL AND dag_id IS NULL));
-- What is ready of one key: a key with a hundred thousand runs is passed over in one step.
CREATE INDEX runs_keyed ON {runs} (queue, workflow, concurrency_key, priority DESC, place)
    WHERE place IS NOT NULL AND losses < 2 AND concurrency_key IS NOT NULL;

CREATE TABLE {run_tags} (
    tag    varchar(200) NOT NULL,
    run_id uuid NOT NULL,
    PRIMARY KEY (tag, run_id)
);

CREATE TABLE {run_attributes} (
    run_id uuid NOT NULL,
    name   varchar(200) NOT NULL,
    value  varchar(201) NOT NULL,         -- a letter for the type (s, n, b, t), and the value: equal values are equal texts
    PRIMARY KEY (run_id, name)
);
CREATE INDEX run_attributes_value ON {run_attributes} (name, value, run_id);

CREATE TABLE {attribute_names} (
    name varchar(200) NOT NULL PRIMARY KEY,
    type varchar(20) NOT NULL             -- text, number, bool, time: of all values of this name
);

-- The workers of earlier claims: a row is written when another worker than the last one claims a run, so a run that one
-- worker executed has none. Claims up to `claim`, from the row before on, were of `worker`; later ones of `executed_by`.
CREATE TABLE {claims} (
    run_id uuid NOT NULL,
    claim  integer NOT NULL,
    worker uuid NOT NULL,
    PRIMARY KEY (run_id, claim)
);

CREATE TABLE {steps} (
    run_id       uuid NOT NULL,
    branch       varchar(500) NOT NULL,   -- '' is the main branch
    position     integer NOT NULL,
    seq          integer NOT NULL,
    claim        integer NOT NULL,        -- by which claim it was recorded
    name         varchar(200) NOT NULL,
    kind         varchar(20) NOT NULL,
    status       varchar(20) NOT NULL,    -- completed, failed, cancelled, waiting
    attempts     integer NOT NULL,
    losses       integer,                 -- workers that died while the call was, or may have been, under way; null: none
    output       text,
    error        text,
    arguments    text,
    line         text,                    -- file and line of the call, for the message of a divergence
    undo         text,                    -- the function that undoes it
    mail         uuid,                    -- what it took out of the mailbox
    format       smallint NOT NULL,
    started_at   bigint NOT NULL,
    completed_at bigint NOT NULL,
    PRIMARY KEY (run_id, branch, position)
);

CREATE TABLE {tries} (
    run_id       uuid NOT NULL,
    branch       varchar(500) NOT NULL,
    position     integer NOT NULL,        -- -1: the run as a whole
    attempt      integer NOT NULL,
    number       integer NOT NULL,
    claim        integer NOT NULL,
    name         varchar(200) NOT NULL,
    error        text NOT NULL,
    arguments    text,
    format       smallint NOT NULL,
    started_at   bigint NOT NULL,
    completed_at bigint NOT NULL,
    due_at       bigint,                  -- when the next try is due: a run woken early for another reason waits for it
    PRIMARY KEY (run_id, branch, position, attempt, number)
);

CREATE TABLE {progress} (
    run_id     uuid NOT NULL,
    branch     varchar(500) NOT NULL,
    position   integer NOT NULL,
    name       varchar(200) NOT NULL,
    detail     text,
    data       text,
    format     smallint NOT NULL,
    started_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    PRIMARY KEY (run_id, branch, position)
);

CREATE TABLE {mailbox} (
    run_id    uuid NOT NULL,
    id        uuid NOT NULL,              -- made by the sender; in order of sending
    kind      varchar(20) NOT NULL,       -- signal, child, remote, cancel, resume, reschedule, event
    name      varchar(200) NOT NULL,
    value     text,
    error     text,
    format    smallint NOT NULL,
    sent_at   bigint NOT NULL,
    delivered boolean NOT NULL DEFAULT true,
    trace     text,
    start     text,                       -- JSON: the rows of a run to be made, if this one ends without taking it
    PRIMARY KEY (run_id, id)
);
CREATE INDEX mailbox_undelivered ON {mailbox} (sent_at) WHERE NOT delivered;

CREATE TABLE {run_values} (
    run_id     uuid NOT NULL,
    key        varchar(700) NOT NULL,
    value      text NOT NULL,
    format     smallint NOT NULL,
    updated_at bigint NOT NULL,
    PRIMARY KEY (run_id, key)
);

CREATE TABLE {streams} (
    run_id uuid NOT NULL,
    name   varchar(200) NOT NULL,
    items  integer NOT NULL,              -- how many it has: the number of the last
    size   bigint NOT NULL,               -- bytes of all values
    PRIMARY KEY (run_id, name)
);

CREATE TABLE {stream_sources} (
    run_id  uuid NOT NULL,
    name    varchar(200) NOT NULL,
    source  varchar(500) NOT NULL,        -- a branch of the workflow, or a step
    claim   integer,                      -- of a step: the claim under which it was called last
    attempt integer NOT NULL,             -- and the try
    items   integer NOT NULL,             -- items of it: of a step, of its last try
    PRIMARY KEY (run_id, name, source)
);

CREATE TABLE {stream_items} (
    run_id    uuid NOT NULL,
    name      varchar(200) NOT NULL,
    number    integer NOT NULL,           -- from 1, without gaps
    attempt   integer NOT NULL,           -- the try of the step that sent it
    restarted boolean NOT NULL,           -- the first item of a try that follows another
    value     text,                       -- null: the end of the stream
    format    smallint NOT NULL,
    sent_at   bigint NOT NULL,
    PRIMARY KEY (run_id, name, number)
);

CREATE TABLE {questions} (
    id       uuid NOT NULL PRIMARY KEY,   -- made by who asks; that of the message in the mailbox
    run_id   uuid NOT NULL,               -- the run that is to answer
    name     varchar(200) NOT NULL,       -- of that message: ~question/ and the name that the code uses
    state    varchar(20) NOT NULL,        -- open, answered, refused, ended
    answer   text,                        -- the answer, or why it was refused
    format   smallint NOT NULL,
    asked_at bigint NOT NULL,
    ended_at bigint                       -- when it was answered or refused
);
CREATE INDEX questions_run ON {questions} (run_id);

CREATE TABLE {callbacks} (
    id           uuid NOT NULL PRIMARY KEY, -- the first half of the SHA-256 of its token; also that of the message with its outcome
    run_id       uuid NOT NULL,             -- the run that made it
    name         varchar(200) NOT NULL,
    state        varchar(20) NOT NULL,      -- open, completed, failed, timed_out
    value        text,
    error        text,
    format       smallint NOT NULL,         -- of its value, or its error
    expects      text,                      -- JSON: the schema of its value
    timeout_ms   bigint,
    heartbeat_ms bigint,
    attempt      integer NOT NULL,          -- the attempt of the run for which it was opened last
    opened_at    bigint NOT NULL,
    beat_at      bigint NOT NULL,           -- the last heartbeat
    ended_at     bigint
);
CREATE INDEX callbacks_run ON {callbacks} (run_id);
CREATE INDEX callbacks_opened ON {callbacks} (opened_at, id);

CREATE TABLE {events} (
    id           uuid NOT NULL PRIMARY KEY, -- made from the name and event_id, so that the same is published once
    number       bigint,                  -- its place in the order: not below published_at, in microseconds
    made         uuid NOT NULL,           -- made by the publisher; tells events of one millisecond apart
    name         varchar(200) NOT NULL,
    key          varchar(200) NOT NULL,   -- '' without one
    event_id     varchar(200) NOT NULL,   -- what the publisher calls it
    data         text NOT NULL,
    format       smallint NOT NULL,
    published_at bigint NOT NULL
);
CREATE INDEX events_new ON {events} (published_at, made) WHERE number IS NULL;
CREATE INDEX events_number ON {events} (number);
CREATE INDEX events_named ON {events} (name, number);
CREATE INDEX events_keyed ON {events} (name, key, number);

CREATE TABLE {event_order} (
    one     smallint NOT NULL PRIMARY KEY,
    given   bigint NOT NULL,              -- the last number that was given to an event
    matched bigint NOT NULL               -- events up to this number have woken who waited, and made what they start due
);
INSERT INTO {event_order} (one, given, matched) VALUES (1, 0, 0);

CREATE TABLE {event_waits} (
    run_id uuid NOT NULL,
    name   varchar(200) NOT NULL,
    key    varchar(200) NOT NULL,         -- '': events of every key
    since  bigint NOT NULL,               -- when the run was started, or the first of those that went on as it
    passed bigint NOT NULL,               -- the last number that these took
    armed  boolean NOT NULL,
    PRIMARY KEY (run_id, name, key)
);
CREATE INDEX event_waits_armed ON {event_waits} (name, key, run_id) WHERE armed;

CREATE TABLE {event_takes} (
    run_id   uuid NOT NULL,
    event_id uuid NOT NULL,
    waited   varchar(200) NOT NULL,       -- the key that it waited for; '': any
    PRIMARY KEY (run_id, event_id)
);
CREATE INDEX event_takes_event ON {event_takes} (event_id);

CREATE TABLE {event_subscriptions} (
    name       varchar(200) NOT NULL,     -- of the events
    workflow   varchar(401) NOT NULL,
    created_at bigint NOT NULL,           -- events before this start nothing
    seen_at    bigint NOT NULL,           -- when a worker with this code last began
    PRIMARY KEY (name, workflow)
);

CREATE TABLE {event_starts} (
    event_id uuid NOT NULL,
    workflow varchar(401) NOT NULL,
    name     varchar(200) NOT NULL,       -- of the event
    started  uuid,                        -- the run
    tries    integer NOT NULL,
    due_at   bigint,
    error    text,                        -- why it could not be started the last time
    PRIMARY KEY (event_id, workflow)
);
CREATE INDEX event_starts_due ON {event_starts} (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX event_starts_of ON {event_starts} (workflow, name, due_at) WHERE due_at IS NOT NULL;

CREATE TABLE {checkpoints} (
    id         uuid NOT NULL PRIMARY KEY, -- made from thread, ns and checkpoint, so that the same is put once
    scope      uuid NOT NULL,             -- made from thread and ns
    thread     varchar(200) NOT NULL,
    ns         text NOT NULL,             -- of a subgraph; '' of the graph itself
    checkpoint varchar(200) NOT NULL,     -- what the graph calls it; the later, the greater
    parent     varchar(200),
    run        varchar(200),              -- the run of the graph, as its metadata have it
    versions   text NOT NULL,             -- JSON: of each channel the version that it has in checkpoint_values
    value      text NOT NULL,             -- the rest of the checkpoint, and its metadata
    format     smallint NOT NULL,
    created_at bigint NOT NULL
);
CREATE INDEX checkpoints_scope ON {checkpoints} (scope, checkpoint);
CREATE INDEX checkpoints_thread ON {checkpoints} (thread, checkpoint);
CREATE INDEX checkpoints_run ON {checkpoints} (run) WHERE run IS NOT NULL;

CREATE TABLE {checkpoint_values} (
    id      uuid NOT NULL PRIMARY KEY,    -- made from the scope, channel and version
    thread  varchar(200) NOT NULL,
    ns      text NOT NULL,
    channel text NOT NULL,
    version text NOT NULL,                -- JSON
    value   text NOT NULL,
    format  smallint NOT NULL
);
CREATE INDEX checkpoint_values_thread ON {checkpoint_values} (thread);

CREATE TABLE {checkpoint_writes} (
    id      uuid NOT NULL PRIMARY KEY,    -- made from the owner, task and number
    owner   uuid NOT NULL,                -- the id of the checkpoint, which may come later
    thread  varchar(200) NOT NULL,
    task    text NOT NULL,
    path    text NOT NULL,
    number  integer NOT NULL,             -- below 0: what a task has only once, such as its error
    channel text NOT NULL,
    value   text NOT NULL,
    format  smallint NOT NULL
);
CREATE INDEX checkpoint_writes_owner ON {checkpoint_writes} (owner);
CREATE INDEX checkpoint_writes_thread ON {checkpoint_writes} (thread);

CREATE TABLE {session_items} (
    session  varchar(200) NOT NULL,
    number   bigint NOT NULL,             -- their order; the row 0 is locked by who changes the session
    batch    uuid,                        -- what was added together, by a call or by a step of a run, is added once
    taken_by uuid,                        -- the call or the step that has taken the item off the end
    value    text NOT NULL,
    format   smallint NOT NULL,
    added_at bigint NOT NULL,
    PRIMARY KEY (session, number)
);

CREATE TABLE {remote_steps} (
    run_id        uuid NOT NULL,
    seq           integer NOT NULL,
    id            uuid NOT NULL,
    branch        varchar(500) NOT NULL,
    position      integer NOT NULL,
    claim         integer NOT NULL,
    run_attempt   integer NOT NULL,
    name          varchar(200) NOT NULL,
    grp           varchar(200) NOT NULL,
    carrier       varchar(200) NOT NULL,
    input         text,                   -- JSON, as the worker gets it; null once it is not needed any more
    state         varchar(20) NOT NULL,
    attempt       integer NOT NULL,       -- the attempt that is out; `retries` and `backoff` decide about another
    retries       integer NOT NULL,
    backoff       text NOT NULL,          -- JSON
    dispatched_at bigint NOT NULL,
    due_at        bigint,
    resent        integer NOT NULL,
    queue_ms      integer,
    settled_at    bigint,
    trace         text,
    PRIMARY KEY (run_id, seq)
);
CREATE INDEX remote_steps_due ON {remote_steps} (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX remote_steps_open ON {remote_steps} (run_id, seq) WHERE state IN ('outbox', 'sent');

CREATE TABLE {queues} (
    name          varchar(200) NOT NULL PRIMARY KEY,
    paused        boolean NOT NULL DEFAULT false,
    paused_at     bigint,
    declared      text,                   -- JSON: the limits that the code declares, by which process and when
    declared_by   text,
    declared_at   bigint,
    chosen        text,                   -- JSON: what an operator has set; each limit wins over the declared one
    limited       boolean NOT NULL DEFAULT false, -- whether a limit on claims holds
    limited_since bigint,                 -- runs that a worker held by then were claimed without being counted;
    counted_at    bigint,                 -- when such runs were last searched, and counted in
    max_ready     integer,                -- how many runs may be ready before a start is refused
    pruned_at     bigint NOT NULL DEFAULT 0
);
CREATE INDEX queues_gated ON {queues} (name) WHERE paused OR limited;

CREATE TABLE {queue_starts} (
    queue  varchar(200) NOT NULL,
    key    varchar(200) NOT NULL,
    at     bigint NOT NULL,
    number integer NOT NULL,
    PRIMARY KEY (queue, key, at)
);

CREATE TABLE {schedules} (
    name       varchar(200) NOT NULL PRIMARY KEY,
    workflow   varchar(200) NOT NULL,
    cron       text,
    every_ms   bigint,
    tz         text NOT NULL,
    input      text NOT NULL,
    format     smallint NOT NULL,
    options    text NOT NULL,             -- JSON: options of the starts
    missed     varchar(20) NOT NULL,      -- skip, latest, all
    overlap    varchar(20) NOT NULL,      -- allow, skip
    jitter_ms  bigint NOT NULL,
    declared   boolean NOT NULL,
    paused     boolean NOT NULL,
    next_at    bigint,
    due_at     bigint,                    -- null: paused, or no tick is left
    woken_at   bigint NOT NULL,
    last_at    bigint,                    -- the last tick that started a run, and which
    last_run   uuid,
    error      text,                      -- why it could not be started the last time
    created_at bigint NOT NULL
);
-- What code declares is not in it, but found by name: without that code it stays due for ever.
CREATE INDEX schedules_due ON {schedules} (due_at) WHERE due_at IS NOT NULL AND NOT declared;

-- A line is written before an action is carried out, and completed when its outcome is known. One that was never
-- completed says that its process ended in between; the action may or may not have happened. Lines hold no payloads. A
-- new line deletes some of those that are older than `retention_audit`.
CREATE TABLE {audit} (
    id      uuid NOT NULL PRIMARY KEY,    -- sorts by time
    at      bigint NOT NULL,
    who     text NOT NULL,                -- the name that the console knows the person by
    what    varchar(200) NOT NULL,        -- run.cancel, queue.pause …
    which   varchar(700) NOT NULL,        -- the run, queue or schedule; of many runs, the filters that chose them
    origin  text NOT NULL,                -- from where: the address of the client
    detail  text,                         -- JSON: further parameters
    outcome varchar(20) NOT NULL,         -- begun, done, refused, failed
    said    text                          -- the outcome, in words
);
CREATE INDEX audit_which ON {audit} (which, id);

CREATE VIEW {known_workers} AS
SELECT id, host, pid FROM {workers}
UNION ALL
SELECT p.id, p.host, p.pid FROM {past_workers} p
WHERE NOT EXISTS (SELECT 1 FROM {workers} w WHERE w.id = p.id);

-- How a dag run is shown whose row says `running`: by its steps. If all steps that could be executed wait, it waits;
-- before the first of them has begun, and while all are put off, it is queued. (The sum keeps the planner from reading
-- the timers of all runs for the earliest of these.)
CREATE VIEW {dags_shown} AS
SELECT r.id,
       CASE WHEN (SELECT 1 FROM {runs} s WHERE s.dag_id = r.id AND s.dag_id IS NOT NULL
                  AND (s.worker IS NOT NULL OR s.place IS NOT NULL) LIMIT 1) = 1 THEN 'running'
            WHEN (SELECT 1 FROM {runs} s WHERE s.dag_id = r.id AND s.dag_id IS NOT NULL
                  AND s.status = 'waiting' AND s.waiting_for <> 'steps' LIMIT 1) = 1 THEN 'waiting'
            WHEN (SELECT 1 FROM {runs} s WHERE s.dag_id = r.id AND s.dag_id IS NOT NULL
                  AND s.started_at IS NOT NULL LIMIT 1) = 1 THEN 'running'
            WHEN (SELECT 1 FROM {runs} s WHERE s.dag_id = r.id AND s.dag_id IS NOT NULL
                  AND s.status = 'queued' LIMIT 1) = 1 THEN 'queued'
            ELSE 'running' END AS status,
       (SELECT s.waiting_for FROM {runs} s
        WHERE s.dag_id = r.id AND s.dag_id IS NOT NULL AND s.status = 'waiting' AND s.waiting_for <> 'steps'
        ORDER BY s.visible_at IS NULL, s.visible_at, s.id LIMIT 1) AS waiting_for,
       (SELECT min(s.visible_at + 0) FROM {runs} s
        WHERE s.dag_id = r.id AND s.dag_id IS NOT NULL
          AND (s.status = 'queued' OR (s.status = 'waiting' AND s.waiting_for <> 'steps'))) AS due_at
FROM {runs} r
WHERE r.status = 'running' AND r.graph IS NOT NULL AND r.dag_id IS NULL
  AND r.worker IS NULL AND r.place IS NULL AND NOT r.failing;

-- The record of a sleep stays as it was made when the sleep began. When it was over, if it is, follows from its plan; a
-- sleep whose run ended before is not over.
CREATE VIEW {sleeps} AS
SELECT s.run_id, s.branch, s.position, s.ended_at
FROM (SELECT t.run_id, t.branch, t.position,
             COALESCE(json_extract(t.output, '$.until'), t.completed_at + json_extract(t.output, '$.for')) AS ended_at
      FROM {steps} t WHERE t.kind = 'sleep' AND t.status = 'waiting' AND json_valid(t.output)) AS s
WHERE s.ended_at <= COALESCE((SELECT r.completed_at FROM {runs} r WHERE r.id = s.run_id), {now});

-- What failed is in `tries`, and stays there; what is open has no outcome.
CREATE VIEW {activity} AS
SELECT run_id, branch, position, name, 0 AS attempt, attempts AS number, status, arguments, output, error, format,
       started_at, completed_at, claim, losses
FROM {steps} WHERE status NOT IN ('failed', 'waiting')
UNION ALL
SELECT s.run_id, s.branch, s.position, s.name, 0, s.attempts, 'completed', s.output, NULL, NULL, s.format, s.started_at,
       e.ended_at, s.claim, NULL
FROM {sleeps} e JOIN {steps} s ON s.run_id = e.run_id AND s.branch = e.branch AND s.position = e.position
UNION ALL
SELECT run_id, branch, position, name, attempt, number, 'failed', arguments, NULL, error, format, started_at,
       completed_at, claim, NULL
FROM {tries};

CREATE VIEW {runs_readable} AS
SELECT id, workflow, version, queue, status, reason, waiting_for, priority, attempt, losses, worker, key, unique_name, parent_id,
       CASE WHEN format = 1 THEN {json input} END AS input,
       CASE WHEN output_format = 1 THEN {json output} END AS output,
       CASE WHEN error LIKE '{%' THEN {json error} END AS error,
       {json tags} AS tags, {attributes_shown id} AS attributes, {time created_at} AS created_at, {time started_at} AS started_at,
       {time completed_at} AS completed_at, {time visible_at} AS visible_at, {time deadline_at} AS deadline_at,
       {time paused_at} AS paused_at, executed_by,
       (SELECT w.host FROM {known_workers} w WHERE w.id = executed_by) AS host,
       (SELECT w.pid FROM {known_workers} w WHERE w.id = executed_by) AS pid
FROM {runs} WHERE dag_id IS NULL;

-- The workers of a run, one row per worker and stretch of claims.
CREATE VIEW {claims_readable} AS
SELECT c.run_id, COALESCE(lag(c.claim) OVER (PARTITION BY c.run_id ORDER BY c.claim), 0) + 1 AS first_claim,
       c.claim AS last_claim, c.worker AS executed_by, w.host, w.pid
FROM (SELECT run_id, claim, worker FROM {claims}
      UNION ALL
      SELECT id, claim, executed_by FROM {runs} WHERE executed_by IS NOT NULL) AS c
LEFT JOIN {known_workers} w ON w.id = c.worker;

CREATE VIEW {steps_readable} AS
SELECT s.run_id, s.branch, s.position, s.seq, s.name, s.kind,
       CASE WHEN e.ended_at IS NULL THEN s.status ELSE 'completed' END AS status, s.attempts, s.line,
       CASE WHEN s.format = 1 THEN {json s.output} END AS output,
       CASE WHEN s.error LIKE '{%' THEN {json s.error} END AS error,
       CASE WHEN s.format = 1 THEN {json s.arguments} END AS arguments,
       {time s.started_at} AS started_at,
       {time CASE WHEN s.status = 'waiting' THEN e.ended_at ELSE s.completed_at END} AS completed_at,
       s.undo, s.executed_by,
       (SELECT w.host FROM {known_workers} w WHERE w.id = s.executed_by) AS host,
       (SELECT w.pid FROM {known_workers} w WHERE w.id = s.executed_by) AS pid,
       CASE WHEN s.format = 1 THEN {json s.arguments} END AS parameters
FROM (SELECT t.*, COALESCE((SELECT c.worker FROM {claims} c WHERE c.run_id = t.run_id AND c.claim >= t.claim
                            ORDER BY c.claim LIMIT 1),
                           (SELECT r.executed_by FROM {runs} r WHERE r.id = t.run_id)) AS executed_by
      FROM {steps} t) AS s
LEFT JOIN {sleeps} e ON e.run_id = s.run_id AND e.branch = s.branch AND e.position = s.position;

CREATE VIEW {activity_readable} AS
SELECT a.run_id, a.branch, a.position, a.name, a.attempt, a.number, a.status,
       CASE WHEN a.format = 1 THEN {json a.arguments} END AS arguments,
       CASE WHEN a.format = 1 THEN {json a.output} END AS output,
       CASE WHEN a.error LIKE '{%' THEN {json a.error} END AS error,
       {time a.started_at} AS started_at, {seconds a.completed_at - a.started_at} AS seconds, a.executed_by,
       (SELECT w.host FROM {known_workers} w WHERE w.id = a.executed_by) AS host,
       (SELECT w.pid FROM {known_workers} w WHERE w.id = a.executed_by) AS pid,
       CASE WHEN a.format = 1 THEN {json a.arguments} END AS parameters
FROM (SELECT t.*, COALESCE((SELECT c.worker FROM {claims} c WHERE c.run_id = t.run_id AND c.claim >= t.claim
                            ORDER BY c.claim LIMIT 1),
                           (SELECT r.executed_by FROM {runs} r WHERE r.id = t.run_id)) AS executed_by
      FROM {activity} t) AS a;

CREATE VIEW {progress_readable} AS
SELECT run_id, branch, position, name, detail, CASE WHEN format = 1 THEN {json data} END AS data,
       {time started_at} AS started_at, {time updated_at} AS updated_at
FROM {progress};

CREATE VIEW {values_readable} AS
SELECT run_id, key, CASE WHEN format = 1 THEN {json value} END AS value, {time updated_at} AS updated_at
FROM {run_values} WHERE key NOT LIKE '~until/%' AND key NOT LIKE '~graph%' AND key NOT LIKE '~signal/%';

CREATE VIEW {questions_readable} AS
SELECT q.id, q.run_id, substr(q.name, 11) AS name,
       CASE WHEN q.state = 'open' AND (r.completed_at IS NOT NULL OR r.undoing) THEN 'ended' ELSE q.state END AS state,
       CASE WHEN q.format = 1 THEN {json q.answer} END AS answer, {time q.asked_at} AS asked_at,
       {time q.ended_at} AS ended_at
FROM {questions} q LEFT JOIN {runs} r ON r.id = q.run_id;

CREATE VIEW {callbacks_readable} AS
SELECT c.id, c.run_id, c.name,
       CASE WHEN c.state = 'open' AND (r.completed_at IS NOT NULL OR r.undoing) THEN 'ended' ELSE c.state END AS state,
       CASE WHEN c.format = 1 THEN {json c.value} END AS value,
       CASE WHEN c.format = 1 THEN {json c.error} END AS error, {seconds c.timeout_ms} AS timeout,
       {seconds c.heartbeat_ms} AS heartbeat, {time c.opened_at} AS opened_at, {time c.beat_at} AS beat_at,
       {time c.ended_at} AS ended_at
FROM {callbacks} c LEFT JOIN {runs} r ON r.id = c.run_id;

CREATE VIEW {events_readable} AS
SELECT event_id AS id, name, CASE WHEN key <> '' THEN key END AS key, CASE WHEN format = 1 THEN {json data} END AS data,
       {time published_at} AS published_at
FROM {events};

CREATE VIEW {workers_readable} AS
SELECT id, host, pid, {json queues} AS queues, {json workflows} AS workflows, concurrency, running, state,
       {time started_at} AS started_at, {time beat_at} AS beat_at, {time expires_at} AS expires_at
FROM {workers};

CREATE VIEW {schedules_readable} AS
SELECT name, workflow, cron, {seconds every_ms} AS every, tz, missed, overlap, {seconds jitter_ms} AS jitter, declared,
       paused, CASE WHEN format = 1 THEN {json input} END AS input, {json options} AS options, error,
       {time next_at} AS next_at, {time last_at} AS last_at, last_run, {time created_at} AS created_at
FROM {schedules};

CREATE VIEW {audit_readable} AS
SELECT id, {time at} AS at, who, what, which, origin, {json detail} AS detail, outcome, said
FROM {audit};
