-- Debounced starts: the run that a key stands for until a worker claims it.

-- name: change_input
-- What a run that nobody has claimed is to be started with instead. It is locked in this transaction.
UPDATE {schema}.runs AS r SET input = u.input, format = u.format
FROM unnest($1::uuid[], $2::text[], $3::smallint[]) AS u(id, input, format) WHERE r.id = u.id;

-- name: tag_runs
-- Tags of runs that were just started.
INSERT INTO {schema}.run_tags (tag, run_id) SELECT u.tag, u.id FROM unnest($1::text[], $2::uuid[]) AS u(tag, id)
WHERE true
ON CONFLICT DO NOTHING;

-- name: leave_debounced
-- Runs that are no longer what a key stands for. They are locked in this transaction.
UPDATE {schema}.runs AS r SET debounced = NULL FROM unnest($1::uuid[]) AS u(id) WHERE r.id = u.id AND r.debounced IS NOT NULL;
