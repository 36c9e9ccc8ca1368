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

-- name: dag_steps
-- The steps of a dag run, in the order they were started in.
SELECT id, dag_step, status, reason, waiting_for, output, error, COALESCE(output_format, format), attempt, visible_at,
       ready_at, started_at, completed_at, worker, unrecorded_losses
FROM {prefix}runs WHERE dag_id = ? AND dag_id IS NOT NULL ORDER BY rowid;

-- name: dag_inputs
-- The inputs of dag runs: [id, since] of each. One that is large is left out, here and below, and asked for by itself:
-- all of them together might be more than a text can be.
SELECT json_group_array(json_array(d.id, CASE WHEN octet_length(d.input) <= {large} THEN d.input END, d.format))
FROM json_each(?) AS named CROSS JOIN {prefix}runs AS d ON d.id = json_extract(named.value, '$[0]');

-- name: dag_outputs
-- The outputs of their steps that completed at a time or after.
SELECT json_group_array(json_array(s.dag_id, s.dag_step, CASE WHEN octet_length(s.output) <= {large} THEN s.output END,
                                   COALESCE(s.output_format, s.format), s.completed_at, s.output IS NOT NULL))
FROM json_each(?) AS named
CROSS JOIN {prefix}runs AS s INDEXED BY {prefix}runs_outputs
    ON s.dag_id = json_extract(named.value, '$[0]') AND s.completed_at >= json_extract(named.value, '$[1]')
WHERE s.dag_id IS NOT NULL AND s.status = 'completed';

-- name: dag_input
-- The input of one.
SELECT input FROM {prefix}runs WHERE id = ?;

-- name: dag_output
-- The output of one step.
SELECT output FROM {prefix}runs WHERE dag_id = ? AND dag_step = ? AND dag_id IS NOT NULL;

-- name: start_graph
-- The copy of a graph that may not be stored yet, for a dag run that was started in this transaction.
INSERT INTO {prefix}run_values (run_id, key, value, format, updated_at)
SELECT id, '~graph', ?, 1, created_at FROM {prefix}runs WHERE id = ?
ON CONFLICT (run_id, key) DO NOTHING;
