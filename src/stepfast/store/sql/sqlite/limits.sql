-- Claims from limited queues. There is one writer, so that one claim counts at a time.

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

-- name: prune_starts
-- What no window reaches any more, of the whole queue or of its keys; and what was logged before the clock stepped back.
WITH u(queue, whole, before, after) AS (VALUES (?, ?, ?, ?))
DELETE FROM {prefix}queue_starts
WHERE EXISTS (SELECT 1 FROM u WHERE u.queue = {prefix}queue_starts.queue AND ({prefix}queue_starts.key = '') = u.whole
              AND (at <= u.before OR at > u.after));
