-- The audit: what people have done by the console.

-- name: audit_heard
-- How far an action is that takes long, and when that was: by this the line of one whose process is gone is known.
WITH u(id, said) AS (VALUES (?, ?))
UPDATE {prefix}audit AS a SET said = u.said, detail = json_set(COALESCE(a.detail, '{}'), '$.heard', {now})
FROM u WHERE a.id = u.id AND a.outcome = 'begun';

-- name: audit_trim
-- Of the oldest ?2 lines those go whose time is over. Each line that is written lets more go than come.
DELETE FROM {prefix}audit
WHERE id IN (SELECT id FROM {prefix}audit ORDER BY id LIMIT ?2) AND at < {now} - ?1 RETURNING id;
