-- Schedules: which of them are due, and what has become of their runs. {schedule} are the columns of a schedule, in the order
-- of its fields (model/schedules.py). All but the looks run in the writer's transaction, so that there is nothing to lock.

-- name: wake_schedules
-- There was no worker that could have started these: what has passed by now was missed.
UPDATE {prefix}schedules SET woken_at = {now} WHERE NOT declared AND next_at <= {now} RETURNING name;
