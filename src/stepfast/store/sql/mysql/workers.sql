-- Workers: how they come and go, beat, and are declared dead. The servers return nothing from an UPDATE.

-- override: beat(worker, running)
-- One heartbeat for all a worker holds. None is written, if it was declared dead.
UPDATE {workers} SET beat_at = {stamp}, expires_at = {stamp} + lease_ms, running = :running
WHERE id = :worker AND state <> 'dead';

-- override: declare_dead(worker, among uuid[])
-- Workers silent beyond their lease are dead, but only those of `among`, if that names any: the clock may have stepped. From
-- here on their heartbeats are refused.
SELECT id FROM {workers}
WHERE expires_at < {stamp} AND state <> 'dead' AND id <> :worker AND (:among IS NULL OR id {in among})
FOR UPDATE;
UPDATE {workers} SET state = 'dead'
WHERE expires_at < {stamp} AND state <> 'dead' AND id <> :worker AND (:among IS NULL OR id {in among});

-- override: next_lane(queue, workflow, priority integer)
-- The lanes after one. A comparison of three columns would be read from the beginning of the index: so there are three
-- ranges, one behind the other. Of the two hundred entries that follow all lanes are returned, so that many small lanes do
-- not take a round trip each.
SELECT DISTINCT n.queue, n.workflow, n.priority FROM (
    (SELECT queue, workflow, priority FROM {runs} {index runs_ready}
     WHERE place IS NOT NULL AND losses < 2 AND queue = :queue AND workflow = :workflow AND priority > :priority
     ORDER BY priority LIMIT 200)
    UNION ALL
    (SELECT queue, workflow, priority FROM {runs} {index runs_ready}
     WHERE place IS NOT NULL AND losses < 2 AND queue = :queue AND workflow > :workflow
     ORDER BY workflow, priority LIMIT 200)
    UNION ALL
    (SELECT queue, workflow, priority FROM {runs} {index runs_ready}
     WHERE place IS NOT NULL AND losses < 2 AND queue > :queue
     ORDER BY queue, workflow, priority LIMIT 200)
    LIMIT 200
) AS n ORDER BY n.queue, n.workflow, n.priority;
