-- Callbacks: outcomes that holders of a token give runs. All changes are made under the lock of the callback, which is
-- taken before that of its run, by flows/callbacks.py, or on Postgres by a function in the transaction of its caller. One is
-- made with the record of its making. One that is open when its run has ended has ended with it.

-- name: lock_callback(id)
-- A callback as it stands, locked.
SELECT c.id::text AS id, c.run_id::text AS run_id, c.name, c.state, c.value, c.error, c.format, c.expects, c.timeout_ms,
       c.heartbeat_ms, c.attempt, c.opened_at, c.beat_at, c.ended_at
FROM {callbacks} c WHERE c.id = :id {lock c};

-- name: lock_free_callback(id)
-- The same, unless another transaction holds it.
SELECT c.id::text AS id, c.run_id::text AS run_id, c.name, c.state, c.value, c.error, c.format, c.expects, c.timeout_ms,
       c.heartbeat_ms, c.attempt, c.opened_at, c.beat_at, c.ended_at
FROM {callbacks} c WHERE c.id = :id {lock c skip};

-- name: callback(id)
-- The same, not locked.
SELECT c.id::text AS id, c.run_id::text AS run_id, c.name, c.state, c.value, c.error, c.format, c.expects, c.timeout_ms,
       c.heartbeat_ms, c.attempt, c.opened_at, c.beat_at, c.ended_at
FROM {callbacks} c WHERE c.id = :id;

-- name: callbacks_of(run_id, most)
-- The callbacks of a run, for people, the newest first.
SELECT c.id::text AS id, c.run_id::text AS run_id, c.name, c.state, c.value, c.error, c.format, c.expects, c.timeout_ms,
       c.heartbeat_ms, c.attempt, c.opened_at, c.beat_at, c.ended_at
FROM {callbacks} c WHERE c.run_id = :run_id ORDER BY c.opened_at DESC, c.id LIMIT :most;

-- name: callbacks_shown(name text, state text, low bigint, last uuid, most bigint)
-- Callbacks of all runs, for people, the newest first: of a name (null: any) and a state (null: any; ``ended``: open when
-- its run ended), opened before a time (null: any), or then and with a smaller id.
SELECT c.id::text AS id, c.run_id::text AS run_id, c.name,
       CASE WHEN c.state = 'open' AND COALESCE(r.completed_at IS NOT NULL OR r.undoing, true) THEN 'ended'
            ELSE c.state END AS state,
       c.value, c.error, c.format, c.expects, c.timeout_ms, c.heartbeat_ms, c.attempt, c.opened_at, c.beat_at, c.ended_at
FROM {callbacks} c LEFT JOIN {runs} r ON r.id = c.run_id
WHERE (:low IS NULL OR c.opened_at < :low OR (c.opened_at = :low AND c.id < :last))
  AND (:name IS NULL OR c.name = :name)
  AND (:state IS NULL OR :state = CASE WHEN c.state = 'open' AND COALESCE(r.completed_at IS NOT NULL OR r.undoing, true)
                                       THEN 'ended' ELSE c.state END)
ORDER BY c.opened_at DESC, c.id DESC LIMIT :most;

-- name: make_callbacks(u(id uuid, run_id uuid, name text, expects text, timeout_ms bigint, heartbeat_ms bigint,
--     attempt integer, at bigint))
-- Callbacks that records make. One that was made by a record which is forgotten is there already.
INSERT INTO {callbacks} (id, run_id, name, state, format, expects, timeout_ms, heartbeat_ms, attempt, opened_at, beat_at)
SELECT u.id, u.run_id, u.name, 'open', 1, u.expects, u.timeout_ms, u.heartbeat_ms, u.attempt, u.at, u.at FROM {rows u}
WHERE true
{skip id};

-- name: end_callback(u(id uuid, state text, value text, error text, format smallint, at bigint))
-- The outcome of a callback, which is locked and open.
{update callbacks c, u}
SET state = u.state, value = u.value, error = u.error, format = u.format, ended_at = u.at
{from u}
WHERE c.id = u.id;

-- name: open_callback(u(id uuid, attempt integer, opened_at bigint, beat_at bigint))
-- A callback is open again: for another attempt of its run, or because its value did not fit.
{update callbacks c, u}
SET state = 'open', value = NULL, error = NULL, ended_at = NULL, attempt = u.attempt, opened_at = u.opened_at,
    beat_at = u.beat_at
{from u}
WHERE c.id = u.id;

-- name: beat_callback(u(id uuid, at bigint))
-- A heartbeat of a callback.
{update callbacks c, u} SET beat_at = u.at {from u} WHERE c.id = u.id;

-- name: tell_callback(u(run_id uuid, id uuid, state text, value text, error text, format smallint))
-- The outcome of a callback goes into the mailbox of its run, which is locked in this transaction.
INSERT INTO {mailbox} (run_id, id, kind, name, value, error, format, sent_at, delivered)
SELECT u.run_id, u.id, 'callback', u.state, u.value, u.error, u.format, {now}, true FROM {rows u}
WHERE true
{skip run_id, id};

-- name: remove_callbacks(u(run_id uuid))
-- Callbacks of runs that are removed.
{delete callbacks by u};
