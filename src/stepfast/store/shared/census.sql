-- The census: how things stand, for whoever watches over all of it. Every count stops at a bound.

-- name: census_schedules
-- Schedules whose time has come and that nobody has come to yet, those that wait longest first; and for how long.
SELECT name, declared, {now} - due_at AS late FROM {schema}.schedules
WHERE due_at IS NOT NULL AND due_at <= (SELECT {now}) ORDER BY due_at LIMIT $1;
