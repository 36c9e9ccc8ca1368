-- Making, checking and dropping the tables.

-- name: meta_exists
-- Whether there are tables at all: the name of one, as it was spelled when it was made, and as it is spelled now. SQLite
-- does not tell large letters from small ones.
SELECT name, '{prefix}meta' FROM sqlite_master WHERE type = 'table' AND name = '{prefix}meta' COLLATE NOCASE;

-- name: script_head
-- The beginning of the script printed for those who migrate by hand.
PRAGMA journal_mode = WAL;
BEGIN EXCLUSIVE;

-- name: files
-- The files that are attached to a connection and have our tables, in the order in which SQLite looks into them.
SELECT d.file FROM pragma_database_list AS d
WHERE EXISTS (SELECT 1 FROM pragma_table_info('{prefix}runs', d.name))
ORDER BY d.seq LIMIT 1;
