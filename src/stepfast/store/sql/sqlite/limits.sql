-- Claims from limited queues. There is one writer, so that one claim counts at a time.

-- name: count_in
-- What workers hold in a queue that has become limited, and was claimed before: it counts from now on.
WITH u(name) AS (VALUES (?))
UPDATE {prefix}runs SET counted_attempt = attempt
WHERE worker IS NOT NULL AND counted_attempt IS NULL AND queue IN (SELECT name FROM u);

-- name: gauge
-- What counts against the limits of a whole queue: how many runs workers hold (if ?2 asks for it), how many attempts
-- were begun within the last ?4 milliseconds, and the one that has to be out of the window before a rate of ?3 allows
-- another. What lies far ahead was logged before the clock stepped back.
WITH log AS (
    SELECT s.at, s.number, sum(s.number) OVER (ORDER BY s.at DESC) - s.number AS later
    FROM (SELECT at, min(number, {most_counted}) AS number FROM {prefix}queue_starts
          WHERE queue = ?1 AND key = '' AND at > ?5 - ?4 AND at <= ?5 + ?4) AS s
)
SELECT CASE WHEN ?2 THEN (SELECT count(*) FROM {prefix}runs INDEXED BY {prefix}runs_counted
                          WHERE queue = ?1 AND worker IS NOT NULL AND counted_attempt IS NOT NULL) END,
       (SELECT sum(number) FROM log),
       (SELECT min(at) FROM log WHERE later < ?3);

-- name: key_gauge
-- The same for each of some keys (?2).
SELECT u.value,
       (SELECT count(*) FROM {prefix}runs r INDEXED BY {prefix}runs_counted
        WHERE r.queue = ?1 AND r.concurrency_key = u.value AND r.worker IS NOT NULL AND r.counted_attempt IS NOT NULL),
       (SELECT sum(min(s.number, {most_counted})) FROM {prefix}queue_starts s
        WHERE s.queue = ?1 AND s.key = u.value AND s.at > ?5 - ?4 AND s.at <= ?5 + ?4),
       (SELECT min(l.at) FROM (
            SELECT s.at, sum(min(s.number, {most_counted})) OVER (ORDER BY s.at DESC)
                   - min(s.number, {most_counted}) AS later FROM {prefix}queue_starts s
            WHERE s.queue = ?1 AND s.key = u.value AND s.at > ?5 - ?4 AND s.at <= ?5 + ?4) AS l WHERE l.later < ?3)
FROM json_each(?2) AS u;

-- name: ready_limited
-- The first runs of a queue over some of its lanes (workflow, priority and mark of each), by priority, then by age.
SELECT json_group_array(json_array(id, workflow, priority, place, version, size, key, fresh)) FROM (
    SELECT r.id, r.workflow, r.priority, r.place, r.version, octet_length(r.input) AS size, r.concurrency_key AS key, {fresh} AS fresh
    FROM json_each(?2) AS l CROSS JOIN {prefix}runs AS r ON r.rowid IN (
        SELECT x.rowid FROM {prefix}runs x
        WHERE x.queue = ?1 AND x.workflow = json_extract(l.value, '$[0]') AND x.priority = json_extract(l.value, '$[1]')
          AND x.place >= json_extract(l.value, '$[2]') AND x.place IS NOT NULL AND x.losses < 2
          AND (x.expires_at IS NULL OR x.started_at IS NOT NULL OR x.expires_at > {now})
          AND (x.deadline_at IS NULL OR x.deadline_at > {now})
        ORDER BY x.place LIMIT ?3)
    ORDER BY r.priority DESC, r.place LIMIT ?3
);

-- name: ready_resuming
-- The first runs of a queue that go on, or are to be finished, and begin no attempt: no rate keeps them.
SELECT json_group_array(json_array(r.id, r.workflow, r.priority, r.place, r.version, octet_length(r.input), r.concurrency_key, {fresh}))
FROM json_each(?2) AS w CROSS JOIN {prefix}runs AS r ON r.rowid IN (
    SELECT x.rowid FROM {prefix}runs x INDEXED BY {prefix}runs_resuming
    WHERE x.queue = ?1 AND x.workflow = w.value AND x.place IS NOT NULL AND x.losses < 2
      AND (x.counted_attempt = x.attempt OR (x.graph IS NOT NULL AND x.dag_id IS NULL))
      AND (x.deadline_at IS NULL OR x.deadline_at > {now})
    ORDER BY x.priority DESC, x.place LIMIT ?3);

