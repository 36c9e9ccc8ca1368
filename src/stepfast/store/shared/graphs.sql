-- Dag runs and their steps.

-- name: which_exist
-- Which of these runs there are.
SELECT r.id FROM unnest($1::uuid[]) AS u(id) {join} {schema}.runs r ON r.id = u.id;

-- name: lock_steps
-- All steps of a dag run.
SELECT {wide}{now}, {standing}{/wide}
FROM {schema}.runs r WHERE r.dag_id = $1 AND r.dag_id IS NOT NULL
ORDER BY r.id
FOR NO KEY UPDATE;

-- name: forget_all
-- Everything that these runs have recorded.
DELETE FROM {schema}.steps WHERE run_id IN (SELECT u.id FROM unnest($1::uuid[]) AS u(id));

-- name: step_named
-- The step of a dag run that a signal is for.
SELECT id, status FROM {schema}.runs WHERE dag_id = $1 AND dag_step = $2 AND dag_id IS NOT NULL;

-- name: begun_dags
-- Those of these dag runs of which a step was picked up.
SELECT u.id::text AS id FROM unnest($1::uuid[]) AS u(id)
WHERE (SELECT true FROM {schema}.runs r WHERE r.dag_id = u.id AND r.dag_id IS NOT NULL AND r.started_at IS NOT NULL LIMIT 1);

-- name: graph
-- The graph of a dag in a version; if that is not stored, the copy that a run of it ($3) brought along.
SELECT COALESCE((SELECT d.graph FROM {schema}.definitions d WHERE d.name = $1 AND d.version = $2),
                (SELECT v.value FROM {schema}.run_values v WHERE v.run_id = $3 AND v.key = '~graph')) AS graph;
