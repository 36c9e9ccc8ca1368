-- Glances: what people who watch ask for, again and again, beside those who work.

-- name: glance_children(u(id uuid), most)
-- Up to `most` children of each of these runs, in no order.
SELECT c.parent, c.child
FROM {each u} (SELECT k.parent_id AS parent, k.id AS child FROM {runs} k WHERE k.parent_id = u.id LIMIT :most) AS c;

-- name: glance_news(ids uuid[], newest)
-- Whether something has happened to runs, or to the newest of all: texts that differ when it has.
SELECT r.id AS run, concat_ws(' ', r.status, r.reason, r.waiting_for, COALESCE(r.worker, '-'), COALESCE(r.asked, '-'), r.claim,
           r.attempt, r.losses, r.wakes, r.ends, COALESCE(r.visible_at, '-'), COALESCE(r.completed_at, '-'), r.paused_at,
           (SELECT concat_ws(',', count(*), max(k.seq), sum(k.status = 'waiting')) FROM {steps} k WHERE k.run_id = r.id),
           (SELECT count(*) FROM {tries} k WHERE k.run_id = r.id),
           (SELECT concat_ws(',', count(*), max(k.updated_at)) FROM {progress} k WHERE k.run_id = r.id),
           (SELECT concat_ws(',', count(*), max(k.updated_at)) FROM {run_values} k WHERE k.run_id = r.id),
           (SELECT count(*) FROM {mailbox} k WHERE k.run_id = r.id),
           (SELECT concat_ws(',', count(*), sum(crc32(concat(k.id, k.status, k.claim)))) FROM {runs} k
            WHERE k.parent_id = r.id AND k.parent_id IS NOT NULL),
           (SELECT concat_ws(',', count(*), sum(crc32(concat(k.id, k.status, k.claim)))) FROM {runs} k
            WHERE k.dag_id = r.id AND k.dag_id IS NOT NULL)) AS stands
FROM {runs} r WHERE r.id {in ids}
UNION ALL
SELECT '', concat_ws(' ', n.id, n.status, n.reason, n.waiting_for, n.claim, n.attempt)
FROM (SELECT * FROM {runs} ORDER BY id DESC LIMIT :newest) AS n;

-- name: glance_sizes(prefix, names text[])
-- The tables of the namespace: rows as the server estimates them, bytes with all indexes, bytes of the indexes alone.
SELECT substr(table_name, char_length(:prefix) + 1), table_rows, data_length + index_length, index_length, NULL AS dead
FROM information_schema.tables
WHERE table_schema = DATABASE() AND table_type = 'BASE TABLE' AND table_name {in names}
ORDER BY 3 DESC LIMIT 100;
