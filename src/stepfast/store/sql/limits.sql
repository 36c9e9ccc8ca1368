-- Claims from limited queues. The row of the queue is locked when these are asked, so that one claim counts at a time.

-- name: log_limited(u(id uuid, worker uuid, token bigint, version text))
-- Whose the claims of some runs were before, where that is another worker than the one that takes them now. A row that is then
-- left because it is locked is not taken: its claims were that worker's all the same.
INSERT INTO {claims} (run_id, claim, worker)
SELECT r.id, r.claim, r.executed_by
FROM {rows u}
{join} {runs} r ON r.id = u.id
WHERE r.executed_by <> u.worker
{skip run_id, claim};

-- name: note_counted(u(name text, at bigint))
-- When what workers hold was counted in last.
{update queues q, u} SET counted_at = u.at {from u} WHERE q.name = u.name;

-- name: ready_suspects(queue, workflows text[], most)
-- The first of the runs of a queue that workers have died with: those with the fewest losses first.
SELECT r.id::text, r.workflow, r.priority, r.place, r.version, octet_length(r.input), r.concurrency_key, {fresh}, r.losses
FROM {runs} r
WHERE r.queue = :queue AND r.workflow {in workflows} AND r.place IS NOT NULL AND r.losses >= 2
  AND (r.deadline_at IS NULL OR r.deadline_at > {now})
ORDER BY r.losses, r.priority DESC, r.place LIMIT :most;

-- name: log_starts(u(queue text, key text, at bigint, number integer))
-- Attempts that were begun: for the rates of a queue (key '') and of its keys.
INSERT INTO {queue_starts} (queue, key, at, number)
SELECT u.queue, u.key, u.at, u.number FROM {rows u}
WHERE true
{upsert queue, key, at} number = CASE WHEN {queue_starts}.number < {most_counted}
    THEN {queue_starts}.number + {new.number} ELSE {queue_starts}.number END;

-- name: note_pruned(u(name text, at bigint))
-- When what no window reaches any more was removed last.
{update queues q, u} SET pruned_at = u.at {from u} WHERE q.name = u.name;

-- name: count_in(u(name text))
-- What workers hold in a queue that has become limited, and was claimed before: it counts from now on.
{update runs r, u} SET counted_attempt = r.attempt {from u}
WHERE r.worker IS NOT NULL AND r.counted_attempt IS NULL AND r.queue = u.name;

-- name: gauge(queue, counted, rate, span)
-- What counts against the limits of a whole queue: how many runs workers hold (if `counted` asks for it), how many attempts
-- were begun within the last `span` milliseconds, and the one that has to be out of the window before a `rate` allows
-- another; and the time. What lies far ahead was logged before the clock stepped back.
WITH clock {once} (SELECT {now} AS now), begun AS (
    SELECT s.at, s.number, sum(s.number) OVER (ORDER BY s.at DESC) - s.number AS later
    FROM (SELECT at, {least}(number, {most_counted}) AS number FROM {queue_starts}
          WHERE queue = :queue AND key = '' AND at > (SELECT now FROM clock) - :span
            AND at <= (SELECT now FROM clock) + :span) AS s
)
SELECT (SELECT now FROM clock), CASE WHEN :counted THEN (SELECT count(*) FROM {runs} {index runs_counted}
                          WHERE queue = :queue AND worker IS NOT NULL AND counted_attempt IS NOT NULL) END,
       (SELECT sum(number) FROM begun),
       (SELECT min(at) FROM begun WHERE later < :rate);

-- name: key_gauge(queue, u(key text), rate, span, now)
-- The same for each of some keys.
SELECT u.key,
       (SELECT count(*) FROM {runs} r {index runs_counted}
        WHERE r.queue = :queue AND r.concurrency_key = u.key AND r.worker IS NOT NULL AND r.counted_attempt IS NOT NULL),
       (SELECT sum({least}(s.number, {most_counted})) FROM {queue_starts} s
        WHERE s.queue = :queue AND s.key = u.key AND s.at > :now - :span AND s.at <= :now + :span),
       (SELECT min(l.at) FROM (
            SELECT s.at, sum({least}(s.number, {most_counted})) OVER (ORDER BY s.at DESC)
                   - {least}(s.number, {most_counted}) AS later FROM {queue_starts} s
            WHERE s.queue = :queue AND s.key = u.key AND s.at > :now - :span AND s.at <= :now + :span) AS l
        WHERE l.later < :rate)
FROM {each u} (SELECT 1 AS one) AS once;

