-- Claims from limited queues. The row of the queue is locked when these are asked, so that one claim counts at a time.

-- override: count_in
-- What workers hold in a queue that has become limited, and was claimed before: it counts from now on. Rows that
-- are locked are stepped over; the next claim finds them.
WITH held AS MATERIALIZED (
    SELECT r.id FROM {schema}.runs r
    WHERE r.worker IS NOT NULL AND r.counted_attempt IS NULL AND r.queue = ANY($1::text[])
    FOR NO KEY UPDATE OF r SKIP LOCKED
)
UPDATE {schema}.runs r SET counted_attempt = r.attempt FROM held h WHERE r.id = h.id;

-- override: gauge
-- What counts against the limits of a whole queue: how many runs workers hold (if $2 asks for it), how many attempts
-- were begun within the last $4 milliseconds, and the one that has to be out of the window before a rate of $3 allows
-- another; and the time. What lies far ahead was logged before the clock stepped back.
WITH clock AS MATERIALIZED (SELECT {now} AS now), log AS (
    SELECT s.at, s.number, sum(s.number) OVER (ORDER BY s.at DESC) - s.number AS later
    FROM {schema}.queue_starts s
    WHERE s.queue = $1 AND s.key = '' AND s.at > (SELECT now FROM clock) - $4::bigint
      AND s.at <= (SELECT now FROM clock) + $4::bigint
)
SELECT (SELECT now FROM clock), CASE WHEN $2::boolean THEN (SELECT count(*) FROM {schema}.runs r
                                   WHERE r.queue = $1 AND r.worker IS NOT NULL AND r.counted_attempt IS NOT NULL) END,
       (SELECT sum(number) FROM log),
       (SELECT min(at) FROM log WHERE later < $3::bigint);

-- override: key_gauge
-- The same for each of some keys ($2).
SELECT u.key,
       (SELECT count(*) FROM {schema}.runs r
        WHERE r.queue = $1 AND r.concurrency_key = u.key AND r.worker IS NOT NULL AND r.counted_attempt IS NOT NULL),
       log.started, log.next_at
FROM unnest($2::text[]) AS u(key)
CROSS JOIN LATERAL (
    SELECT sum(l.number) AS started, min(l.at) FILTER (WHERE l.later < $3::bigint) AS next_at
    FROM (SELECT s.at, s.number, sum(s.number) OVER (ORDER BY s.at DESC) - s.number AS later
          FROM {schema}.queue_starts s
          WHERE s.queue = $1 AND s.key = u.key AND s.at > $5::bigint - $4::bigint AND s.at <= $5::bigint + $4::bigint) AS l
) AS log;

-- override: ready_limited
-- The first runs of a queue over some of its lanes ($2 to $4: workflow, priority, and the mark up to which this worker has
-- seen everything claimed), by priority, then by age.
SELECT c.id::text, l.workflow, l.priority, c.place, c.version, c.size, c.key, c.fresh
FROM unnest($2::text[], $3::integer[], $4::bigint[]) AS l(workflow, priority, mark)
CROSS JOIN LATERAL (
    SELECT r.id, r.place, r.version, octet_length(r.input) AS size, r.concurrency_key AS key, {fresh} AS fresh
    FROM {schema}.runs r
    WHERE r.queue = $1 AND r.workflow = l.workflow AND r.priority = l.priority AND r.place >= l.mark
      AND r.place IS NOT NULL AND r.losses < 2
      AND (r.expires_at IS NULL OR r.started_at IS NOT NULL OR r.expires_at > {now})
      AND (r.deadline_at IS NULL OR r.deadline_at > {now})
    ORDER BY r.place LIMIT $5
) AS c
ORDER BY l.priority DESC, c.place LIMIT $5;

-- override: ready_resuming
-- The first runs of a queue that go on, or are to be finished, and begin no attempt: no rate keeps them.
SELECT c.id::text, w.workflow, c.priority, c.place, c.version, c.size, c.key, c.fresh
FROM unnest($2::text[]) AS w(workflow)
CROSS JOIN LATERAL (
    SELECT r.id, r.priority, r.place, r.version, octet_length(r.input) AS size, r.concurrency_key AS key, {fresh} AS fresh
    FROM {schema}.runs r
    WHERE r.queue = $1 AND r.workflow = w.workflow AND r.place IS NOT NULL AND r.losses < 2
      AND (r.counted_attempt = r.attempt OR (r.graph IS NOT NULL AND r.dag_id IS NULL))
      AND (r.deadline_at IS NULL OR r.deadline_at > {now})
    ORDER BY r.priority DESC, r.place LIMIT $3
) AS c;

-- name: next_keys
-- The keys ($4 at most) behind one that have something ready of a workflow: skipped through from key to key, however many
-- runs each has.
WITH RECURSIVE keys AS (
    (SELECT r.concurrency_key AS key, 1 AS n FROM {schema}.runs r
     WHERE r.queue = $1 AND r.workflow = $2 AND r.concurrency_key > $3 AND r.place IS NOT NULL AND r.losses < 2
       AND r.concurrency_key IS NOT NULL
     ORDER BY r.concurrency_key LIMIT 1)
    UNION ALL
    SELECT x.key, k.n + 1 FROM keys k CROSS JOIN LATERAL (
        SELECT r.concurrency_key AS key FROM {schema}.runs r
        WHERE r.queue = $1 AND r.workflow = $2 AND r.concurrency_key > k.key AND r.place IS NOT NULL AND r.losses < 2
          AND r.concurrency_key IS NOT NULL
        ORDER BY r.concurrency_key LIMIT 1
    ) AS x WHERE k.n < $4::integer
)
SELECT key FROM keys;

