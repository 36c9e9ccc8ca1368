-- The audit: what people have done by the console.

-- name: audit_begin
-- A line for an action that is about to be carried out. A repeated call finds it there.
INSERT INTO {prefix}audit (id, at, who, what, which, origin, detail, outcome)
WITH u(id, who, what, which, origin, detail) AS (VALUES (?, ?, ?, ?, ?, ?))
SELECT u.id, {now}, u.who, u.what, u.which, u.origin, u.detail, 'begun' FROM u WHERE true
ON CONFLICT (id) DO NOTHING;

-- name: audit_end
-- What came of it.
WITH u(id, outcome, said) AS (VALUES (?, ?, ?))
UPDATE {prefix}audit AS a SET outcome = u.outcome, said = u.said FROM u WHERE a.id = u.id;

-- name: audit_heard
-- How far an action is that takes long, and when that was: by this the line of one whose process is gone is known.
WITH u(id, said) AS (VALUES (?, ?))
UPDATE {prefix}audit AS a SET said = u.said, detail = json_set(COALESCE(a.detail, '{}'), '$.heard', {now})
FROM u WHERE a.id = u.id AND a.outcome = 'begun';

-- name: audit_trim
-- Of the oldest ?2 lines those go whose time is over. Each line that is written lets more go than come.
DELETE FROM {prefix}audit
WHERE id IN (SELECT id FROM {prefix}audit ORDER BY id LIMIT ?2) AND at < {now} - ?1 RETURNING id;

-- name: audit_page
-- The newest lines, or those before one.
SELECT id, at, who, what, which, origin, detail, outcome, said, {now} FROM {prefix}audit
WHERE id < COALESCE(?1, 'g') ORDER BY id DESC LIMIT ?2;

-- name: audit_of
-- The same of one run, queue or schedule.
SELECT id, at, who, what, which, origin, detail, outcome, said, {now} FROM {prefix}audit
WHERE which = ?1 AND id < COALESCE(?2, 'g') ORDER BY id DESC LIMIT ?3;