-- name: next_keys
-- The keys (?4 at most) behind one that have something ready of a workflow: skipped through from key to key, however many
-- runs each has.
WITH RECURSIVE keys(key, n) AS (
    SELECT (SELECT min(r.concurrency_key) FROM {prefix}runs r INDEXED BY {prefix}runs_keyed
            WHERE r.queue = ?1 AND r.workflow = ?2 AND r.concurrency_key > ?3 AND r.place IS NOT NULL AND r.losses < 2
              AND r.concurrency_key IS NOT NULL), 1
    UNION ALL
    SELECT (SELECT min(r.concurrency_key) FROM {prefix}runs r INDEXED BY {prefix}runs_keyed
            WHERE r.queue = ?1 AND r.workflow = ?2 AND r.concurrency_key > k.key AND r.place IS NOT NULL AND r.losses < 2
              AND r.concurrency_key IS NOT NULL), k.n + 1
    FROM keys k WHERE k.key IS NOT NULL AND k.n < ?4
)
SELECT key FROM keys WHERE key IS NOT NULL;

-- name: ready_of_keys
-- The first runs (?3 at most) of each of some keys (workflow and key of each), by priority, then by age.
SELECT json_group_array(json_array(r.id, r.workflow, r.priority, r.place, r.version, octet_length(r.input), r.concurrency_key, {fresh}))
FROM json_each(?2) AS u CROSS JOIN {prefix}runs AS r ON r.rowid IN (
    SELECT x.rowid FROM {prefix}runs x INDEXED BY {prefix}runs_keyed
    WHERE x.queue = ?1 AND x.workflow = json_extract(u.value, '$[0]') AND x.concurrency_key = json_extract(u.value, '$[1]')
      AND x.place IS NOT NULL AND x.losses < 2 AND x.concurrency_key IS NOT NULL
      AND (x.expires_at IS NULL OR x.started_at IS NOT NULL OR x.expires_at > {now})
      AND (x.deadline_at IS NULL OR x.deadline_at > {now})
    ORDER BY x.priority DESC, x.place LIMIT ?3);

-- name: ready_unkeyed
-- The first runs without a key among ?4 of some lanes (workflow, priority, and from where to look).
SELECT json_group_array(json_array(r.id, r.workflow, r.priority, r.place, r.version, octet_length(r.input), NULL, {fresh}))
FROM json_each(?2) AS l CROSS JOIN {prefix}runs AS r ON r.rowid IN (
    SELECT f.row FROM (
        SELECT x.rowid AS row, x.place, x.concurrency_key AS key FROM {prefix}runs x
        WHERE x.queue = ?1 AND x.workflow = json_extract(l.value, '$[0]') AND x.priority = json_extract(l.value, '$[1]')
          AND x.place >= json_extract(l.value, '$[2]') AND x.place IS NOT NULL AND x.losses < 2
          AND (x.expires_at IS NULL OR x.started_at IS NOT NULL OR x.expires_at > {now})
          AND (x.deadline_at IS NULL OR x.deadline_at > {now})
        ORDER BY x.place LIMIT ?4
    ) AS f WHERE f.key IS NULL ORDER BY f.place LIMIT ?3);

-- name: ends_of_unkeyed
-- The place in each lane that the search for runs without a key went up to; null for a lane that it went through to the end.
SELECT json_extract(l.value, '$[0]'), json_extract(l.value, '$[1]'), (
    SELECT x.place FROM {prefix}runs x
    WHERE x.queue = ?1 AND x.workflow = json_extract(l.value, '$[0]') AND x.priority = json_extract(l.value, '$[1]')
      AND x.place >= json_extract(l.value, '$[2]') AND x.place IS NOT NULL AND x.losses < 2
    ORDER BY x.place LIMIT 1 OFFSET ?3 - 1)
FROM json_each(?2) AS l;

-- name: take_limited
-- Hand runs to a worker, as every claim does. They count from now on.
WITH picked(id, worker, token, version) AS (VALUES (?, ?, ?, ?))
UPDATE {prefix}runs AS r
SET status = CASE WHEN r.undoing THEN 'compensating' ELSE 'running' END, worker = p.worker, executed_by = p.worker, token = p.token, version = p.version, claim = {next_claim}, place = NULL,
    visible_at = NULL, waiting_for = NULL, attempt = max(r.attempt, r.first_attempt), started_at = COALESCE(r.started_at, {now}),
    counted_attempt = max(r.attempt, r.first_attempt)
FROM picked AS p WHERE r.id = p.id AND r.place IS NOT NULL;

-- name: prune_starts
-- What no window reaches any more, of the whole queue or of its keys; and what was logged before the clock stepped back.
WITH u(queue, whole, before, after) AS (VALUES (?, ?, ?, ?))
DELETE FROM {prefix}queue_starts
WHERE EXISTS (SELECT 1 FROM u WHERE u.queue = {prefix}queue_starts.queue AND ({prefix}queue_starts.key = '') = u.whole
              AND (at <= u.before OR at > u.after));
