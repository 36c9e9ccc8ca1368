-- The audit: what people have done by the console.

-- name: audit_trim
-- Of the oldest ?2 lines those go whose time is over. Each line that is written lets more go than come.
DELETE FROM {prefix}audit
WHERE id IN (SELECT id FROM {prefix}audit ORDER BY id LIMIT ?2) AND at < {now} - ?1 RETURNING id;
