-- Events: named facts, for runs that wait for them (flows/events.py) and for subscriptions that start runs. Publishing
-- inserts one row and locks none. Workers number events after their commit, one worker at a time, so that who has read a
-- number never meets a smaller one later.

-- name: publish(u(id uuid, made uuid, name text, key text, event_id text, data text, format smallint))
-- Events; one that is there already is the same.
INSERT INTO {events} (id, made, name, key, event_id, data, format, published_at)
SELECT u.id, u.made, u.name, u.key, u.event_id, u.data, u.format, {now} FROM {rows u}
WHERE true
{skip id};

-- name: lock_event_order
-- How far events are numbered, and matched with who waits for them. No row: another worker is at it.
SELECT o.given, o.matched FROM {event_order} o WHERE o.one = 1 {lock o skip};

-- name: make_event_order(u(one smallint))
-- The row of the order, if it was deleted.
INSERT INTO {event_order} (one, given, matched)
SELECT u.one, COALESCE((SELECT max(e.number) FROM {events} e), 0), COALESCE((SELECT max(e.number) FROM {events} e), 0)
FROM {rows u} WHERE (SELECT o.one FROM {event_order} o WHERE o.one = 1) IS NULL
{skip one};

-- name: new_events(most bigint)
-- Events without a number, the oldest first.
SELECT e.id::text AS id, e.published_at FROM {events} e
WHERE e.number IS NULL
ORDER BY e.published_at, e.made LIMIT :most;

-- name: number_events(u(id uuid, number bigint))
-- Events get their numbers.
{update events e, u} SET number = u.number {from u} WHERE e.id = u.id;

-- name: move_event_order(given bigint, matched bigint)
-- Say how far numbering and matching have come.
UPDATE {event_order} SET given = :given, matched = :matched WHERE one = 1;

-- name: unmatched_events(low bigint, high bigint, most bigint)
-- Events between two numbers, without their data.
SELECT e.id::text AS id, e.number, e.name, e.key, e.published_at FROM {events} e
WHERE e.number > :low AND e.number <= :high
ORDER BY e.number LIMIT :most;

-- name: armed_waits(u(name text, key text), most bigint)
-- Runs that are to be woken by events of these names and keys; their waits are locked, in their order.
SELECT w.run_id::text AS run_id, w.name, w.key
FROM {rows u} {join} {event_waits} w ON w.name = u.name AND w.key = u.key AND w.armed
WHERE w.armed
ORDER BY w.run_id, w.name, w.key LIMIT :most
{lock w};

-- name: armed_waits_of(name, key, run_id uuid, most bigint)
-- The same of one name and key, after a run.
SELECT w.run_id::text AS run_id, w.name, w.key FROM {event_waits} w
WHERE w.name = :name AND w.key = :key AND w.armed AND w.run_id > :run_id
ORDER BY w.run_id LIMIT :most
{lock w};

-- name: disarm_waits(u(run_id uuid, name text, key text))
-- These runs are being woken; a run that waits on says so again.
{update event_waits w, u} SET armed = false {from u} WHERE w.run_id = u.run_id AND w.name = u.name AND w.key = u.key;

-- name: wake_by_event(u(run_id uuid, id uuid))
-- Something that wakes a run when it is delivered, and says nothing else: the run reads its events itself.
INSERT INTO {mailbox} (run_id, id, kind, name, format, sent_at, delivered)
SELECT u.run_id, u.id, 'event', '', 1, {now}, false FROM {rows u}
WHERE true
{skip run_id, id};

-- name: arm_waits(u(run_id uuid, name text, key text))
-- Runs are to be woken by the next event of these names and keys.
INSERT INTO {event_waits} (run_id, name, key, since, passed, armed)
SELECT r.id, u.name, u.key, r.created_at, 0, true FROM {rows u} {join} {runs} r ON r.id = u.run_id
WHERE true
{upsert run_id, name, key} armed = true;

-- name: next_events(run_id uuid, name, key, low bigint, since bigint, most bigint)
-- Whether a run is to be woken by an event, and the next of a name and a key that it has not taken: beyond a number, and
-- published since a time (null: since the run was started, or the first of the runs that went on as it).
SELECT (SELECT w.armed FROM {event_waits} w WHERE w.run_id = :run_id AND w.name = :name AND w.key = :key) AS armed,
       e.id, e.number, e.event_id, e.key, e.data, e.format, e.published_at
