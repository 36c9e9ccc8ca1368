-- Where runs stand: read, decided by the functions of model/, and written back.

-- name: lock_due(most)
-- Runs whose timer has gone off. What is paused only if it is late.
SELECT {now}, {standing} FROM {runs} r {index runs_due}
WHERE r.visible_at <= {now} AND (r.status <> 'paused' OR r.deadline_at <= {now})
ORDER BY r.visible_at LIMIT :most
{lock r skip};

-- name: lock_lost(most)
-- A bounded batch of runs that name no living worker. They are found without a lock, because what others hold is not to
-- be locked for a moment either.
SELECT r.id FROM (
    SELECT f.id FROM {runs} f {index runs_worker}
    WHERE f.worker IS NOT NULL
      AND NOT EXISTS (SELECT 1 FROM {workers} w WHERE w.id = f.worker AND w.state <> 'dead')
    LIMIT :most
) AS found {join} {runs} r ON r.id = found.id
{lock r skip};

-- override: inherit(u(ended uuid, successor uuid))
-- Runs that go on as another, and their successors.
UPDATE {rows u} STRAIGHT_JOIN {runs} AS s ON s.id = u.successor STRAIGHT_JOIN {runs} AS r ON r.id = u.ended
SET s.parent_id = r.parent_id, s.parent_branch = r.parent_branch, s.parent_position = r.parent_position,
    s.reply_to = r.reply_to, s.tags = r.tags, s.concurrency_key = r.concurrency_key, s.wakes = r.wakes,
    s.unique_name = r.unique_name, s.hands_on = r.hands_on, s.origin_id = COALESCE(s.origin_id, r.id);

-- override: inherit_mail(u(ended uuid, successor uuid))
-- Signals that the ended run did not take are its successor's, and so is a cancellation on its way. What an open
-- transaction is about to insert is stepped over: it is forwarded when it is delivered.
UPDATE (
    SELECT m.run_id, m.id, u.successor FROM {rows u} {join} {mailbox} m ON m.run_id = u.ended
    WHERE m.kind IN ('signal', 'cancel')
    {lock m skip}
) AS theirs STRAIGHT_JOIN {mailbox} AS m ON m.run_id = theirs.run_id AND m.id = theirs.id
SET m.run_id = theirs.successor;

-- override: inherit_questions(u(ended uuid, successor uuid))
-- Questions that the ended run did not take are its successor's, like their messages.
UPDATE (
    SELECT q.id, u.successor FROM {rows u} {join} {mailbox} m ON m.run_id = u.successor
    {join} {questions} q ON q.id = m.id
    WHERE q.run_id = u.ended AND q.state = 'open'
    {lock q skip}
) AS theirs STRAIGHT_JOIN {questions} AS q ON q.id = theirs.id
SET q.run_id = theirs.successor;
