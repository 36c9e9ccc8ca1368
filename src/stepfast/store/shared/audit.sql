-- The audit: what people have done by the console.

-- name: audit_begin
-- A line for an action that is about to be carried out. A repeated call finds it there.
INSERT INTO {schema}.audit (id, at, who, what, which, origin, detail, outcome)
SELECT u.id, {now}, u.who, u.what, u.which, u.origin, u.detail, 'begun'
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[]) AS u(id, who, what, which, origin, detail)
WHERE true
ON CONFLICT (id) DO NOTHING;

-- name: audit_end
-- What came of it.
UPDATE {schema}.audit AS a SET outcome = u.outcome, said = u.said
FROM unnest($1::uuid[], $2::text[], $3::text[]) AS u(id, outcome, said) WHERE a.id = u.id;

-- name: audit_page
-- The newest lines, or those before one.
SELECT a.id::text, at, who, what, which, origin, detail, outcome, said, {now} FROM {schema}.audit a
WHERE a.id < COALESCE($1::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid) ORDER BY a.id DESC LIMIT $2;

-- name: audit_of
-- The same of one run, queue or schedule.
SELECT a.id::text, at, who, what, which, origin, detail, outcome, said, {now} FROM {schema}.audit a
WHERE which = $1 AND a.id < COALESCE($2::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid) ORDER BY a.id DESC LIMIT $3;
