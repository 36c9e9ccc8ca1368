-- Taking ended runs away with all that belongs to them.

-- name: remover_turn
-- Whether no other worker removes old runs now. Then it is this one's turn until the end of its transaction.
SELECT count(*) AS ours FROM (SELECT name FROM {meta} WHERE name = 'removal' FOR UPDATE SKIP LOCKED) AS turn;

-- override: lock_ended(u(id uuid, claim integer, completed_at bigint))
-- Of runs that ended under a claim at a time those that still stand so, and who may still need them. Only they are locked.
SELECT r.id, r.status, r.reason, r.completed_at, r.claim, r.parent_id, p.status AS parent_status,
       b.id AS before, h.id AS continuation, r.origin_id, r.graph IS NOT NULL AS dag,
       r.hands_on, r.links_gone
FROM (
    SELECT e.* FROM {rows u}
    {join} {runs} e ON e.id = u.id AND e.claim = u.claim AND e.completed_at = u.completed_at
    WHERE e.dag_id IS NULL AND e.status IN ({ended})
    {lock_all e skip}
) AS r
LEFT JOIN {runs} p ON p.id = r.parent_id
LEFT JOIN {runs} b ON b.id = r.origin_id AND b.reason = 'continued' AND b.output = '"' || r.id || '"'
LEFT JOIN {runs} h ON h.id = CASE WHEN r.reason = 'continued' THEN {went_on} END
ORDER BY r.id;

-- name: join_links(u(before uuid, after uuid, gone integer))
-- A chain is closed where links were taken out: each run before them went on as the one after them.
{update runs r, u} SET output = '"' || u.after || '"', links_gone = COALESCE(r.links_gone, 0) + u.gone {from u} WHERE r.id = u.before;
{update runs r, u} SET origin_id = u.before {from u} WHERE r.id = u.after;

-- name: remove_run_tags(u(id uuid))
-- Their tags, which are looked up by what their rows say: the table is sorted by tag. The rows go after this.
DELETE t FROM {rows u} STRAIGHT_JOIN {runs} r ON r.id = u.id STRAIGHT_JOIN {elements r.tags, tag}
STRAIGHT_JOIN {run_tags} t ON t.tag = tag.value AND t.run_id = r.id
WHERE r.tags IS NOT NULL;