FROM (SELECT 1 AS one) AS o LEFT JOIN (
    SELECT x.id::text AS id, x.number, x.event_id, x.key, x.data, x.format, x.published_at FROM {events} x
    WHERE x.name = :name AND x.key = :key AND x.number > :low
      AND x.number > COALESCE((SELECT w.passed FROM {event_waits} w
                               WHERE w.run_id = :run_id AND w.name = :name AND w.key = :key), 0)
      AND x.number >= 1000 * COALESCE(:since, (SELECT w.since FROM {event_waits} w
                               WHERE w.run_id = :run_id AND w.name = :name AND w.key = :key),
                               (SELECT r.created_at FROM {runs} r WHERE r.id = :run_id))
      AND x.published_at >= COALESCE(:since, (SELECT w.since FROM {event_waits} w
                               WHERE w.run_id = :run_id AND w.name = :name AND w.key = :key),
                               (SELECT r.created_at FROM {runs} r WHERE r.id = :run_id))
      AND NOT EXISTS (SELECT 1 FROM {event_takes} t WHERE t.run_id = :run_id AND t.event_id = x.id)
    ORDER BY x.number LIMIT :most
) AS e ON true
ORDER BY e.number;

-- name: next_events_of_any_key(run_id uuid, name, key, low bigint, since bigint, most bigint)
-- The same for events of every key.
SELECT (SELECT w.armed FROM {event_waits} w WHERE w.run_id = :run_id AND w.name = :name AND w.key = :key) AS armed,
       e.id, e.number, e.event_id, e.key, e.data, e.format, e.published_at
FROM (SELECT 1 AS one) AS o LEFT JOIN (
    SELECT x.id::text AS id, x.number, x.event_id, x.key, x.data, x.format, x.published_at FROM {events} x
    WHERE x.name = :name AND x.number > :low
      AND x.number > COALESCE((SELECT w.passed FROM {event_waits} w
                               WHERE w.run_id = :run_id AND w.name = :name AND w.key = :key), 0)
      AND x.number >= 1000 * COALESCE(:since, (SELECT w.since FROM {event_waits} w
                               WHERE w.run_id = :run_id AND w.name = :name AND w.key = :key),
                               (SELECT r.created_at FROM {runs} r WHERE r.id = :run_id))
      AND x.published_at >= COALESCE(:since, (SELECT w.since FROM {event_waits} w
                               WHERE w.run_id = :run_id AND w.name = :name AND w.key = :key),
                               (SELECT r.created_at FROM {runs} r WHERE r.id = :run_id))
      AND NOT EXISTS (SELECT 1 FROM {event_takes} t WHERE t.run_id = :run_id AND t.event_id = x.id)
    ORDER BY x.number LIMIT :most
) AS e ON true
ORDER BY e.number;

-- name: take_events(u(run_id uuid, event_id uuid, waited text))
-- Runs take events, in the transaction that records that they did.
INSERT INTO {event_takes} (run_id, event_id, waited)
SELECT u.run_id, u.event_id, u.waited FROM {rows u}
WHERE true
{skip run_id, event_id};

-- name: untake_events(f(run_id uuid, branch text, position integer))
-- Events that records took which are about to be forgotten.
DELETE FROM {event_takes}
WHERE (run_id, event_id) IN (
    SELECT s.run_id, s.mail FROM {rows f}
    {join} {steps} s ON s.run_id = f.run_id AND s.branch = f.branch AND s.position = f.position
    WHERE s.kind = 'event' AND s.mail IS NOT NULL
);

-- name: inherit_waits(u(ended uuid, successor uuid))
-- A run that goes on as another hands over since when it reads events.
{update event_waits w, u} SET run_id = u.successor, armed = false {from u} WHERE w.run_id = u.ended;

-- name: inherit_since(u(ended uuid, successor uuid))
-- The same where it never had to be woken.
INSERT INTO {event_waits} (run_id, name, key, since, passed, armed)
SELECT p.successor, p.name, p.waited, p.created_at, 0, false
FROM (
    SELECT DISTINCT u.successor, e.name, t.waited, r.created_at
    FROM {rows u} {join} {runs} r ON r.id = u.ended
    {join} {event_takes} t ON t.run_id = r.id {join} {events} e ON e.id = t.event_id
) AS p
WHERE true
{skip run_id, name, key};

-- name: inherit_takes(u(ended uuid, successor uuid))
-- What it has taken its successor does not take, by a wait of another key either; what it has passed over it may.
{update event_takes t, u} SET run_id = u.successor {from u} WHERE t.run_id = u.ended;

-- name: subscribe(u(name text, workflow text))
-- What code declares that events start.
INSERT INTO {event_subscriptions} (name, workflow, created_at, seen_at)
SELECT u.name, u.workflow, {now}, {now} FROM {rows u}
WHERE true
{upsert name, workflow} seen_at = {new.seen_at};

-- name: subscriptions(names text[])
-- Which workflows events of these names start, and since when.
SELECT s.name, s.workflow, s.created_at FROM {event_subscriptions} s WHERE s.name {in names};

-- name: put_event_starts(u(event_id uuid, workflow text, name text))
-- Runs are to be started by events.
INSERT INTO {event_starts} (event_id, workflow, name, tries, due_at)
SELECT u.event_id, u.workflow, u.name, 0, {now} FROM {rows u}
WHERE true
{skip event_id, workflow};

