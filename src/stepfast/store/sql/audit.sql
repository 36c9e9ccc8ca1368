-- The audit: what people have done by the console.

-- name: audit_begin(u(id uuid, who text, what text, which text, origin text, detail text))
-- A line for an action that is about to be carried out. A repeated call finds it there.
INSERT INTO {audit} (id, at, who, what, which, origin, detail, outcome)
SELECT u.id, {now}, u.who, u.what, u.which, u.origin, u.detail, 'begun'
FROM {rows u}
WHERE true
{skip id};

-- name: audit_end(u(id uuid, outcome text, said text))
-- What came of it.
{update audit a, u} SET outcome = u.outcome, said = u.said
{from u} WHERE a.id = u.id;

-- name: audit_page(before uuid, most)
-- The newest lines, or those before one.
SELECT a.id::text, at, who, what, which, origin, detail, outcome, said, {now} FROM {audit} a
WHERE a.id < COALESCE(:before, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid) ORDER BY a.id DESC LIMIT :most;

-- name: audit_of(which, before uuid, most)
-- The same of one run, queue or schedule.
SELECT a.id::text, at, who, what, which, origin, detail, outcome, said, {now} FROM {audit} a
WHERE which = :which AND a.id < COALESCE(:before, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid) ORDER BY a.id DESC LIMIT :most;

-- name: audit_progress(u(id uuid, said text))
-- How far an action is that takes long, and when that was: by this the line of one whose process is gone is known.
{update audit a, u} SET said = u.said, detail = json_set(COALESCE(a.detail, '{}'), '$.heard', {stamp})
{from u} WHERE a.id = u.id AND a.outcome = 'begun';
