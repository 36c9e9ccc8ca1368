-- Dag runs and their steps. A dag run's row counts the steps that are not settled yet, a step's row the dependencies it waits
-- for; both are changed in the transaction that settles a step, which nobody else's comes in between.

-- name: lock_dependents
-- Steps for which a dependency was settled, if they are still blocked: who needed only some of its dependencies, and had
-- them, does not count the rest.
SELECT json_group_array(json_array({now}, {standing}))
FROM json_each(?) AS u
CROSS JOIN {prefix}runs AS r ON r.dag_id = json_extract(u.value, '$[0]') AND r.dag_step = json_extract(u.value, '$[1]')
WHERE r.dag_id IS NOT NULL AND r.status = 'waiting' AND r.waiting_for = 'steps';

-- name: lock_open_steps
-- The steps of dag runs that are not settled.
SELECT json_group_array(json_array({now}, {standing})) FROM {prefix}runs AS r
WHERE r.dag_id IN (SELECT value FROM json_each(?)) AND r.dag_id IS NOT NULL AND NOT r.undoing
  AND r.status NOT IN ({ended});

-- name: lock_step_named
-- The step of a dag run that a signal is for, as it stands.
SELECT json_group_array(json_array({now}, {standing}))
FROM {prefix}runs AS r WHERE r.dag_id = ? AND r.dag_step = ? AND r.dag_id IS NOT NULL;

-- name: post_to_step
-- A signal to a dag run, left in the mailbox of the step of its name.
INSERT INTO {prefix}mailbox (run_id, id, kind, name, value, error, format, sent_at, delivered, trace)
SELECT id, ?, ?, ?, ?, ?, ?, {now}, 0, ? FROM {prefix}runs
WHERE dag_id = ? AND dag_step = ? AND dag_id IS NOT NULL
  AND status NOT IN ({ended})
ON CONFLICT DO NOTHING;
