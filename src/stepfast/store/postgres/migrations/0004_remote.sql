-- compatible from: 1
--
-- Remote steps: steps that workers elsewhere serve, in whatever language, over a transport whose tables are not ours. A
-- row of REMOTE_STEPS is what the engine knows of one, from the record that it has begun until the run is deleted.
--
--   seq            its number in the run: from 0 upward, and below 0 for undos. It is given under the lock of the run, and
--                  never twice. `<run_id>:<seq>` is the id of the step on the transport, for all its attempts.
--   id             the id under which its outcome comes into the mailbox of the run.
--   state          outbox: to be sent when it is due. sent: with the transport. settled: its outcome is in the mailbox,
--                  or was. withdrawn: nobody waits for it any more.
--   due_at         when somebody has to see to it: to send it, to look whether its task is still there, to take it back.
--                  Null: nothing is left to do. A worker looks for results while there is a row that has one.
--   carrier        the prefix of the transport's tables: only a worker with that transport sees to it.
--   attempt        the attempt that is out; `retries` and `backoff` say whether and when there is another. The run itself
--                  waits meanwhile, and no worker holds it.
--   resent         how often its task was sent once more, because it had vanished or an old failure came in its place.
--   queue_ms       how long it waited for a worker: from `dispatched_at` to the time that the worker names.
--
-- With the transport in this database the task is inserted in the transaction that inserts the row, and the result is
-- deleted in the one that settles it. Otherwise the row is sent after the commit, and the result deleted after the row was settled.

CREATE TABLE {schema}.remote_steps (
    run_id        uuid NOT NULL,
    seq           integer NOT NULL,
    id            uuid NOT NULL,
    branch        text NOT NULL,
    position      integer NOT NULL,
    claim         integer NOT NULL,
    run_attempt   integer NOT NULL,
    name          text NOT NULL,
    grp           text NOT NULL,
    carrier       text NOT NULL,
    input         text,                   -- JSON, as the worker gets it; null once nobody needs it any more
    state         text NOT NULL,
    attempt       integer NOT NULL,
    retries       integer NOT NULL,
    backoff       text NOT NULL,          -- JSON
    dispatched_at bigint NOT NULL,
    due_at        bigint,
    resent        integer NOT NULL,
    queue_ms      integer,
    settled_at    bigint,
    PRIMARY KEY (run_id, seq)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);

CREATE INDEX remote_steps_due ON {schema}.remote_steps (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX remote_steps_open ON {schema}.remote_steps (run_id, seq) WHERE state IN ('outbox', 'sent');
