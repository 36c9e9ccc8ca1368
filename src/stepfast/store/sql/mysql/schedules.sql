-- Schedules: which of them are due, and what has become of their runs.

-- name: wake_schedules
-- There was no worker that could have started these: what has passed by now was missed.
SELECT name FROM {schedules} WHERE NOT declared AND next_at <= {now} ORDER BY name
FOR UPDATE;
UPDATE {schedules} SET woken_at = {now} WHERE NOT declared AND next_at <= {now};
