-- Events that start runs.

-- override: due_event_starts(u(name text, workflow text), most bigint)
-- Runs of these workflows that are to be started now by events of these names: the oldest of each. OFFSET 0 keeps the
-- planner from reading all events.
SELECT d.event_id::text AS id, d.workflow, d.name, e.event_id, e.key, e.data, e.format, e.published_at
FROM {each u} (
    SELECT s.event_id, s.workflow, s.name, s.due_at FROM {event_starts} s
    WHERE s.workflow = u.workflow AND s.name = u.name AND s.due_at IS NOT NULL AND s.due_at <= (SELECT {now})
    ORDER BY s.due_at LIMIT :most
) AS d CROSS JOIN LATERAL (SELECT * FROM {events} k WHERE k.id = d.event_id OFFSET 0) AS e
ORDER BY d.due_at, e.number;
