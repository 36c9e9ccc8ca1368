-- Claims: a worker takes runs. What is in front of the lanes is looked up without a lock, because locks on the first runs
-- of each lane would keep all other workers from them.

-- name: front(l(queue text, workflow text, priority integer, mark bigint), most)
-- The first runs of some lanes by age, from the index alone.
SELECT c.place, c.id
FROM {each l} (
    SELECT r.place, r.id FROM {runs} r {index runs_ready}
    WHERE r.place IS NOT NULL AND r.losses < 2
      AND r.queue = l.queue AND r.workflow = l.workflow AND r.priority = l.priority AND r.place >= l.mark
    ORDER BY r.place LIMIT :most
) AS c;

-- name: ready_of(u(id uuid), most)
-- Those of some runs that are ready, in the order in which they are given, until they are enough. They are locked.
SELECT r.place, r.id, r.id AS number, r.version, octet_length(r.input) AS size, {now} AS now_ms, r.workflow
FROM {rows u} {join} {runs} r ON r.id = u.id
WHERE r.place IS NOT NULL AND r.losses < 2
  AND (r.expires_at IS NULL OR r.started_at IS NOT NULL OR r.expires_at > {now})
  AND (r.deadline_at IS NULL OR r.deadline_at > {now})
  AND NOT EXISTS (SELECT 1 FROM {queues} q WHERE q.name = r.queue AND (q.paused OR q.limited))
LIMIT :most
{lock r skip};

-- override: suspects(workflows text[], queues text[], most)
-- Runs that workers have died with, of the workflows that this worker knows: those with the fewest losses first.
SELECT r.losses, r.workflow, r.place, r.id, r.id AS number, r.version, octet_length(r.input) AS size, {now} AS now_ms
FROM {runs} r {index runs_suspect}
WHERE r.place IS NOT NULL AND r.losses >= 2 AND r.workflow {in workflows} AND (:queues IS NULL OR r.queue {in queues})
  AND (r.deadline_at IS NULL OR r.deadline_at > {now})
  AND r.queue NOT IN (SELECT name FROM {queues} WHERE paused OR limited)
ORDER BY r.losses, r.priority DESC, r.suspect_place LIMIT :most
{lock r skip};
