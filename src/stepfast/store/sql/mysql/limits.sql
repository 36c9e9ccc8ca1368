-- Claims from limited queues. The row of the queue is locked when these are asked, so that one claim counts at a time.

-- override: ready_of_keys(queue, u(workflow text, key text), most)
-- The first runs of each of some keys, by priority, then by age.
SELECT c.id, c.workflow, c.priority, c.place, c.version, c.size, c.key, c.fresh
FROM {each u} (
    SELECT r.id, r.workflow, r.priority, r.place, r.version, octet_length(r.input) AS size, r.concurrency_key AS key,
           {fresh} AS fresh
    FROM {runs} r {index runs_keyed}
    WHERE r.keyed_lane = unhex(md5(concat(:queue, char(0), u.workflow))) AND r.concurrency_key = u.key
      AND (r.expires_at IS NULL OR r.started_at IS NOT NULL OR r.expires_at > {now})
      AND (r.deadline_at IS NULL OR r.deadline_at > {now})
    ORDER BY r.priority DESC, r.keyed_place LIMIT :most
) AS c;

-- override: ready_resuming(queue, w(workflow text), most)
-- The first runs of a queue that go on, or are to be finished, and begin no attempt: no rate keeps them.
SELECT c.id, c.workflow, c.priority, c.place, c.version, c.size, c.key, c.fresh
FROM {each w} (
    SELECT r.id, r.workflow, r.priority, r.place, r.version, octet_length(r.input) AS size, r.concurrency_key AS key,
           {fresh} AS fresh
    FROM {runs} r {index runs_resuming}
    WHERE r.queue = :queue AND r.workflow = w.workflow AND r.is_resuming = 1
      AND (r.deadline_at IS NULL OR r.deadline_at > {now})
    ORDER BY r.priority DESC, r.resuming_place LIMIT :most
) AS c;

-- name: take_turn(name)
-- In a cluster: of two nodes that count in a queue at the same time one fails when it commits, and begins again.
INSERT INTO {prefix}turns (name, number) VALUES (md5(:name), 1) ON DUPLICATE KEY UPDATE number = number + 1;

-- name: next_keys(queue, workflow, behind, most)
-- The keys behind one that have something ready of a workflow: the index is skipped through from key to key.
SELECT DISTINCT r.concurrency_key FROM {runs} r {index runs_keyed}
WHERE r.keyed_lane = unhex(md5(concat(:queue, char(0), :workflow))) AND r.concurrency_key > :behind
ORDER BY r.concurrency_key LIMIT :most;

-- override: count_in(u(name text))
-- What workers hold in a queue that has become limited, and was claimed before: it counts from now on. Rows that other
-- transactions hold are stepped over; the next claim finds them.
UPDATE (
    SELECT r.id FROM {rows u} {join} {runs} r {index runs_worker}
    WHERE r.queue = u.name AND r.worker IS NOT NULL AND r.counted_attempt IS NULL
    {lock r skip}
) AS held STRAIGHT_JOIN {runs} AS r ON r.id = held.id
SET r.counted_attempt = r.attempt;

-- name: prune_starts(u(queue text, whole boolean, before bigint, after bigint))
-- What no window reaches any more, of the whole queue or of its keys; and what was logged before the clock stepped back.
DELETE s FROM {rows u} STRAIGHT_JOIN {queue_starts} s ON s.queue = u.queue
WHERE (s.key = '') = u.whole AND (s.at <= u.before OR s.at > u.after);
