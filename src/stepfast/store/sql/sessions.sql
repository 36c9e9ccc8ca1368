-- Conversations of agents. Who changes one has locked its row of number 0, so that its items have one order.

-- name: open_session(u(session text, format smallint))
-- The row that is locked.
INSERT INTO {session_items} (session, number, value, format, added_at)
SELECT u.session, 0, '', u.format, {now} FROM {rows u}
WHERE true
{skip session, number};

-- name: lock_session(session text)
-- Lock it.
SELECT s.number FROM {session_items} s WHERE s.session = :session AND s.number = 0 {lock s};

-- name: last_session_item(session text)
-- The number of the last item; items that were taken count.
SELECT s.number FROM {session_items} s WHERE s.session = :session ORDER BY s.number DESC LIMIT 1;

-- name: session_batch(session text, batch uuid)
-- Whether a batch was added.
SELECT 1 FROM {session_items} s WHERE s.session = :session AND s.batch = :batch LIMIT 1;

-- name: add_session_items(u(session text, number bigint, batch uuid, value text, format smallint))
-- Items.
INSERT INTO {session_items} (session, number, batch, value, format, added_at)
SELECT u.session, u.number, u.batch, u.value, u.format, {now} FROM {rows u};

-- name: session_items(session text, most bigint)
-- The last items, the newest first.
SELECT s.number, s.value, s.format FROM {session_items} s
WHERE s.session = :session AND s.number > 0 AND s.taken_by IS NULL ORDER BY s.number DESC LIMIT :most;

-- name: session_item_taken(session text, taken_by uuid)
-- The item that was taken.
SELECT s.number, s.value, s.format FROM {session_items} s WHERE s.session = :session AND s.taken_by = :taken_by;

-- name: take_session_item(u(session text, number bigint, taken_by uuid))
-- Keep an item for who has taken it.
{update session_items s, u} SET taken_by = u.taken_by
{from u}
WHERE s.session = u.session AND s.number = u.number;

-- name: forget_session_item(u(session text, taken_by uuid))
-- An item that was taken.
{delete session_items by u};

-- name: delete_session(u(session text))
-- All items of sessions.
{delete session_items by u};

-- name: old_sessions(age_ms bigint, most bigint)
-- Sessions to which nothing was added for longer.
SELECT s.session FROM {session_items} s GROUP BY s.session
HAVING max(s.added_at) <= {now} - :age_ms ORDER BY s.session LIMIT :most;