-- name: ready_limited(queue, l(workflow text, priority integer, mark bigint), most)
-- The first runs of a queue in each of some of its lanes (from a mark on), by age.
SELECT c.id, c.workflow, c.priority, c.place, c.version, c.size, c.key, c.fresh
FROM {each l} (
    SELECT r.id, r.workflow, r.priority, r.place, r.version, octet_length(r.input) AS size, r.concurrency_key AS key,
           {fresh} AS fresh
    FROM {runs} r {index runs_ready}
    WHERE r.queue = :queue AND r.workflow = l.workflow AND r.priority = l.priority AND r.place >= l.mark
      AND r.place IS NOT NULL AND r.losses < 2
      AND (r.expires_at IS NULL OR r.started_at IS NOT NULL OR r.expires_at > {now})
      AND (r.deadline_at IS NULL OR r.deadline_at > {now})
    ORDER BY r.place LIMIT :most
) AS c;

-- name: ready_resuming(queue, w(workflow text), most)
-- The first runs of a queue that go on, or are to be finished, and begin no attempt: no rate keeps them.
SELECT c.id, c.workflow, c.priority, c.place, c.version, c.size, c.key, c.fresh
FROM {each w} (
    SELECT r.id, r.workflow, r.priority, r.place, r.version, octet_length(r.input) AS size, r.concurrency_key AS key,
           {fresh} AS fresh
    FROM {runs} r {index runs_resuming}
    WHERE r.queue = :queue AND r.workflow = w.workflow AND r.place IS NOT NULL AND r.losses < 2
      AND (r.counted_attempt = r.attempt OR (r.graph IS NOT NULL AND r.dag_id IS NULL))
      AND (r.deadline_at IS NULL OR r.deadline_at > {now})
    ORDER BY r.priority DESC, r.place LIMIT :most
) AS c;

-- name: ready_of_keys(queue, u(workflow text, key text), most)
-- The first runs (`most` at most) of each of some keys (workflow and key of each), by priority, then by age.
SELECT c.id, c.workflow, c.priority, c.place, c.version, c.size, c.key, c.fresh
FROM {each u} (
    SELECT r.id, r.workflow, r.priority, r.place, r.version, octet_length(r.input) AS size, r.concurrency_key AS key,
           {fresh} AS fresh
    FROM {runs} r {index runs_keyed}
    WHERE r.queue = :queue AND r.workflow = u.workflow AND r.concurrency_key = u.key
      AND r.place IS NOT NULL AND r.losses < 2 AND r.concurrency_key IS NOT NULL
      AND (r.expires_at IS NULL OR r.started_at IS NOT NULL OR r.expires_at > {now})
      AND (r.deadline_at IS NULL OR r.deadline_at > {now})
    ORDER BY r.priority DESC, r.place LIMIT :most
) AS c;

-- name: ready_unkeyed(queue, l(workflow text, priority integer, mark bigint), most, far, skipped)
-- The first runs without a key among `far` of some lanes (workflow, priority, and from where to look); and for each lane that
-- has as many as that (`skipped` and one more), without an id, the place up to which it was searched.
SELECT c.id, c.workflow, c.priority, c.place, c.version, c.size, NULL, c.fresh
FROM {each l} (
    SELECT * FROM (
        SELECT f.* FROM (
            SELECT r.id, r.workflow, r.priority, r.place, r.version, octet_length(r.input) AS size, r.concurrency_key,
                   {fresh} AS fresh
            FROM {runs} r {index runs_ready}
            WHERE r.queue = :queue AND r.workflow = l.workflow AND r.priority = l.priority AND r.place >= l.mark
              AND r.place IS NOT NULL AND r.losses < 2
              AND (r.expires_at IS NULL OR r.started_at IS NOT NULL OR r.expires_at > {now})
              AND (r.deadline_at IS NULL OR r.deadline_at > {now})
            ORDER BY r.place LIMIT :far
        ) AS f WHERE f.concurrency_key IS NULL ORDER BY f.place LIMIT :most
    ) AS unkeyed
    UNION ALL
    SELECT * FROM (
        SELECT NULL AS id, r.workflow, r.priority, r.place, NULL AS version, 0 AS size, NULL AS key, NULL AS fresh
        FROM {runs} r {index runs_ready}
        WHERE r.queue = :queue AND r.workflow = l.workflow AND r.priority = l.priority AND r.place >= l.mark
          AND r.place IS NOT NULL AND r.losses < 2
        ORDER BY r.place LIMIT 1 OFFSET :skipped
    ) AS the_end
) AS c;

-- name: take_limited(u(id uuid, worker uuid, token bigint, version text))
-- Hand runs to a worker, as every claim does. They count from now on.
{update runs r, u}
SET status = CASE WHEN r.undoing THEN 'compensating' ELSE 'running' END, worker = u.worker, executed_by = u.worker,
    token = u.token, version = u.version, claim = {next_claim}, place = NULL, visible_at = NULL, waiting_for = NULL,
    counted_attempt = {greatest}(r.attempt, r.first_attempt), attempt = {greatest}(r.attempt, r.first_attempt),
    started_at = COALESCE(r.started_at, {now})
{from u}
WHERE r.id = u.id AND r.place IS NOT NULL;
