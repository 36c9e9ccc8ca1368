-- Streams: what runs send to readers while they work. Items are stored by flows/streams.py, in the transaction of a
-- flush.

-- name: lock_streams(u(run_id uuid, name text))
-- Streams as they stand, waited for, in their order.
SELECT s.run_id::text AS run_id, s.name, s.items, s.size
FROM {rows u} {join} {streams} s ON s.run_id = u.run_id AND s.name = u.name
ORDER BY s.run_id, s.name
{lock s};

-- name: make_streams(u(run_id uuid, name text, items integer, size bigint))
-- Streams that get their first item, unless another step of the same dag run has just made them.
INSERT INTO {streams} (run_id, name, items, size)
SELECT u.* FROM {rows u}
WHERE true
{skip run_id, name};

-- name: stream_sources(u(run_id uuid, name text, source text))
-- What is stored of branches and steps that send.
SELECT s.run_id::text AS run_id, s.name, s.source, s.claim, s.attempt, s.items
FROM {rows u} {join} {stream_sources} s ON s.run_id = u.run_id AND s.name = u.name AND s.source = u.source;

-- name: append_items(u(run_id uuid, name text, number integer, attempt integer, restarted boolean, value text,
--     format smallint, sent_at bigint))
-- Items, with their numbers.
INSERT INTO {stream_items} (run_id, name, number, attempt, restarted, value, format, sent_at)
SELECT u.* FROM {rows u};

-- name: count_items(u(run_id uuid, name text, items integer, size bigint))
-- How many items streams have now, and of how many bytes.
{update streams s, u}
SET items = u.items, size = u.size
{from u}
WHERE s.run_id = u.run_id AND s.name = u.name;

-- name: note_sources(u(run_id uuid, name text, source text, claim integer, attempt integer, items integer))
-- How many items branches and steps have sent.
INSERT INTO {stream_sources} (run_id, name, source, claim, attempt, items)
SELECT u.* FROM {rows u}
WHERE true
{upsert run_id, name, source} claim = {new.claim}, attempt = {new.attempt}, items = {new.items};

-- name: streams(run_id)
-- The streams of a run.
SELECT name, items FROM {streams} WHERE run_id = :run_id ORDER BY name;

-- name: stream_counts(run_id uuid, name)
-- How many items the branches of a workflow have sent to a stream; those of steps, which may be sent again, are left out.
SELECT source, items FROM {stream_sources} WHERE run_id = :run_id AND name = :name AND claim IS NULL ORDER BY source;

-- name: dropped_lines(run_id)
-- How many lines the log of a run had no room for.
SELECT items FROM {stream_sources} WHERE run_id = :run_id AND name = '~logs' AND source = '~dropped';

-- name: stream_pages(u(run_id uuid, name text, low integer, high integer))
-- Items between two numbers, of several streams.
SELECT i.run_id::text AS run_id, i.name, i.number, i.attempt, i.restarted, i.value, i.format, i.sent_at
FROM {rows u}
{join} {stream_items} i ON i.run_id = u.run_id AND i.name = u.name AND i.number > u.low AND i.number <= u.high
ORDER BY i.run_id, i.name, i.number;

-- name: stream_ends(u(id uuid))
-- Whether runs have ended, and as what they went on; those that are not there are left out.
SELECT r.id::text AS id, r.completed_at IS NOT NULL AS ended,
       CASE WHEN r.reason = 'continued' THEN {went_on} END AS continuation, r.links_gone
FROM {rows u} {join} {runs} r ON r.id = u.id;

-- name: link_of_chain(run_id, link integer)
-- The first run of a chain whose number, counted from that of `run_id`, is not smaller than `link`. Those that were removed
-- count: what readers know of a chain stays true.
WITH RECURSIVE chain AS (
    SELECT r.id, 0 AS number, COALESCE(r.links_gone, 0) AS gone, CASE WHEN r.reason = 'continued' THEN {went_on} END AS next
    FROM {runs} r WHERE r.id = :run_id
    UNION ALL
    SELECT r.id, c.number + c.gone + 1, COALESCE(r.links_gone, 0), CASE WHEN r.reason = 'continued' THEN {went_on} END
    FROM chain c {join} {runs} r ON r.id = c.next
    WHERE c.number < :link
)
SELECT id::text AS id, number FROM chain WHERE number >= :link ORDER BY number LIMIT 1;

-- name: streams_of_chain(run_id)
-- The names of the streams of a run, and of those that it went on as.
WITH RECURSIVE chain AS (
    SELECT r.id, CASE WHEN r.reason = 'continued' THEN {went_on} END AS next FROM {runs} r WHERE r.id = :run_id
    UNION ALL
    SELECT r.id, CASE WHEN r.reason = 'continued' THEN {went_on} END
    FROM chain c {join} {runs} r ON r.id = c.next
)
SELECT DISTINCT s.name FROM chain c {join} {streams} s ON s.run_id = c.id;

-- name: remove_streams(u(run_id uuid))
-- Streams of runs that are removed.
{delete streams by u};

-- name: remove_stream_sources(u(run_id uuid))
-- What sent to them.
{delete stream_sources by u};

-- name: remove_stream_items(u(run_id uuid))
-- Their items.
{delete stream_items by u};
