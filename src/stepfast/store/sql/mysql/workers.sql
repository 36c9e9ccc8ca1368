-- Workers: how they come and go, beat, and are declared dead. The servers return nothing from an UPDATE.

-- override: beat(worker, running)
-- One heartbeat for all a worker holds. None is written, if it was declared dead.
UPDATE {workers} SET beat_at = {stamp}, expires_at = {stamp} + lease_ms, running = :running
WHERE id = :worker AND state <> 'dead';

-- override: bury(worker, among uuid[])
-- Workers silent beyond their lease are dead, but only those of `among`, if that names any: the clock may have stepped. From
-- here on their heartbeats are refused.
SELECT id FROM {workers}
WHERE expires_at < {stamp} AND state <> 'dead' AND id <> :worker AND (:among IS NULL OR id {in among})
FOR UPDATE;
UPDATE {workers} SET state = 'dead'
WHERE expires_at < {stamp} AND state <> 'dead' AND id <> :worker AND (:among IS NULL OR id {in among});
