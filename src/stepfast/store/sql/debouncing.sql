-- Debounced starts: the run that a key stands for until a worker claims it.

-- name: change_input(u(id uuid, input text, format smallint))
-- What a run that no worker has claimed is to be started with instead. It is locked in this transaction.
{update runs r, u} SET input = u.input, format = u.format
{from u} WHERE r.id = u.id;

-- name: leave_debounced(u(id uuid))
-- Runs that are no longer what a key stands for. They are locked in this transaction.
{update runs r, u} SET debounced = NULL {from u} WHERE r.id = u.id AND r.debounced IS NOT NULL;

-- name: lock_debounced(workflow, key)
-- The run of a key that no worker has claimed yet, waited for: if that is a claim, there is none when it is over. The
-- clock is read when the lock is there.
WITH locked {once} (
    SELECT r.* FROM {runs} r
    WHERE r.workflow = :workflow AND r.debounced = :key AND r.debounced IS NOT NULL AND r.started_at IS NULL
      AND r.completed_at IS NULL
    {lock r}
)
SELECT r.created_at, {now} AS now_ms, {standing} FROM locked r;

-- name: start_debounced(u(id uuid, input text, debounced text, workflow text, version text, queue text, priority integer,
--     visible_at bigint, expires_at bigint, deadline_ms bigint, deadline_at bigint, max_attempts integer,
--     timeout_ms bigint, tags text, concurrency_key text, format smallint, seed text, created_at bigint, trace text))
-- A start that waits for more of its key. Nothing is written if another has the key, or the id is there already.
INSERT INTO {runs} (id, input, debounced, workflow, version, queue, priority, visible_at, expires_at, deadline_ms,
                    deadline_at, max_attempts, timeout_ms, tags, concurrency_key, format, seed, created_at, trace, status)
SELECT u.*, 'queued'
FROM {rows u}
WHERE true
{skip_any id};
