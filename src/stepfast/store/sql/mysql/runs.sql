-- Reading runs.

-- override: outcomes(ids uuid[])
-- Those of the given runs that have ended, by their ids: an index over the status would find all that ever did.
SELECT r.id, r.status, r.reason, r.output, r.error, COALESCE(r.output_format, r.format)
FROM {rows ids} {join} {runs} r ON r.id = ids.value
WHERE r.status IN ({ended});
