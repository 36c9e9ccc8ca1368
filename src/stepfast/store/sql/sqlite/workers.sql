-- What an idle worker asks.

-- name: duties
-- The one question of an idle worker, but for the lanes and suspects. Of the schedules that code declares only those count
-- which the worker's own declares.
SELECT {now},
       (SELECT min(visible_at) FROM {prefix}runs WHERE visible_at IS NOT NULL),
       EXISTS (SELECT 1 FROM {prefix}mailbox INDEXED BY {prefix}mailbox_undelivered WHERE NOT delivered),
       (SELECT min(due_at) FROM (
            SELECT min(due_at) AS due_at FROM {prefix}schedules WHERE due_at IS NOT NULL AND NOT declared
            UNION ALL
            SELECT due_at FROM {prefix}schedules WHERE declared = 1 AND name IN (SELECT value FROM json_each(?)))),
       (SELECT min(due_at) FROM {prefix}remote_steps INDEXED BY {prefix}remote_steps_due WHERE due_at IS NOT NULL);

-- name: gates
-- The queues that are paused or limited, and which of the limited ones have runs that workers have died with.
SELECT g.name, g.paused, CASE WHEN g.limited THEN
           (SELECT json_group_array(DISTINCT r.workflow) FROM {prefix}runs r
            WHERE r.place IS NOT NULL AND r.losses >= 2 AND r.queue = g.name) ELSE '[]' END
FROM {prefix}queues g WHERE g.paused OR g.limited;

-- name: next_lane
-- The lane after a given one: asked again and again, it skips through the index from lane to lane.
SELECT queue, workflow, priority FROM {prefix}runs
WHERE place IS NOT NULL AND losses < 2 AND (queue, workflow, priority) > (?, ?, ?)
ORDER BY queue, workflow, priority LIMIT 1;
