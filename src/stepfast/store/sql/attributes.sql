-- Attributes: typed values by which runs are found.

-- name: attribute_types(names text[])
-- Which of these names have a type, and which.
SELECT name, type FROM {attribute_names} WHERE name {in names};

-- name: attribute_names
-- All names, with the types of their values.
SELECT name, type FROM {attribute_names};

-- name: name_attributes(u(name text, type text))
-- Give names their types; one that has a type keeps it.
INSERT INTO {attribute_names} (name, type)
SELECT u.name, u.type FROM {rows u}
WHERE true
{skip_any name};

-- name: start_attributes(u(run_id uuid, name text, value text))
-- The attributes of runs just started; none for a run that lost its key to an earlier one.
INSERT INTO {run_attributes} (run_id, name, value)
SELECT r.id, u.name, u.value FROM {rows u} {join} {runs} r ON r.id = u.run_id
WHERE true
{skip_any run_id};

-- name: set_attributes(u(run_id uuid, name text, value text))
-- What runs set while they are executed.
INSERT INTO {run_attributes} (run_id, name, value)
SELECT u.run_id, u.name, u.value FROM {rows u}
WHERE true
{upsert run_id, name} value = {new.value};

-- name: inherit_attributes(u(ended uuid, successor uuid))
-- The attributes of runs that continue as others are theirs as well.
INSERT INTO {run_attributes} (run_id, name, value)
SELECT u.successor, a.name, a.value FROM {rows u} {join} {run_attributes} a ON a.run_id = u.ended
WHERE true
{skip_any run_id};

-- name: remove_run_attributes(u(run_id uuid))
-- The attributes of removed runs.
{delete run_attributes by u};

-- name: attributes_of(ids uuid[])
-- The attributes of some runs.
SELECT run_id::text, name, value FROM {run_attributes} WHERE run_id {in ids};

-- name: runs_with_attributes(workflow text, status text, queue text, before uuid, reason text, key text, most,
--     since bigint, older bigint, tag text, parent uuid, low uuid, high uuid, far, name text, value text,
--     number, a(name text, value text))
-- The ids of runs that have all of some attributes, found by the first of them, among `far` that have that one. The
-- filters are those of other lists, and a parent and a range of ids.
SELECT r.id::text, r.status = 'running' AND r.graph IS NOT NULL AS dag
FROM (SELECT run_id FROM {run_attributes}
      WHERE name = :name AND value = :value AND run_id {beyond} COALESCE(:before, '{brink}')
        AND (:low IS NULL OR run_id >= :low) AND (:high IS NULL OR run_id <= :high)
      ORDER BY run_id {direction} LIMIT :far) AS t
{join} {runs} r ON r.id = t.run_id
WHERE r.dag_id IS NULL
  AND (:workflow IS NULL OR r.workflow = :workflow)
  AND (:status IS NULL OR r.status = :status)
  AND (:queue IS NULL OR r.queue = :queue)
  AND (:reason IS NULL OR r.reason = :reason)
  AND (:key IS NULL OR r.key = :key OR r.debounced = :key)
  AND (:since IS NULL OR r.created_at >= {now} - :since)
  AND (:older IS NULL OR r.created_at < {now} - :older)
  AND (:tag IS NULL OR (SELECT true FROM {run_tags} g WHERE g.tag = :tag AND g.run_id = r.id) IS NOT NULL)
  AND (:parent IS NULL OR r.parent_id = :parent)
  AND (SELECT count(*) FROM {rows a} {join} {run_attributes} x ON x.run_id = r.id AND x.name = a.name
       WHERE x.value = a.value) = :number
ORDER BY r.id {direction} LIMIT :most;

-- name: runs_of_parent(workflow text, status text, queue text, before uuid, reason text, key text, most, since bigint,
--     older bigint, tag text, parent uuid, low uuid, high uuid, far)
-- The ids of runs that a run has started, among `far` of them.
SELECT r.id::text, r.status = 'running' AND r.graph IS NOT NULL AS dag
FROM (SELECT id FROM {runs}
      WHERE parent_id = :parent AND parent_id IS NOT NULL AND id {beyond} COALESCE(:before, '{brink}')
        AND (:low IS NULL OR id >= :low) AND (:high IS NULL OR id <= :high)
      ORDER BY id {direction} LIMIT :far) AS t
{join} {runs} r ON r.id = t.id
WHERE r.dag_id IS NULL
  AND (:workflow IS NULL OR r.workflow = :workflow)
  AND (:status IS NULL OR r.status = :status)
  AND (:queue IS NULL OR r.queue = :queue)
  AND (:reason IS NULL OR r.reason = :reason)
  AND (:key IS NULL OR r.key = :key OR r.debounced = :key)
  AND (:since IS NULL OR r.created_at >= {now} - :since)
  AND (:older IS NULL OR r.created_at < {now} - :older)
  AND (:tag IS NULL OR (SELECT true FROM {run_tags} g WHERE g.tag = :tag AND g.run_id = r.id) IS NOT NULL)
ORDER BY r.id {direction} LIMIT :most;

-- name: runs_between(workflow text, status text, queue text, before uuid, reason text, key text, most, since bigint,
--     older bigint, tag text, parent uuid, low uuid, high uuid, far)
-- The ids of runs in a range of ids, among `far` of them.
SELECT r.id::text, r.status = 'running' AND r.graph IS NOT NULL AS dag
FROM (SELECT id FROM {runs}
      WHERE id >= :low AND id <= :high AND id {beyond} COALESCE(:before, '{brink}')
      ORDER BY id {direction} LIMIT :far) AS t
{join} {runs} r ON r.id = t.id
WHERE r.dag_id IS NULL
  AND (:workflow IS NULL OR r.workflow = :workflow)
  AND (:status IS NULL OR r.status = :status)
  AND (:queue IS NULL OR r.queue = :queue)
  AND (:reason IS NULL OR r.reason = :reason)
  AND (:key IS NULL OR r.key = :key OR r.debounced = :key)
  AND (:since IS NULL OR r.created_at >= {now} - :since)
  AND (:older IS NULL OR r.created_at < {now} - :older)
  AND (:tag IS NULL OR (SELECT true FROM {run_tags} g WHERE g.tag = :tag AND g.run_id = r.id) IS NOT NULL)
  AND (:parent IS NULL OR r.parent_id = :parent)
ORDER BY r.id {direction} LIMIT :most;

-- name: glance_end_with_attributes(before uuid, far, name text, value text)
-- The last of `far` runs from one back that have an attribute, and how many there are, up to so many.
SELECT {last}(w.run_id::text), count(*) AS seen
FROM (SELECT run_id FROM {run_attributes}
      WHERE name = :name AND value = :value AND run_id {beyond} COALESCE(:before, '{brink}')
      ORDER BY run_id {direction} LIMIT :far) AS w;

-- name: glance_end_of_parent(before uuid, far, parent uuid)
-- The same of those that a run has started.
SELECT {last}(w.id::text), count(*) AS seen
FROM (SELECT id FROM {runs}
      WHERE parent_id = :parent AND parent_id IS NOT NULL AND id {beyond} COALESCE(:before, '{brink}')
      ORDER BY id {direction} LIMIT :far) AS w;

-- name: glance_end_between(before uuid, far, low uuid, high uuid)
-- The same of those in a range of ids.
SELECT {last}(w.id::text), count(*) AS seen
FROM (SELECT id FROM {runs}
      WHERE id >= :low AND id <= :high AND id {beyond} COALESCE(:before, '{brink}')
      ORDER BY id {direction} LIMIT :far) AS w;