-- override: ready_of_keys
-- The first runs ($4 at most) of each of some keys ($2 and $3: workflow and key), by priority, then by age.
SELECT c.id::text, u.workflow, c.priority, c.place, c.version, c.size, u.key, c.fresh
FROM unnest($2::text[], $3::text[]) AS u(workflow, key)
CROSS JOIN LATERAL (
    SELECT r.id, r.priority, r.place, r.version, octet_length(r.input) AS size, {fresh} AS fresh
    FROM {schema}.runs r
    WHERE r.queue = $1 AND r.workflow = u.workflow AND r.concurrency_key = u.key AND r.place IS NOT NULL AND r.losses < 2
      AND r.concurrency_key IS NOT NULL
      AND (r.expires_at IS NULL OR r.started_at IS NOT NULL OR r.expires_at > {now})
      AND (r.deadline_at IS NULL OR r.deadline_at > {now})
    ORDER BY r.priority DESC, r.place LIMIT $4
) AS c;

-- override: ready_unkeyed
-- The first runs without a key among $6 of some lanes ($2 to $4: workflow, priority, and from where to look); and for each
-- lane that has more than these, without an id, the place up to which it was searched.
SELECT c.id::text, l.workflow, l.priority, c.place, c.version, c.size, NULL::text, c.fresh
FROM unnest($2::text[], $3::integer[], $4::bigint[]) AS l(workflow, priority, mark)
CROSS JOIN LATERAL (
    SELECT f.* FROM (
        SELECT r.id, r.place, r.version, octet_length(r.input) AS size, r.concurrency_key AS key, {fresh} AS fresh
        FROM {schema}.runs r
        WHERE r.queue = $1 AND r.workflow = l.workflow AND r.priority = l.priority AND r.place >= l.mark
          AND r.place IS NOT NULL AND r.losses < 2
          AND (r.expires_at IS NULL OR r.started_at IS NOT NULL OR r.expires_at > {now})
          AND (r.deadline_at IS NULL OR r.deadline_at > {now})
        ORDER BY r.place LIMIT $6
    ) AS f WHERE f.key IS NULL ORDER BY f.place LIMIT $5
) AS c
UNION ALL
SELECT NULL, l.workflow, l.priority, c.place, NULL, 0, NULL, false
FROM unnest($2::text[], $3::integer[], $4::bigint[]) AS l(workflow, priority, mark)
CROSS JOIN LATERAL (
    SELECT r.place FROM {schema}.runs r
    WHERE r.queue = $1 AND r.workflow = l.workflow AND r.priority = l.priority AND r.place >= l.mark
      AND r.place IS NOT NULL AND r.losses < 2
    ORDER BY r.place OFFSET $7::bigint LIMIT 1
) AS c;

-- override: take_limited
-- Hand runs to a worker, as every claim does; those whose rows another transaction holds are left. They count from now
-- on. Returns what the question after it (claimed) would.
WITH picked AS MATERIALIZED (
    SELECT r.id, u.worker, u.token, u.version, {now} AS now
    FROM unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::text[]) AS u(id, worker, token, version)
    JOIN {schema}.runs r ON r.id = u.id
    WHERE r.place IS NOT NULL
    FOR NO KEY UPDATE OF r SKIP LOCKED
)
UPDATE {schema}.runs r
SET status = CASE WHEN r.undoing THEN 'compensating' ELSE 'running' END, worker = p.worker, executed_by = p.worker, token = p.token,
    version = p.version, claim = {next_claim}, place = NULL, visible_at = NULL, waiting_for = NULL,
    attempt = GREATEST(r.attempt, r.first_attempt), started_at = COALESCE(r.started_at, p.now),
    counted_attempt = GREATEST(r.attempt, r.first_attempt)
FROM picked p WHERE r.id = p.id
RETURNING r.id::text, r.workflow, r.queue, r.priority, r.claim, r.attempt, r.first_attempt, r.losses, r.wakes, r.format,
          r.input, r.max_attempts, r.timeout_ms, r.deadline_at - p.now, r.started_at, 0, NULL, r.asked, r.ends, r.undoing,
          r.parent_id::text, p.now, r.dag_id::text, r.dag_step, r.graph, r.ready_at, r.failing, r.reason, r.seed, r.trace,
          r.unrecorded_losses, r.unique_name IS NOT NULL AS named;

-- name: prune_starts
-- What no window reaches any more, of the whole queue or of its keys; and what was logged before the clock stepped back.
DELETE FROM {schema}.queue_starts s
USING unnest($1::text[], $2::boolean[], $3::bigint[], $4::bigint[]) AS u(queue, whole, before, after)
WHERE s.queue = u.queue AND (s.key = '') = u.whole AND (s.at <= u.before OR s.at > u.after);
