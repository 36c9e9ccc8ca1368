-- The audit: what people have done by the console.

-- override: audit_progress
-- How far an action is that takes long, and when that was: by this the line of one whose process is gone is known.
UPDATE {schema}.audit a
SET said = u.said, detail = (COALESCE(a.detail, '{}')::jsonb || jsonb_build_object('heard', {stamp}))::text
FROM unnest($1::uuid[], $2::text[]) AS u(id, said) WHERE a.id = u.id AND a.outcome = 'begun';

-- name: audit_trim
-- Of the oldest $2 lines those go whose time is over. Each line that is written lets more go than come.
DELETE FROM {schema}.audit
WHERE id = ANY(ARRAY(SELECT id FROM {schema}.audit ORDER BY id LIMIT $2)) AND at < {stamp} - $1::bigint RETURNING id::text;
