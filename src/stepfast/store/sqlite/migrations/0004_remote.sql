-- compatible from: 1
-- Remote steps: steps that workers elsewhere serve, over a transport whose tables are not ours. A row is what the engine
-- knows of one, from the record that it has begun until the run is deleted.
--
-- `seq` is its number in the run, never given twice; `<run_id>:<seq>` is its id on the transport. `id` is the id under
-- which its outcome comes into the mailbox. `state` is outbox (to be sent when it is due), sent, settled, or withdrawn
-- (nobody waits for it any more). `due_at` is when somebody has to see to it: null, if nothing is left to do. `carrier`
-- is the prefix of the transport's tables. `resent` counts how often its task was sent once more because it had
-- vanished, or an old failure came in its place.

CREATE TABLE {prefix}remote_steps (
    run_id        TEXT NOT NULL,
    seq           INTEGER NOT NULL,
    id            TEXT NOT NULL,
    branch        TEXT NOT NULL,
    position      INTEGER NOT NULL,
    claim         INTEGER NOT NULL,
    run_attempt   INTEGER NOT NULL,
    name          TEXT NOT NULL,
    grp           TEXT NOT NULL,
    carrier       TEXT NOT NULL,
    input         TEXT,
    state         TEXT NOT NULL,
    attempt       INTEGER NOT NULL,
    retries       INTEGER NOT NULL,
    backoff       TEXT NOT NULL,
    dispatched_at INTEGER NOT NULL,
    due_at        INTEGER,
    resent        INTEGER NOT NULL,
    queue_ms      INTEGER,
    settled_at    INTEGER,
    PRIMARY KEY (run_id, seq)
) WITHOUT ROWID;

CREATE INDEX {prefix}remote_steps_due ON {prefix}remote_steps (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX {prefix}remote_steps_open ON {prefix}remote_steps (run_id, seq) WHERE state IN ('outbox', 'sent');
