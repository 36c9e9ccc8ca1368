-- Dag runs and their steps.

-- name: which_exist(u(id uuid))
-- Which of these runs there are.
SELECT r.id FROM {rows u} {join} {runs} r ON r.id = u.id;

-- name: lock_steps(dag_id)
-- All steps of a dag run.
SELECT {wide}{now}, {standing}{/wide}
FROM {runs} r {index runs_dag_step} WHERE r.dag_id = :dag_id AND r.dag_id IS NOT NULL
ORDER BY r.id
{lock r};

-- name: forget_all(u(run_id uuid))
-- Everything that these runs have recorded.
{delete steps by u};

-- name: step_named(dag_id, dag_step)
-- The step of a dag run that a signal is for.
SELECT id, status FROM {runs} WHERE dag_id = :dag_id AND dag_step = :dag_step AND dag_id IS NOT NULL;

-- name: begun_dags(u(id uuid))
-- Those of these dag runs of which a step was picked up.
SELECT u.id::text AS id FROM {rows u}
WHERE (SELECT true FROM {runs} r WHERE r.dag_id = u.id AND r.dag_id IS NOT NULL AND r.started_at IS NOT NULL LIMIT 1);

-- name: graph(name, version, run_id)
-- The graph of a dag in a version; if that is not stored, the copy that a run of it (`run_id`) brought along.
SELECT COALESCE((SELECT d.graph FROM {definitions} d WHERE d.name = :name AND d.version = :version),
                (SELECT v.value FROM {run_values} v WHERE v.run_id = :run_id AND v.key = '~graph')) AS graph;

-- name: dag_steps(dag_id)
-- The steps of a dag run, in the order of their declaration.
SELECT id::text, dag_step, status, reason, waiting_for, output, error, COALESCE(output_format, format), attempt,
       visible_at, ready_at, started_at, completed_at, worker::text, unrecorded_losses
FROM {runs} WHERE dag_id = :dag_id AND dag_id IS NOT NULL ORDER BY ordinal;

-- name: dag_inputs(ids uuid[])
-- The inputs of dag runs.
SELECT r.id, r.input, r.format FROM {runs} r WHERE r.id {in ids};

-- name: dag_outputs(u(id uuid, since bigint))
-- The outputs of their steps that were completed at a time or after.
SELECT s.dag_id, s.dag_step, s.output, COALESCE(s.output_format, s.format) AS format, s.completed_at
FROM {rows u}
{join} {runs} s {index runs_outputs} ON s.dag_id = u.id AND s.completed_at >= u.since
WHERE s.dag_id IS NOT NULL AND s.status = 'completed';

-- name: lock_dependents(u(dag_id uuid, dag_step text))
-- Steps for which a dependency was settled, if they are still blocked: who needed only some of its dependencies, and had
-- them, does not count the rest. Waited for, under the lock of their dag run.
SELECT {wide}{now}, {standing}{/wide}
FROM {rows u} {join} {runs} r {index runs_dag_step} ON r.dag_id = u.dag_id AND r.dag_step = u.dag_step
WHERE r.dag_id IS NOT NULL AND r.status = 'waiting' AND r.waiting_for = 'steps'
ORDER BY r.id
{lock r};

-- name: lock_open_steps(u(id uuid))
-- The steps of dag runs that are not settled, waited for.
SELECT {wide}{now}, {standing}{/wide} FROM {rows u} {join} {runs} r {index runs_dag_step} ON r.dag_id = u.id
WHERE r.dag_id IS NOT NULL AND NOT r.undoing
  AND r.status NOT IN ({ended})
ORDER BY r.id
{lock r};

-- name: lock_step_named(dag_id, dag_step)
-- The step of a dag run that a signal is for, as it stands.
SELECT {wide}{now}, {standing}{/wide}
FROM {runs} r WHERE r.dag_id = :dag_id AND r.dag_step = :dag_step AND r.dag_id IS NOT NULL
{lock r};
