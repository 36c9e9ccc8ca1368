-- at the end
-- From SQL: a caller without Python (a trigger, a script, a program in another language) starts, signals, cancels,
-- resumes and reschedules runs by five functions, as part of the transaction that calls them. `publish` publishes events. A sixth, `find`, gives the
-- run that has a key. Three more end a callback by its token, or note a heartbeat of it.
--
--   start       inserts the rows that a start in Python inserts, checked against the newest definition as a start without
--               the code is: the workflow is known, the input fits by type, required and unknown fields, enum and items.
--               What the code demands beyond that is found out by the first claim, which ends the run (`invalid_input`).
--   signal      leaves a signal in the mailbox.
--   cancel,     leave a word of that kind in the mailbox; its delivery does what an operator's call does at once.
--   resume,
--   reschedule
--
--   complete,   change the row of the callback, and leave its outcome in the mailbox.
--   fail, beat
--
-- The first five only insert rows: they lock none that exist, so that a transaction that stays open holds no worker up. The
-- last three lock the callback, so that its time is not up before the transaction has ended, also if its run ends. Workers
-- find what was inserted when they next ask; with `notify => true` the server wakes them at the commit, at the price of a
-- lock over the whole server which every NOTIFY takes there.
--
-- They run with the rights of the caller. Functions whose names begin with `sql_` are parts of them, and not for others.
-- Four of these say what a role that may only start can insert (`roles.sql`). They run with the rights of their owner,
-- because such a role must not read what they decide by, and answer nothing but yes or no.

