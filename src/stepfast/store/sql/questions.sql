-- Questions: requests to runs, and their answers. A question is asked by flows/questions.py, under the lock of its run, and
-- answered in the transaction of a flush. One that is open when its run has ended has ended with it: that is not written,
-- because it follows from the row of the run, until the run is retried.

-- name: questions(ids uuid[])
-- Questions as they stand, and whether their runs can still answer.
SELECT q.id::text AS id, q.run_id::text AS run_id, substr(q.name, 11) AS name, q.state, q.answer, q.format,
       COALESCE(r.completed_at IS NOT NULL OR r.undoing, true) AS over
FROM {questions} q LEFT JOIN {runs} r ON r.id = q.run_id
WHERE q.id {in ids};

-- name: questions_of(run_id, most)
-- The questions to a run, for people, the newest first.
SELECT q.id::text AS id, substr(q.name, 11) AS name, q.state, q.answer, q.format, q.asked_at, q.ended_at
FROM {questions} q WHERE q.run_id = :run_id ORDER BY q.id DESC LIMIT :most;

-- name: put_question(u(id uuid, run_id uuid, name text, format smallint))
-- A question that has just been put into the mailbox of a run.
INSERT INTO {questions} (id, run_id, name, state, format, asked_at)
SELECT u.id, u.run_id, u.name, 'open', u.format, {now} FROM {rows u};

-- name: awaited_questions(run_id, name)
-- What is kept of the open waits of a run for a question.
SELECT output FROM {steps} WHERE run_id = :run_id AND name = :name AND kind = 'question' AND status = 'waiting';

-- name: answer_questions(u(run_id uuid, id uuid, state text, answer text, format smallint, ended_at bigint))
-- Answers and refusals by the runs that were asked; the first that a question gets stays. A fork of such a run has the
-- question on record, and is not asked.
{update questions q, u}
SET state = u.state, answer = u.answer, format = u.format, ended_at = u.ended_at
{from u}
WHERE q.id = u.id AND q.run_id = u.run_id AND q.state = 'open';

-- name: inherit_questions(u(ended uuid, successor uuid))
-- Questions that the ended run did not take are its successor's, like their messages.
{update questions q, u} SET run_id = u.successor
{from u}
WHERE q.run_id = u.ended AND q.state = 'open'
  AND q.id IN (SELECT m.id FROM {mailbox} m WHERE m.run_id = u.successor);

-- name: end_questions(u(run_id uuid))
-- Questions that had ended with their runs, which continue: who asked was told so.
{update questions q, u} SET state = 'ended', ended_at = {stamp}
{from u}
WHERE q.run_id = u.run_id AND q.state = 'open';

-- name: drop_questions(u(run_id uuid))
-- Their messages.
{delete mailbox by u} AND name LIKE '~question/%';

-- name: remove_questions(u(run_id uuid))
-- Questions to runs that are removed.
{delete questions by u};
