-- Attributes on Postgres.

-- override: inherit_attributes
-- The attributes of runs that continue as others are theirs as well. They are looked up run by run: the planner does not
-- know that these are few.
INSERT INTO {schema}.run_attributes (run_id, name, value)
SELECT u.successor, a.name, a.value
FROM unnest($1::uuid[], $2::uuid[]) AS u(ended, successor)
CROSS JOIN LATERAL (SELECT k.name, k.value FROM {schema}.run_attributes k WHERE k.run_id = u.ended OFFSET 0) AS a
WHERE true
ON CONFLICT DO NOTHING;
