-- SQLite: one file, one writer.
--
-- WRITER. SQLite lets one connection write at a time, so no row is locked by another transaction: there is nothing to
-- skip, no lock order to keep, and a flush never finds a run locked. In place of row locks there is one thread per
-- process, which puts all that waits into one BEGIN IMMEDIATE … COMMIT. A statement may read first and write afterwards.
--
-- TYPES. Ids are the canonical text of UUIDv7; text sorts like the number, so "newest first" is "id descending" here too.
-- Truth is 0 or 1. Times are whole milliseconds, and "now" is julianday('now') scaled, because unixepoch('subsec') is
-- younger than the oldest SQLite that is supported. Each piece of work reads the time once.
--
-- ROWS AND TREES. `runs` keeps its hidden rowid: rows are added at the end of the table, and the many small indexes carry
-- eight bytes instead of 36. Tables that are only found by their key have none, so that a record is one entry in one
-- tree instead of one in two.
--
-- PARTIAL INDEXES are used only by a query that repeats their condition word for word, never for a bound value. That is
-- why statements say `losses < 2` and `dag_id IS NOT NULL`, and list the statuses at rest.
--
-- WAKE-UPS. There is no NOTIFY between processes. Each writer reads PRAGMA data_version, which changes when another
-- connection has committed.

-- instead of: runs_worker
-- Holds all that the fence and a repeated claim read, so that neither reads the table.
CREATE INDEX runs_worker ON {runs} (worker, token, id, claim, asked) WHERE worker IS NOT NULL;

-- after: runs_at_rest
CREATE INDEX runs_workflow ON {runs} (workflow, id);
