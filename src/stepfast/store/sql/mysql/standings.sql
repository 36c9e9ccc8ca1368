-- Where runs stand: what is not changed by the rows of an argument alone.

-- override: inherit(u(ended uuid, successor uuid))
-- Runs that go on as another, and their successors.
UPDATE {runs} AS s JOIN {rows u} ON u.successor = s.id JOIN {runs} AS r ON r.id = u.ended
SET s.parent_id = r.parent_id, s.parent_branch = r.parent_branch, s.parent_position = r.parent_position,
    s.reply_to = r.reply_to, s.tags = r.tags, s.concurrency_key = r.concurrency_key, s.wakes = r.wakes,
    s.origin_id = COALESCE(s.origin_id, r.id);
