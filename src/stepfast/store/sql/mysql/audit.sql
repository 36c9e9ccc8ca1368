-- The audit: what people have done by the console.

-- name: audit_trim(keep, most)
-- Of the oldest lines those go whose time is over. Each line that is written lets more go than come.
DELETE a FROM (SELECT id FROM {audit} ORDER BY id LIMIT :most) AS oldest STRAIGHT_JOIN {audit} AS a ON a.id = oldest.id
WHERE a.at < {stamp} - :keep;
