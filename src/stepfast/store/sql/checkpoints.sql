-- Checkpoints of graphs: three tables, of which none is locked. A checkpoint, a value of a channel and a write of a task have
-- ids that are made from what they are, so that putting the same again changes nothing.

-- name: put_checkpoints(u(id uuid, scope uuid, thread text, ns text, checkpoint text, parent text, run text,
--     versions text, value text, format smallint))
-- Checkpoints; one that is there is replaced.
INSERT INTO {checkpoints} (id, scope, thread, ns, checkpoint, parent, run, versions, value, format, created_at)
SELECT u.id, u.scope, u.thread, u.ns, u.checkpoint, u.parent, u.run, u.versions, u.value, u.format, {now}
FROM {rows u}
WHERE true
{upsert id} parent = {new.parent}, run = {new.run}, versions = {new.versions}, value = {new.value},
    format = {new.format};

-- name: put_checkpoint_values(u(id uuid, thread text, ns text, channel text, version text, value text, format smallint))
-- Values of channels. One of a version that is there is the same.
INSERT INTO {checkpoint_values} (id, thread, ns, channel, version, value, format)
SELECT u.* FROM {rows u}
WHERE true
{skip id};

-- name: add_checkpoint_writes(u(id uuid, owner uuid, thread text, task text, path text, number integer, channel text,
--     value text, format smallint))
-- What tasks have written, for a checkpoint that may come later; what is there stays.
INSERT INTO {checkpoint_writes} (id, owner, thread, task, path, number, channel, value, format)
SELECT u.* FROM {rows u}
WHERE true
{skip id};

-- name: replace_checkpoint_writes(u(id uuid, owner uuid, thread text, task text, path text, number integer,
--     channel text, value text, format smallint))
-- The same of what a task has only once: the newest stays.
INSERT INTO {checkpoint_writes} (id, owner, thread, task, path, number, channel, value, format)
SELECT u.* FROM {rows u}
WHERE true
{upsert id} channel = {new.channel}, value = {new.value}, format = {new.format};

-- name: checkpoints_named(ids uuid[])
-- Checkpoints by their ids.
SELECT c.id::text AS id, c.thread, c.ns, c.checkpoint, c.parent, c.run, c.versions, c.value, c.format
FROM {checkpoints} c WHERE c.id {in ids};

-- name: checkpoints_in(scope uuid, before text, edge uuid, most bigint)
-- Checkpoints of a thread with one ns, the newest first, behind another.
SELECT c.id::text AS id, c.thread, c.ns, c.checkpoint, c.parent, c.run, c.versions, c.value, c.format
FROM {checkpoints} c
WHERE c.scope = :scope AND c.checkpoint <= :before AND (c.checkpoint < :before OR c.id < :edge)
ORDER BY c.checkpoint DESC, c.id DESC LIMIT :most;

-- name: checkpoints_of(thread text, before text, edge uuid, most bigint)
-- The same of a thread, with any ns.
SELECT c.id::text AS id, c.thread, c.ns, c.checkpoint, c.parent, c.run, c.versions, c.value, c.format
FROM {checkpoints} c
WHERE c.thread = :thread AND c.checkpoint <= :before AND (c.checkpoint < :before OR c.id < :edge)
ORDER BY c.checkpoint DESC, c.id DESC LIMIT :most;

-- name: checkpoints_of_all(before text, edge uuid, most bigint)
-- The same of all threads. No index has this order.
SELECT c.id::text AS id, c.thread, c.ns, c.checkpoint, c.parent, c.run, c.versions, c.value, c.format
FROM {checkpoints} c
WHERE c.checkpoint <= :before AND (c.checkpoint < :before OR c.id < :edge)
ORDER BY c.checkpoint DESC, c.id DESC LIMIT :most;

-- name: checkpoint_values(ids uuid[])
-- Values of channels.
SELECT v.id::text AS id, v.value, v.format FROM {checkpoint_values} v WHERE v.id {in ids};

-- name: checkpoint_writes(owners uuid[])
-- What tasks have written for checkpoints.
SELECT w.owner::text AS owner, w.task, w.path, w.number, w.channel, w.value, w.format
FROM {checkpoint_writes} w WHERE w.owner {in owners};

-- name: checkpoint_versions(threads text[])
-- Which values the checkpoints of threads need.
SELECT c.id::text AS id, c.thread, c.ns, c.versions FROM {checkpoints} c WHERE c.thread {in threads};

-- name: values_of_thread(thread text)
-- All values of a thread.
SELECT v.ns, v.channel, v.version, v.value, v.format FROM {checkpoint_values} v WHERE v.thread = :thread;

-- name: writes_of_thread(thread text)
-- All writes of a thread.
SELECT w.owner::text AS owner, w.task, w.path, w.number, w.channel, w.value, w.format
FROM {checkpoint_writes} w WHERE w.thread = :thread;

-- name: checkpoints_of_runs(runs text[])
-- The checkpoints that runs of graphs have made.
SELECT c.id::text AS id, c.thread FROM {checkpoints} c WHERE c.run IS NOT NULL AND c.run {in runs};

-- name: old_threads(age_ms bigint, most bigint)
-- Threads whose newest checkpoint is older.
SELECT c.thread FROM {checkpoints} c GROUP BY c.thread
HAVING max(c.created_at) <= {now} - :age_ms ORDER BY c.thread LIMIT :most;

-- name: delete_checkpoints(u(id uuid))
-- Checkpoints.
{delete checkpoints by u};

-- name: delete_checkpoint_values(u(id uuid))
-- Values that no checkpoint needs any more.
{delete checkpoint_values by u};

-- name: delete_checkpoint_writes(u(owner uuid))
-- What was written for checkpoints that are deleted.
{delete checkpoint_writes by u};

-- name: delete_threads(u(thread text))
-- All checkpoints of threads.
{delete checkpoints by u};

-- name: delete_thread_values(u(thread text))
-- Their values.
{delete checkpoint_values by u};

-- name: delete_thread_writes(u(thread text))
-- Their writes.
{delete checkpoint_writes by u};
