-- Dag runs and their steps. A dag run's row counts the steps that are not settled yet, a step's row the dependencies it waits
-- for; both are changed in the transaction that settles a step, and no other transaction comes in between.

-- name: post_to_step
-- A signal to a dag run, left in the mailbox of the step of its name.
INSERT INTO {prefix}mailbox (run_id, id, kind, name, value, error, format, sent_at, delivered, trace)
SELECT id, ?, ?, ?, ?, ?, ?, {now}, 0, ? FROM {prefix}runs
WHERE dag_id = ? AND dag_step = ? AND dag_id IS NOT NULL
  AND status NOT IN ({ended})
ON CONFLICT DO NOTHING;
