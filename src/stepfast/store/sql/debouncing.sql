-- Debounced starts: the run that a key stands for until a worker claims it.

-- name: change_input(u(id uuid, input text, format smallint))
-- What a run that nobody has claimed is to be started with instead. It is locked in this transaction.
{update runs r, u} SET input = u.input, format = u.format
{from u} WHERE r.id = u.id;

-- name: tag_runs(u(tag text, id uuid))
-- Tags of runs that were just started.
INSERT INTO {run_tags} (tag, run_id) SELECT u.tag, u.id FROM {rows u}
WHERE true
{skip_any tag};

-- name: leave_debounced(u(id uuid))
-- Runs that are no longer what a key stands for. They are locked in this transaction.
{update runs r, u} SET debounced = NULL {from u} WHERE r.id = u.id AND r.debounced IS NOT NULL;