-- Whether a run was inserted by the present transaction. A row that is seen while its transaction is under way is one's own,
-- also where a savepoint lies between.
CREATE FUNCTION {schema}.sql_is_new(run uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    span constant bigint := 4294967296;
    ours bigint := txid_current();
    theirs bigint := (SELECT r.xmin::text::bigint FROM {schema}.runs r WHERE r.id = sql_is_new.run);
BEGIN
    theirs := ours + (theirs - ours % span + span + span / 2) % span - span / 2;
    RETURN COALESCE(theirs > 2 AND txid_status(theirs) = 'in progress', false);
END
$$;

-- Whether a step of a dag run may be inserted: with its dag run, or once more, which changes nothing.
CREATE FUNCTION {schema}.sql_is_step(dag uuid, step text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN EXISTS (SELECT FROM {schema}.runs r WHERE r.dag_id = sql_is_step.dag AND r.dag_step = sql_is_step.step)
        OR {schema}.sql_is_new(sql_is_step.dag);
END
$$;

-- Whether a copy of the graph of a dag run may be inserted: likewise.
CREATE FUNCTION {schema}.sql_is_graph(dag uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN EXISTS (SELECT FROM {schema}.run_values v WHERE v.run_id = sql_is_graph.dag AND v.key = '~graph')
        OR {schema}.sql_is_new(sql_is_graph.dag);
END
$$;

-- Whether an attribute of a run may be inserted: with the run, or once more, which changes nothing.
CREATE FUNCTION {schema}.sql_is_attribute(run uuid, name text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN EXISTS (SELECT FROM {schema}.run_attributes a
                   WHERE a.run_id = sql_is_attribute.run AND a.name = sql_is_attribute.name)
        OR {schema}.sql_is_new(sql_is_attribute.run);
END
$$;

-- Whether the row of a run says that it has a tag.
CREATE FUNCTION {schema}.sql_is_tag(run uuid, tag text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN EXISTS (SELECT FROM {schema}.runs r CROSS JOIN LATERAL json_array_elements_text(r.tags::json) AS t(name)
                   WHERE r.id = sql_is_tag.run AND t.name = sql_is_tag.tag);
END
$$;

-- The id of a run or of a piece of mail: a UUID of version 7, as Python makes them. Before release 13 the server has no
-- strong source of chance: such an id is unique, but who knows others might guess it.
CREATE FUNCTION {schema}.sql_new_id() RETURNS uuid
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    micros bigint := {place};
    chance text;
BEGIN
    IF current_setting('server_version_num')::integer >= 130000 THEN
        chance := substr(replace(gen_random_uuid()::text, '-', ''), 17);
    ELSE
        chance := md5(random()::text || random()::text || micros::text || pg_backend_pid()::text);
        chance := substr('89ab', 1 + floor(random() * 4)::integer, 1) || substr(chance, 1, 15);
    END IF;
    RETURN (lpad(to_hex(micros / 1000), 12, '0') || '7' || lpad(to_hex(micros % 1000 * 4096 / 1000), 3, '0')
            || chance)::uuid;
END
$$;

-- The secret of a run. Where the server has no strong source of chance it is left empty, and given by the first claim.
CREATE FUNCTION {schema}.sql_new_seed() RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('server_version_num')::integer >= 130000 THEN
        RETURN replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', '');
    END IF;
    RETURN '';
END
$$;

-- A name that people give, or null.
CREATE FUNCTION {schema}.sql_checked_name(given text, what text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF given = '' THEN
        RAISE EXCEPTION '% must not be empty', what USING ERRCODE = 'invalid_parameter_value';
    ELSIF length(given) > 200 THEN
        RAISE EXCEPTION '% has % characters; at most 200 are kept', what, length(given)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN given;
END
$$;

-- A span of time in milliseconds, or null.
CREATE FUNCTION {schema}.sql_milliseconds(span interval, what text) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    seconds double precision := extract(epoch FROM span)::double precision;
BEGIN
    IF seconds < 0 OR seconds > 3155760000 THEN
        RAISE EXCEPTION '% must be between nothing and a hundred years', what
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Write an interval: ' || what || ' => ''90 seconds''.';
    END IF;
    RETURN floor(seconds * 1000)::bigint;
END
$$;

-- A payload as it is stored, within the limits that have no type: its size, its depth, characters that are none. NUL is
-- no character to jsonb, but may be stored; it stands for another one while a payload is looked at.
CREATE FUNCTION {schema}.sql_checked_json(given json, what text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    stored text := COALESCE(given::text, 'null');
    brackets integer := length(stored) - length(translate(stored, '[{', ''));
BEGIN
    IF octet_length(stored) > 8388608 THEN
        RAISE EXCEPTION '% has % bytes of JSON; the limit is 8388608', what, octet_length(stored)
            USING ERRCODE = 'program_limit_exceeded', HINT = 'Keep large data elsewhere and pass its address.';
    ELSIF brackets > 100 AND jsonb_path_exists({schema}.sql_as_jsonb(stored, what),
                                               'strict $.**{100} ? (@.type() == "object" || @.type() == "array")') THEN
        RAISE EXCEPTION '% is nested deeper than 100 levels', what USING ERRCODE = 'program_limit_exceeded';
    END IF;
    RETURN stored;
END
$$;

CREATE FUNCTION {schema}.sql_as_jsonb(stored text, what text) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN replace(stored, chr(92) || 'u0000', chr(92) || 'u0001')::jsonb;
EXCEPTION WHEN data_exception THEN
    RAISE EXCEPTION '% cannot be stored as JSON: %', what, SQLERRM
        USING ERRCODE = 'invalid_parameter_value', HINT = 'Pass JSON whose texts are characters and whose numbers have bounds.';
END
$$;

-- What is wrong with a value, with its path, or null: `model/payload_check.py` in SQL, but for bounds and patterns.
CREATE FUNCTION {schema}.sql_misfit(value jsonb, rule jsonb, root jsonb, path text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    kind text := jsonb_typeof(value);
    problem text;
BEGIN
    IF jsonb_typeof(rule) IS DISTINCT FROM 'object' THEN
        RETURN NULL;
    END IF;
    IF rule ? '$ref' THEN
        problem := {schema}.sql_misfit(value, root #> string_to_array(substr(rule ->> '$ref', 3), '/'), root, path);
    END IF;
    IF problem IS NULL AND rule ? 'anyOf' THEN
        SELECT CASE WHEN bool_and(o.problem IS NOT NULL) THEN string_agg(o.problem, '; ') END INTO problem
        FROM (SELECT {schema}.sql_misfit(value, e.option, root, path) AS problem
              FROM jsonb_array_elements(rule -> 'anyOf') AS e(option)) AS o;
    END IF;
    IF problem IS NULL AND rule ? 'type' AND NOT {schema}.sql_is_of(value, rule -> 'type') THEN
        RETURN 'Expected ' || (rule ->> 'type') || ', got ' || kind || ' - at ' || path;
    END IF;
    IF problem IS NULL AND rule ? 'enum'
       AND NOT EXISTS (SELECT FROM jsonb_array_elements(rule -> 'enum') AS e(member) WHERE e.member = value) THEN
        problem := 'Expected one of ' || (rule ->> 'enum') || ' - at ' || path;
    ELSIF problem IS NULL AND rule ? 'const' AND rule -> 'const' <> value THEN
        problem := 'Expected ' || (rule ->> 'const') || ' - at ' || path;
    ELSIF problem IS NULL AND kind = 'object' THEN
        problem := {schema}.sql_object_misfit(value, rule, root, path);
    ELSIF problem IS NULL AND kind = 'array' AND (jsonb_array_length(value) < (rule ->> 'minItems')::integer
                                                  OR jsonb_array_length(value) > (rule ->> 'maxItems')::integer) THEN
        problem := 'Expected another number of items - at ' || path;
    ELSIF problem IS NULL AND kind = 'array' THEN
        SELECT m.problem INTO problem
        FROM jsonb_array_elements(value) WITH ORDINALITY AS e(member, n)
        CROSS JOIN LATERAL (SELECT {schema}.sql_misfit(
            e.member, COALESCE(rule -> 'prefixItems' -> (e.n - 1)::integer, rule -> 'items'), root,
            path || '[' || (e.n - 1)::text || ']') AS problem) AS m
        WHERE m.problem IS NOT NULL LIMIT 1;
    END IF;
    RETURN problem;
END
$$;

-- Whether a value is of a type of JSON schema, or of one of several. Types that are not known here fit everything.
CREATE FUNCTION {schema}.sql_is_of(value jsonb, kinds jsonb) RETURNS boolean
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT EXISTS (
    SELECT FROM jsonb_array_elements_text(
        CASE WHEN jsonb_typeof(kinds) = 'array' THEN kinds ELSE jsonb_build_array(kinds) END) AS k(kind)
    WHERE k.kind = jsonb_typeof(value)
       OR k.kind NOT IN ('null', 'boolean', 'integer', 'number', 'string', 'array', 'object')
       OR (k.kind = 'integer' AND CASE WHEN jsonb_typeof(value) = 'number'
                                       THEN trunc((value #>> '{}')::numeric) = (value #>> '{}')::numeric END))
$$;

CREATE FUNCTION {schema}.sql_object_misfit(value jsonb, rule jsonb, root jsonb, path text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    fields jsonb := COALESCE(rule -> 'properties', '{}');
    others jsonb := rule -> 'additionalProperties';
    problem text;
BEGIN
    SELECT 'Object missing required field ' || f.name || ' - at ' || path INTO problem
    FROM jsonb_array_elements_text(rule -> 'required') AS f(name) WHERE NOT value ? f.name LIMIT 1;
    IF problem IS NULL AND others = 'false' THEN
        SELECT 'unknown field ' || f.name || '; there are '
               || COALESCE((SELECT string_agg(k.name, ', ') FROM jsonb_object_keys(fields) AS k(name)), 'none')
               || ' - at ' || path INTO problem
        FROM jsonb_object_keys(value) AS f(name) WHERE NOT fields ? f.name LIMIT 1;
    END IF;
    IF problem IS NULL THEN
        SELECT m.problem INTO problem
        FROM jsonb_each(value) AS e(name, member)
        CROSS JOIN LATERAL (SELECT {schema}.sql_misfit(
            e.member, COALESCE(fields -> e.name, others), root, path || '.' || e.name) AS problem) AS m
        WHERE m.problem IS NOT NULL LIMIT 1;
    END IF;
    RETURN problem;
END
$$;

-- The input of a run, as it is stored.
CREATE FUNCTION {schema}.sql_checked_input(definition {schema}.definitions, given json) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    what text := 'the input of ' || quote_literal(definition.name);
    stored text := {schema}.sql_checked_json(given, what);
    value jsonb := {schema}.sql_as_jsonb(stored, what);
    rule jsonb := definition.input_schema::jsonb;
    problem text;
BEGIN
    IF value <> 'null' AND (definition.options::json ->> 'takes_input') = 'false' THEN
        RAISE EXCEPTION '% takes no input, but was given one', quote_literal(definition.name)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    problem := {schema}.sql_misfit(value, rule, rule, '$');
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION '% does not fit: %', what, problem
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'The definition that a worker stored says what the input is: ' || 'SELECT input_schema FROM '
                         || '{schema}.definitions.';
    END IF;
    RETURN stored;
END
$$;

-- The newest definition of a workflow.
CREATE FUNCTION {schema}.sql_definition(workflow text) RETURNS {schema}.definitions
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found {schema}.definitions;
BEGIN
    SELECT d.* INTO found FROM {schema}.definitions d WHERE d.name = sql_definition.workflow
    ORDER BY d.seen_at DESC LIMIT 1;
    IF found.name IS NULL THEN
        RAISE EXCEPTION 'there is no workflow named %; known workflows: %', COALESCE(quote_literal(workflow), 'NULL'),
            COALESCE((SELECT string_agg(DISTINCT d.name, ', ') FROM {schema}.definitions d), 'none yet')
            USING ERRCODE = 'undefined_object',
                  HINT = 'A workflow is known as soon as a worker with its code has been started once.';
    END IF;
    RETURN found;
END
$$;

-- The steps of a dag run that was inserted a moment ago: what `planning.py` makes of its graph.
CREATE FUNCTION {schema}.sql_start_steps(dag {schema}.runs, declared json, due bigint, expires bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO {schema}.runs (id, workflow, version, queue, priority, status, waiting_for, place, visible_at, input,
                               max_attempts, timeout_ms, expires_at, concurrency_key, format, created_at, ready_at,
                               graph, dag_id, dag_step, pending, ordinal, seed)
    WITH nodes AS (
        SELECT e.node, e.node ->> 'name' AS name, e.n - 1 AS n, COALESCE(e.node ->> 'kind', 'step') AS kind
        FROM json_array_elements(declared) WITH ORDINALITY AS e(node, n)
    ), edges AS (
        SELECT n.name AS dependent, a.name AS dependency
        FROM nodes n CROSS JOIN LATERAL json_array_elements_text(n.node -> 'after') AS a(name)
        UNION
        SELECT c.target, n.name FROM nodes n CROSS JOIN LATERAL json_each_text(n.node -> 'catch') AS c(error, target)
    ), steps AS (
        SELECT n.*, (SELECT count(*) FROM edges e WHERE e.dependent = n.name)::integer AS pending FROM nodes n
    )
    SELECT {schema}.sql_new_id(), dag.workflow || '/' || s.name, dag.version, dag.queue, dag.priority,
           CASE WHEN s.pending = 0 THEN 'queued' ELSE 'waiting' END, CASE WHEN s.pending > 0 THEN 'steps' END,
           CASE WHEN s.pending = 0 AND due <= dag.created_at THEN {place} + 1 + s.n END,
           CASE WHEN s.pending = 0 THEN LEAST(CASE WHEN due > dag.created_at THEN due END, due + expires) END, 'null',
           COALESCE((s.node ->> 'retries')::integer, 0) + 1,
           CASE WHEN s.kind = 'step' THEN floor((s.node ->> 'timeout')::double precision * 1000)::bigint END,
           CASE WHEN s.pending = 0 THEN due + expires END, dag.concurrency_key, dag.format, dag.created_at,
           CASE WHEN s.pending = 0 THEN dag.ready_at END, dag.graph, dag.id, s.name, s.pending, s.n, {schema}.sql_new_seed()
    FROM steps s;
END
$$;

-- The run of a workflow that was started with a key: `SELECT {schema}.find('checkout', 'o-1')`. NULL, if there is none. One
-- that was debounced by the key, and has not begun, is found by callers who may read that.
CREATE FUNCTION {schema}.find(workflow text, key text) RETURNS uuid
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    found uuid := (SELECT r.id FROM {schema}.runs r WHERE r.workflow = find.workflow AND r.key = find.key);
BEGIN
    IF found IS NULL AND has_column_privilege('{schema}.runs', 'debounced', 'SELECT') THEN
        found := (SELECT r.id FROM {schema}.runs r
                  WHERE r.workflow = find.workflow AND r.debounced = find.key
                    AND r.started_at IS NULL AND r.completed_at IS NULL);
    END IF;
    RETURN found;
END
$$;

-- Start a run: `SELECT {schema}.start('checkout', '{"id": 1}', key => 'o-1')`. With a key that is taken, the run that has
-- it. A dag run is running from the start, held by no worker, and its steps are what waits in the queue.
CREATE FUNCTION {schema}.start(
    workflow text, input json DEFAULT 'null', key text DEFAULT NULL, queue text DEFAULT NULL,
    priority integer DEFAULT 0, delay interval DEFAULT NULL, at timestamptz DEFAULT NULL,
    expires_in interval DEFAULT NULL, deadline interval DEFAULT NULL, tags text[] DEFAULT NULL,
    concurrency_key text DEFAULT NULL, notify boolean DEFAULT false
) RETURNS uuid LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    definition {schema}.definitions := {schema}.sql_definition(start.workflow);
    new {schema}.runs;
    due bigint;
    expires bigint := {schema}.sql_milliseconds(start.expires_in, 'expires_in');
    owner uuid;
BEGIN
    new.workflow := definition.name;
    new.version := definition.version;
    new.graph := CASE WHEN definition.graph IS NOT NULL THEN definition.version END;
    new.queue := COALESCE({schema}.sql_checked_name(start.queue, 'the queue'), definition.queue);
    new.priority := COALESCE(start.priority, 0);
    new.key := {schema}.sql_checked_name(start.key, 'the key');
    new.concurrency_key := {schema}.sql_checked_name(start.concurrency_key, 'the concurrency key');
    new.input := {schema}.sql_checked_input(definition, start.input);
    IF new.queue LIKE '%,%' OR new.queue <> btrim(new.queue) THEN
        RAISE EXCEPTION 'the queue % has a comma, or blanks at an end', quote_literal(new.queue)
            USING ERRCODE = 'invalid_parameter_value', HINT = '`stepfast worker --queues a,b` could never name it.';
    ELSIF start.delay IS NOT NULL AND start.at IS NOT NULL THEN
        RAISE EXCEPTION 'a start takes delay or at, not both' USING ERRCODE = 'invalid_parameter_value';
    ELSIF NOT isfinite(start.at) OR start.at >= '9000-01-01 00:00:00+00' THEN
        RAISE EXCEPTION 'at must be before the year 9000' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT to_json(array_agg(t.tag ORDER BY t.n))::text INTO new.tags
    FROM (SELECT {schema}.sql_checked_name(g.tag, 'a tag') AS tag, min(g.n) AS n
          FROM unnest(start.tags) WITH ORDINALITY AS g(tag, n) WHERE g.tag IS NOT NULL GROUP BY 1) AS t;
    new.deadline_ms := COALESCE({schema}.sql_milliseconds(start.deadline, 'deadline'),
                                floor((definition.options::json ->> 'deadline')::double precision * 1000)::bigint);
    new.seed := {schema}.sql_new_seed();
    WHILE owner IS NULL LOOP
        new.id := {schema}.sql_new_id();
        new.created_at := {now};
        new.deadline_at := new.created_at + new.deadline_ms;
        due := GREATEST(new.created_at + COALESCE({schema}.sql_milliseconds(start.delay, 'delay'), 0),
                        floor(extract(epoch FROM start.at)::double precision * 1000)::bigint);
        owner := {schema}.sql_insert_run(new, due, expires, definition.graph::json);
    END LOOP;
    IF owner = new.id AND due <= new.created_at THEN
        PERFORM {schema}.sql_refuse_full(new.queue);
    END IF;
    IF start.notify AND owner = new.id AND due <= new.created_at THEN
        PERFORM pg_notify('{channel}', CASE WHEN new.graph IS NOT NULL THEN '{"look": true}' ELSE
            json_build_object('lanes', json_build_array(json_build_array(new.queue, new.workflow, new.priority)))::text
            END);
    END IF;
    RETURN owner;
END
$$;

-- A queue may take no more than so many ready runs. Those that were inserted a moment ago are counted in.
CREATE FUNCTION {schema}.sql_refuse_full(queue text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    most bigint := (SELECT q.max_ready FROM {schema}.queues q WHERE q.name = sql_refuse_full.queue);
BEGIN
    IF most < (SELECT count(*) FROM (SELECT FROM {schema}.runs r WHERE r.queue = sql_refuse_full.queue
                                       AND r.place IS NOT NULL AND r.losses < 2 LIMIT most + 1) AS x) THEN
        RAISE EXCEPTION 'queue % is full: it takes at most % ready runs (max_ready)', quote_literal(queue), most
            USING ERRCODE = 'configuration_limit_exceeded',
                  HINT = 'Start again when there is room. Is there a worker for the queue? `stepfast queues` tells.';
    END IF;
END
$$;

-- The run that is there after an attempt to insert one: the new one, or that which has its key; null, if neither is (the
-- other was deleted, or gave its key up, at that very moment).
CREATE FUNCTION {schema}.sql_insert_run(new {schema}.runs, due bigint, expires bigint, graph json) RETURNS uuid
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    is_dag boolean := graph IS NOT NULL;
BEGIN
    new.ready_at := CASE WHEN is_dag THEN new.created_at END;
    INSERT INTO {schema}.runs (id, workflow, version, queue, status, priority, place, visible_at, input, key, deadline_ms,
                               deadline_at, expires_at, tags, concurrency_key, format, created_at, started_at, ready_at,
                               graph, pending, seed)
    VALUES (new.id, new.workflow, new.version, new.queue, CASE WHEN is_dag THEN 'running' ELSE 'queued' END, new.priority,
            CASE WHEN NOT is_dag AND due <= new.created_at THEN {place} + 1 END,
            CASE WHEN is_dag THEN new.deadline_at
                 ELSE LEAST(CASE WHEN due > new.created_at THEN due END, due + expires, new.deadline_at) END,
            new.input, new.key, new.deadline_ms, new.deadline_at, CASE WHEN NOT is_dag THEN due + expires END, new.tags,
            new.concurrency_key, 1, new.created_at, new.ready_at, new.ready_at, new.graph,
            CASE WHEN is_dag THEN json_array_length(sql_insert_run.graph) ELSE 0 END, new.seed)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN (SELECT r.id FROM {schema}.runs r WHERE r.workflow = new.workflow AND r.key = new.key);
    END IF;
    INSERT INTO {schema}.run_tags (tag, run_id) SELECT t.tag, new.id FROM json_array_elements_text(new.tags::json) AS t(tag);
    IF is_dag THEN
        new.format := 1;
        PERFORM {schema}.sql_start_steps(new, sql_insert_run.graph, due, expires);
    END IF;
    RETURN new.id;
END
$$;

-- The last of the runs that one went on as; itself, if it did not, or if the caller may not read which. It decides what is
-- refused; what is not is left with the run that was named: what was left there before goes on first.
CREATE FUNCTION {schema}.sql_continuation(run uuid) RETURNS uuid
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT has_column_privilege('{schema}.runs', 'output', 'SELECT') THEN
        RETURN run;
    END IF;
    RETURN (WITH RECURSIVE chain AS (
                SELECT sql_continuation.run AS id, 0 AS n
                UNION ALL
                SELECT h.id, c.n + 1
                FROM chain c JOIN {schema}.runs r ON r.id = c.id AND r.reason = 'continued' JOIN {schema}.runs h
                    ON h.id = CASE WHEN r.output ~ '^"[0-9a-f-]{36}"$' THEN substr(r.output, 2, 36)::uuid END
            ) SELECT c.id FROM chain c ORDER BY c.n DESC LIMIT 1);
END
$$;

-- Send a signal to a run, or for a dag run to its step of that name: `SELECT {schema}.signal(run, 'approved', 'true')`. Of
-- several with the same `id` the run takes one.
CREATE FUNCTION {schema}.signal(
    run uuid, name text, value json DEFAULT 'null', notify boolean DEFAULT false, id text DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    stored text := {schema}.sql_checked_json(signal.value, 'the value of signal ' || COALESCE(quote_literal(signal.name), 'NULL'));
    receiver uuid := signal.run;
    continuation uuid := {schema}.sql_continuation(signal.run);
    state text;
    why text;
    is_dag boolean;
BEGIN
    PERFORM {schema}.sql_checked_name(signal.name, 'the name of a signal');
    PERFORM {schema}.sql_as_jsonb(stored, 'the value of signal ' || quote_literal(signal.name));
    IF signal.name IS NULL OR signal.name LIKE '%,%' OR signal.name LIKE '~%' THEN
        RAISE EXCEPTION 'the name of a signal must be given, have no comma, and not begin with ~'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT r.status, r.reason, r.graph IS NOT NULL AND r.dag_id IS NULL INTO state, why, is_dag
    FROM {schema}.runs r WHERE r.id = continuation;
    PERFORM {schema}.sql_refuse_missing(signal.run, state);
    IF signal.id IS NOT NULL THEN  -- apart: without an id no right to read this table is needed
        PERFORM {schema}.sql_checked_name(signal.id, 'the id of a signal');
        IF EXISTS (SELECT FROM {schema}.run_values v
                   WHERE v.run_id IN (signal.run, continuation) AND v.key = '~signal/' || signal.id) THEN
            RETURN;
        END IF;
    END IF;
    IF is_dag AND state NOT IN ('completed', 'failed', 'cancelled', 'compensated') THEN
        SELECT r.id INTO receiver FROM {schema}.runs r
        WHERE r.dag_id = signal.run AND r.dag_step = signal.name
          AND r.status NOT IN ('completed', 'failed', 'cancelled', 'compensated', 'skipped');
        IF receiver IS NULL THEN
            RAISE EXCEPTION 'run % has no unfinished step %', signal.run, quote_literal(signal.name)
                USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'A signal to a dag run names its step.';
        END IF;
    ELSIF state IN ('completed', 'failed', 'cancelled', 'compensated', 'skipped') AND why IS DISTINCT FROM 'continued' THEN
        RAISE EXCEPTION 'run % is %; a signal can only be sent to a run that has not ended', continuation, state
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    IF signal.id IS NOT NULL THEN
        INSERT INTO {schema}.run_values (run_id, key, value, format, updated_at)
        VALUES (continuation, '~signal/' || signal.id, 'null', 1, {now})
        ON CONFLICT (run_id, key) DO NOTHING;
        IF NOT FOUND THEN
            RETURN;
        END IF;
    END IF;
    PERFORM {schema}.sql_leave_mail(receiver, 'signal', signal.name, stored, signal.notify);
END
$$;

-- Publish an event, for runs that wait for it and workflows that it starts: `SELECT {schema}.publish('order.paid', '{"cents": 5}')`.
-- Returns its id; under the same name and id it is the same event, as for `app.publish`, which makes the id of the row alike.
CREATE FUNCTION {schema}.publish(
    name text, data json DEFAULT 'null', key text DEFAULT NULL, id text DEFAULT NULL, notify boolean DEFAULT false
) RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    stored text := {schema}.sql_checked_json(publish.data, 'the data of event ' || COALESCE(quote_literal(publish.name), 'NULL'));
    made uuid := {schema}.sql_new_id();
    its_row uuid := made;
    digest text;
BEGIN
    PERFORM {schema}.sql_checked_name(publish.name, 'the name of an event');
    PERFORM {schema}.sql_checked_name(publish.key, 'the key of an event');
    PERFORM {schema}.sql_checked_name(publish.id, 'the id of an event');
    IF publish.name IS NULL OR publish.name LIKE '%,%' THEN
        RAISE EXCEPTION 'the name of an event must be given, and have no comma' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM {schema}.sql_as_jsonb(stored, 'the data of event ' || quote_literal(publish.name));
    IF publish.id IS NOT NULL THEN
        digest := encode(sha256(convert_to(publish.name, 'UTF8') || decode('00', 'hex') || convert_to(publish.id, 'UTF8')), 'hex');
        its_row := (substr(digest, 1, 12) || '8' || substr(digest, 14, 3)
                    || substr('89ab', 1 + (('x' || substr(digest, 17, 1))::bit(4)::integer & 3), 1) || substr(digest, 18, 15))::uuid;
    END IF;
    INSERT INTO {schema}.events (id, made, name, key, event_id, data, format, published_at)
    VALUES (its_row, made, publish.name, COALESCE(publish.key, ''), COALESCE(publish.id, made::text), stored, 1, {now})
    ON CONFLICT (id) DO NOTHING;
    IF publish.notify THEN
        PERFORM pg_notify('{channel}', '{"look": true}');
    END IF;
    RETURN COALESCE(publish.id, made::text);
END
$$;

-- Cancel a run, as an operator does: `SELECT {schema}.cancel(run)`. One that was cancelled already stays so.
CREATE FUNCTION {schema}.cancel(run uuid, notify boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    state text;
    why text;
    is_over boolean;
    dag uuid;
    continuation uuid := {schema}.sql_continuation(cancel.run);
BEGIN
    SELECT r.status, r.reason, r.dag_id,
           (r.undoing OR r.status IN ('completed', 'cancelled', 'compensated', 'skipped')
            OR (r.status = 'failed' AND (r.reason IS NULL OR r.reason NOT IN ('non_determinism', 'workers_lost')))
            OR (r.failing AND r.worker IS NULL AND r.status <> 'failed'))
           AND r.reason IS DISTINCT FROM 'continued'
    INTO state, why, dag, is_over FROM {schema}.runs r WHERE r.id = continuation;
    PERFORM {schema}.sql_refuse_missing(cancel.run, state, dag, 'cancelled');
    IF is_over AND state <> 'cancelled' AND why IS DISTINCT FROM 'cancelled' THEN
        RAISE EXCEPTION 'run % is %; it cannot be cancelled any more', continuation, state
            USING ERRCODE = 'object_not_in_prerequisite_state';
    ELSIF NOT is_over THEN
        PERFORM {schema}.sql_leave_mail(cancel.run, 'cancel', '', NULL, cancel.notify);
    END IF;
END
$$;

-- Let a paused run go on, or make the next check due that a run waits for: `SELECT {schema}.resume(run)`.
CREATE FUNCTION {schema}.resume(run uuid, notify boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    state text;
    dag uuid;
    is_held boolean;
    continuation uuid := {schema}.sql_continuation(resume.run);
BEGIN
    SELECT r.status, r.dag_id,
           COALESCE(r.status = 'paused' OR r.asked = 'pause' OR r.reason = 'continued'
                    OR (r.status = 'waiting' AND r.waiting_for = 'check'), false)
    INTO state, dag, is_held FROM {schema}.runs r WHERE r.id = continuation;
    PERFORM {schema}.sql_refuse_missing(resume.run, state, dag, 'resumed');
    IF NOT is_held THEN
        RAISE EXCEPTION 'run % is %; only a paused run can be resumed', continuation, state
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    PERFORM {schema}.sql_leave_mail(resume.run, 'resume', '', NULL, resume.notify);
END
$$;

-- Make a run due now, or after another time: `SELECT {schema}.reschedule(run)`. For a run that is queued, be it for a later
-- time or for its next attempt, or that waits for the next try of a step; of a dag run its steps.
CREATE FUNCTION {schema}.reschedule(
    run uuid, delay interval DEFAULT NULL, at timestamptz DEFAULT NULL, priority integer DEFAULT NULL,
    notify boolean DEFAULT false
) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    state text;
    dag uuid;
    is_free boolean;
    span bigint := {schema}.sql_milliseconds(reschedule.delay, 'delay');
    due bigint;
    continuation uuid := {schema}.sql_continuation(reschedule.run);
BEGIN
    IF span IS NOT NULL AND reschedule.at IS NOT NULL THEN
        RAISE EXCEPTION 'reschedule takes delay or at, not both' USING ERRCODE = 'invalid_parameter_value';
    ELSIF NOT isfinite(reschedule.at) OR reschedule.at >= '9000-01-01 00:00:00+00' THEN
        RAISE EXCEPTION 'at must be before the year 9000' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    due := floor(extract(epoch FROM reschedule.at)::double precision * 1000)::bigint;
    SELECT r.status, r.dag_id,
           r.reason IS NOT DISTINCT FROM 'continued'
           OR EXISTS (SELECT FROM {schema}.runs s
                      WHERE CASE WHEN r.graph IS NULL THEN s.id = r.id
                                 ELSE s.dag_id = r.id AND NOT r.failing AND NOT r.undoing END
                        AND s.worker IS NULL AND s.asked IS NULL
                        AND (s.status = 'queued'
                             OR (s.status IN ('waiting', 'compensating') AND s.place IS NULL
                                 AND 'retry' = ANY (string_to_array(s.waiting_for, ', ')))))
    INTO state, dag, is_free FROM {schema}.runs r WHERE r.id = continuation;
    PERFORM {schema}.sql_refuse_missing(reschedule.run, state, dag, 'rescheduled');
    IF NOT is_free THEN
        RAISE EXCEPTION 'run % is %; only a run that is queued, or waits for the next try of a step, can be rescheduled',
            continuation, state USING ERRCODE = 'object_not_in_prerequisite_state';
    ELSIF span IS NULL AND due IS NULL AND reschedule.priority IS NULL THEN
        span := 0;
    END IF;
    PERFORM {schema}.sql_leave_mail(
        reschedule.run, 'reschedule', '',
        json_build_object('due_at', COALESCE(due, {now} + span), 'priority', reschedule.priority)::text,
        reschedule.notify);
END
$$;

-- What is asked of no run, or of a step that goes with its dag run.
CREATE FUNCTION {schema}.sql_refuse_missing(run uuid, state text, dag uuid DEFAULT NULL, what text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF state IS NULL THEN
        RAISE EXCEPTION 'there is no run %', COALESCE(run::text, 'NULL') USING ERRCODE = 'no_data_found';
    ELSIF dag IS NOT NULL THEN
        RAISE EXCEPTION 'run % is a step of dag run %; it can only be % with that run', run, dag, what
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
END
$$;

-- Put something into a mailbox. Whichever worker asks next after the commit delivers it.
CREATE FUNCTION {schema}.sql_leave_mail(run uuid, kind text, name text, value text, notify boolean) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    IF sql_leave_mail.kind = 'signal'
       AND (SELECT count(*) FROM (SELECT FROM {schema}.mailbox b
                                  WHERE b.run_id = sql_leave_mail.run AND b.kind = 'signal' LIMIT 10000) AS x) >= 10000 THEN
        RAISE EXCEPTION 'run % has 10000 signals that it has not taken; no more are kept', sql_leave_mail.run
            USING ERRCODE = 'program_limit_exceeded', HINT = 'Find the sender: the run does not wait for these.';
    END IF;
    INSERT INTO {schema}.mailbox (run_id, id, kind, name, value, format, sent_at, delivered)
    VALUES (sql_leave_mail.run, {schema}.sql_new_id(), sql_leave_mail.kind, sql_leave_mail.name, sql_leave_mail.value, 1,
            {now}, false);
    IF sql_leave_mail.notify THEN
        PERFORM pg_notify('{channel}', '{"look": true}');
    END IF;
END
$$;

-- The callback of a token, locked, which takes an outcome; or one that has an outcome of this state.
CREATE FUNCTION {schema}.sql_callback(token text, outcome text DEFAULT NULL) RETURNS {schema}.callbacks
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    found {schema}.callbacks;
    is_over boolean;
    stands text;
BEGIN
    IF sql_callback.token ~ '^[0-9a-f]{32}$' THEN
        SELECT c.* INTO found FROM {schema}.callbacks c
        WHERE c.id = substr(encode(sha256(convert_to(sql_callback.token, 'UTF8')), 'hex'), 1, 32)::uuid
        FOR NO KEY UPDATE;
    END IF;
    SELECT r.undoing OR r.status IN ('completed', 'failed', 'cancelled', 'compensated', 'skipped') INTO is_over FROM {schema}.runs r WHERE r.id = found.run_id;
    IF is_over IS NULL THEN
        RAISE EXCEPTION 'no callback has this token (its run may have been removed)' USING ERRCODE = 'no_data_found';
    ELSIF found.state = sql_callback.outcome THEN
        RETURN found;
    END IF;
    stands := CASE WHEN found.state = 'completed' THEN 'has been completed already'
                   WHEN found.state = 'failed' THEN 'has failed already'
                   WHEN found.state <> 'open' THEN 'has timed out'
                   WHEN is_over THEN 'is open no more, because its run has ended'
                   WHEN LEAST(found.opened_at + found.timeout_ms, found.beat_at + found.heartbeat_ms) <= {now}
                   THEN 'has timed out' END;
    IF stands IS NOT NULL THEN
        RAISE EXCEPTION 'callback % of run % %', quote_literal(found.name), found.run_id, stands
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    RETURN found;
END
$$;

-- Complete a callback: `SELECT {schema}.complete(token, '{"cents": 999}')`. Again with the same value, it has no effect.
CREATE FUNCTION {schema}.complete(token text, value json DEFAULT 'null', notify boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    found {schema}.callbacks := {schema}.sql_callback(complete.token, 'completed');
    what text := 'the value of callback ' || quote_literal(found.name);
    stored text := {schema}.sql_checked_json(complete.value, what);
    plain jsonb := {schema}.sql_as_jsonb(stored, what);
    problem text := {schema}.sql_misfit(plain, found.expects::jsonb, found.expects::jsonb, '$');
BEGIN
    IF found.state = 'open' AND problem IS NOT NULL THEN
        RAISE EXCEPTION '% does not fit what is waited for, and was not taken: %', what, problem
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF found.state = 'open' THEN
        PERFORM {schema}.sql_end_callback(found, 'completed', stored, NULL, complete.notify);
    ELSIF found.format <> 1 OR {schema}.sql_as_jsonb(found.value, what) <> plain THEN
        PERFORM {schema}.sql_callback(complete.token);
    END IF;
END
$$;

-- Fail a callback: `SELECT {schema}.fail(token, 'declined')`. Again with the same text, it has no effect.
CREATE FUNCTION {schema}.fail(token text, error text, notify boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    found {schema}.callbacks := {schema}.sql_callback(fail.token, 'failed');
    why text := substr(fail.error, 1, 4000);
BEGIN
    IF COALESCE(why, '') = '' THEN
        RAISE EXCEPTION 'a callback fails with a text that says why' USING ERRCODE = 'invalid_parameter_value';
    ELSIF found.state = 'open' THEN
        PERFORM {schema}.sql_end_callback(
            found, 'failed', NULL,
            json_build_object('type', 'CallbackFailed', 'message', why, 'retryable', false)::text, fail.notify);
    ELSIF found.format <> 1 OR (found.error::json ->> 'message') <> why THEN
        PERFORM {schema}.sql_callback(fail.token);
    END IF;
END
$$;

-- Say that a callback with a heartbeat is being worked on: `SELECT {schema}.beat(token)`.
CREATE FUNCTION {schema}.beat(token text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    found {schema}.callbacks := {schema}.sql_callback(beat.token);
    at bigint := {now};
BEGIN
    UPDATE {schema}.callbacks c SET beat_at = at WHERE c.id = found.id;
END
$$;

-- The outcome of a callback that is locked and open.
CREATE FUNCTION {schema}.sql_end_callback(callback {schema}.callbacks, state text, value text, error text, notify boolean)
RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    at bigint := {now};
BEGIN
    UPDATE {schema}.callbacks c
    SET state = sql_end_callback.state, value = sql_end_callback.value, error = sql_end_callback.error, format = 1,
        ended_at = at
    WHERE c.id = callback.id;
    INSERT INTO {schema}.mailbox (run_id, id, kind, name, value, error, format, sent_at, delivered)
    VALUES (callback.run_id, callback.id, 'callback', sql_end_callback.state, sql_end_callback.value,
            sql_end_callback.error, 1, at, false)
    ON CONFLICT (run_id, id) DO NOTHING;
    IF sql_end_callback.notify THEN
        PERFORM pg_notify('{channel}', '{"look": true}');
    END IF;
END
$$;
