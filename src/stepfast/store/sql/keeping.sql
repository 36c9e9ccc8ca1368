-- Taking ended runs away with all that belongs to them.

-- name: ended(u(id uuid))
-- Runs that have ended, and who may still need them.
SELECT r.id::text, r.status, r.reason, r.completed_at, r.claim, r.parent_id::text, p.status AS parent_status,
       b.id::text AS before, h.id::text AS continuation, r.origin_id::text AS origin_id, r.graph IS NOT NULL AS dag,
       r.hands_on, r.links_gone
FROM {rows u} {join} {runs} r ON r.id = u.id
LEFT JOIN {runs} p ON p.id = r.parent_id
LEFT JOIN {runs} b ON b.id = r.origin_id AND b.reason = 'continued' AND b.output = '"' || r.id::text || '"'
LEFT JOIN {runs} h ON h.id = CASE WHEN r.reason = 'continued' THEN {went_on} END
WHERE r.dag_id IS NULL AND r.completed_at IS NOT NULL
  AND r.status IN ({ended})
ORDER BY r.id;

-- name: lock_ended(u(id uuid, claim integer, completed_at bigint))
-- Of runs that ended under a claim at a time (`u`, `u`, `u`) those that are still so, and who may still need them. Locked
-- rows are stepped over. That the others are read as they were before the lock does no harm: a run that is not needed
-- will not be needed again, and where a chain has changed in between its ends cannot be locked, and the link stays.
SELECT r.id::text, r.status, r.reason, r.completed_at, r.claim, r.parent_id::text, p.status AS parent_status,
       b.id::text AS before, h.id::text AS continuation, r.origin_id::text AS origin_id, r.graph IS NOT NULL AS dag,
       r.hands_on, r.links_gone
FROM {rows u}
{join} {runs} r ON r.id = u.id AND r.claim = u.claim AND r.completed_at = u.completed_at
LEFT JOIN {runs} p ON p.id = r.parent_id
LEFT JOIN {runs} b ON b.id = r.origin_id AND b.reason = 'continued' AND b.output = '"' || r.id::text || '"'
LEFT JOIN {runs} h ON h.id = CASE WHEN r.reason = 'continued' THEN {went_on} END
WHERE r.dag_id IS NULL AND r.status IN ({ended})
ORDER BY r.id
{lock_all r skip};

-- name: lock_links(u(id uuid))
-- The runs before and after links that are to be taken out of their chains, if they are not locked.
SELECT r.id::text AS id FROM {rows u} {join} {runs} r ON r.id = u.id
ORDER BY r.id
{lock r skip};

-- name: steps_of_dags(u(id uuid))
-- The rows of the steps of dag runs.
SELECT k.id::text AS id FROM {rows u} {join} {runs} k ON k.dag_id = u.id AND k.dag_id IS NOT NULL;

-- name: remove_steps(u(run_id uuid))
-- What runs have recorded.
{delete steps by u};

-- name: remove_tries(u(run_id uuid))
-- Their failed tries.
{delete tries by u};

-- name: remove_claims(u(run_id uuid))
-- Whose their claims were.
{delete claims by u};

-- name: remove_progress(u(run_id uuid))
-- What they told of their progress.
{delete progress by u};

-- name: remove_mailbox(u(run_id uuid))
-- What was sent to them and not taken.
{delete mailbox by u};

-- name: remove_run_values(u(run_id uuid))
-- What they let others read.
{delete run_values by u};

-- name: remove_runs(u(id uuid))
-- The runs themselves.
{delete runs by u};

-- name: tries_of(run_id)
-- The failed tries of one run, for its archive.
SELECT branch, position, attempt, number, name, error, arguments, format, started_at, completed_at
FROM {tries} WHERE run_id = :run_id ORDER BY branch, position, attempt, number;

-- name: missing(u(id uuid))
-- Those of these runs that are not there.
SELECT u.id::text AS id FROM {rows u}
WHERE (SELECT true FROM {runs} r WHERE r.id = u.id) IS NULL;

-- name: ended_page(after, look, done, failed, status, most)
-- Read the next runs (`look` of them) after one: whether any worker executes anything, the last of the runs, how
-- many there were, when the first and the last were started; and of those that ended at least `done` (failed: `failed`)
-- milliseconds ago, and so (`status`, if it is given), the first `most`, with who may still need them.
WITH page {once} (
    SELECT r.id, r.status, r.reason, r.completed_at, r.created_at, r.claim, r.parent_id, r.origin_id,
           r.graph IS NOT NULL AS dag, CASE WHEN r.reason = 'continued' THEN {went_on} END AS went_on
    FROM {runs} r
    WHERE r.id > :after AND r.dag_id IS NULL
    ORDER BY r.id LIMIT :look
), looked {once} (
    SELECT {now} AS now,
           EXISTS (SELECT 1 FROM {runs} w {index runs_worker} WHERE w.worker IS NOT NULL) AS busy,
           count(*) AS seen, min(p.created_at) AS oldest, max(p.created_at) AS newest, max(p.id) AS latest
    FROM page p
), old {once} (
    SELECT p.* FROM page p {join} looked l
    WHERE p.status IN ({ended})
      AND p.completed_at <= l.now - CASE WHEN p.status = 'failed' THEN :failed ELSE :done END
      AND (:status IS NULL OR p.status = :status)
    ORDER BY p.id LIMIT :most
)
SELECT l.now, l.busy, l.seen, l.oldest, l.newest, l.latest,
       e.id, e.status, e.reason, e.completed_at, e.claim, e.parent_id, p.status AS parent_status,
       b.id AS before, h.id AS continuation, e.origin_id, e.dag
FROM looked l LEFT JOIN old e ON true
LEFT JOIN {runs} p ON p.id = e.parent_id
LEFT JOIN {runs} b ON b.id = e.origin_id AND b.reason = 'continued' AND b.output = '"' || e.id || '"'
LEFT JOIN {runs} h ON h.id = e.went_on
ORDER BY e.id;

-- name: ended_kin(gone uuid[], origins uuid[], done, failed, status, most)
-- The first `most` of those that were kept for the sake of runs that are gone now (`gone`, and `origins` are which runs those
-- continued) and ended long enough ago: their children, and what went on as them.
SELECT r.id
FROM (SELECT c.id FROM {runs} c WHERE c.parent_id {in gone} AND c.parent_id IS NOT NULL
      UNION
      SELECT b.id FROM {runs} b WHERE b.id {in origins} AND b.reason = 'continued') AS kin
{join} {runs} r ON r.id = kin.id
WHERE r.dag_id IS NULL AND r.status IN ({ended})
  AND r.completed_at <= {now} - CASE WHEN r.status = 'failed' THEN :failed ELSE :done END
  AND (:status IS NULL OR r.status = :status)
ORDER BY r.id LIMIT :most;

-- name: weigh(u(id uuid))
-- How much is recorded of runs: rows, and bytes.
SELECT w.id, count(s.run_id) AS number,
       COALESCE(sum(COALESCE(octet_length(s.output), 0) + COALESCE(octet_length(s.arguments), 0)), 0) AS bytes
FROM (SELECT u.id, u.id AS run FROM {rows u}
      UNION ALL
      SELECT k.dag_id, k.id FROM {rows u} {join} {runs} k ON k.dag_id = u.id AND k.dag_id IS NOT NULL) AS w
LEFT JOIN {steps} s ON s.run_id = w.run
GROUP BY w.id;