-- name: due_event_starts(u(name text, workflow text), most bigint)
-- Runs of these workflows that are to be started now by events of these names: the oldest of each.
SELECT d.event_id::text AS id, d.workflow, d.name, e.event_id, e.key, e.data, e.format, e.published_at
FROM {each u} (
    SELECT s.event_id, s.workflow, s.name, s.due_at FROM {event_starts} s
    WHERE s.workflow = u.workflow AND s.name = u.name AND s.due_at IS NOT NULL AND s.due_at <= (SELECT {now})
    ORDER BY s.due_at LIMIT :most
) AS d {join} {events} e ON e.id = d.event_id
ORDER BY d.due_at, e.number;

-- name: lock_event_starts(u(event_id uuid, workflow text))
-- Which of these are still to be started, and that no other process is starting.
SELECT s.event_id::text AS event_id, s.workflow
FROM {rows u} {join} {event_starts} s ON s.event_id = u.event_id AND s.workflow = u.workflow
WHERE s.due_at IS NOT NULL
{lock s skip};

-- name: started_by_event(u(event_id uuid, workflow text, started uuid))
-- These were started, as these runs.
{update event_starts s, u} SET started = u.started, due_at = NULL, error = NULL {from u}
WHERE s.event_id = u.event_id AND s.workflow = u.workflow;

-- name: fail_event_start(u(event_id uuid, workflow text, error text, wait_ms bigint))
-- One that cannot be started says why, and is tried again later.
{update event_starts s, u} SET tries = s.tries + 1, error = u.error, due_at = {now} + u.wait_ms {from u}
WHERE s.event_id = u.event_id AND s.workflow = u.workflow AND s.due_at IS NOT NULL;

-- name: events_shown(name text, key text, low bigint, most bigint)
-- Events for people, the newest first: of a name (null: any) and a key (null: any), before a number (null: from the end).
SELECT e.id::text AS id, e.number, e.name, e.event_id, e.key, e.data, e.format, e.published_at FROM {events} e
WHERE e.number IS NOT NULL AND (:low IS NULL OR e.number < :low) AND (:name IS NULL OR e.name = :name)
  AND (:key IS NULL OR e.key = :key)
ORDER BY e.number DESC LIMIT :most;

-- name: events_shown_first(name text, key text, most bigint)
-- The same of those that have no number yet, because no worker has come to them.
SELECT e.id::text AS id, e.number, e.name, e.event_id, e.key, e.data, e.format, e.published_at FROM {events} e
WHERE e.number IS NULL AND (:name IS NULL OR e.name = :name) AND (:key IS NULL OR e.key = :key)
ORDER BY e.published_at DESC, e.made DESC LIMIT :most;

-- name: starts_of_events(ids uuid[])
-- What events have started, or are to start.
SELECT s.event_id::text AS event_id, s.workflow, s.started::text AS started, s.error FROM {event_starts} s
WHERE s.event_id {in ids} ORDER BY s.event_id, s.workflow;

-- name: takers_of_events(ids uuid[], most bigint)
-- The runs that have taken events.
SELECT t.event_id::text AS event_id, t.run_id::text AS run_id FROM {event_takes} t
WHERE t.event_id {in ids} ORDER BY t.event_id, t.run_id LIMIT :most;

-- name: waiters_for_events(names text[], most bigint)
-- Runs that would be woken by events of these names.
SELECT w.name, w.key, w.run_id::text AS run_id FROM {event_waits} w
WHERE w.name {in names} AND w.armed ORDER BY w.name, w.key, w.run_id LIMIT :most;

-- name: old_events(keep_ms bigint, most bigint)
-- Events that were published longer ago, and have been matched.
SELECT e.id::text AS id FROM {events} e
WHERE e.number <= (SELECT ({now} - :keep_ms) * 1000) AND e.published_at < (SELECT {now} - :keep_ms)
  AND e.number <= (SELECT o.matched FROM {event_order} o WHERE o.one = 1)
ORDER BY e.number LIMIT :most;

-- name: remove_starts_of_events(u(event_id uuid))
-- What they started, or were to start.
{delete event_starts by u};

-- name: remove_takes_of_events(u(event_id uuid))
-- Who took them.
{delete event_takes by u};

-- name: remove_events(u(id uuid))
-- Events.
{delete events by u};

-- name: forget_subscriptions(keep_ms bigint)
-- Subscriptions that no worker has declared for so long.
DELETE FROM {event_subscriptions} WHERE seen_at < {stamp} - :keep_ms;

-- name: remove_event_waits(u(run_id uuid))
-- What runs waited for that are removed.
{delete event_waits by u};

-- name: remove_event_takes(u(run_id uuid))
-- What they took.
{delete event_takes by u};
