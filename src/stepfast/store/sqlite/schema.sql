-- Making, checking and dropping the tables.

-- name: now
-- The only clock that decides anything.
SELECT {now};

-- name: meta_exists
-- Whether there are tables at all: the name of one, as it was spelled when it was made, and as it is spelled now. SQLite
-- does not tell large letters from small ones.
SELECT name, '{prefix}meta' FROM sqlite_master WHERE type = 'table' AND name = '{prefix}meta' COLLATE NOCASE;

-- name: meta
-- Their version.
SELECT name, value FROM {prefix}meta;

-- name: put_meta
-- Set it.
INSERT INTO {prefix}meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: script_head
-- The beginning of the script printed for those who migrate by hand.
PRAGMA journal_mode = WAL;
BEGIN EXCLUSIVE;

-- name: script_tail
-- Its end.
INSERT INTO {prefix}meta (name, value) VALUES ('version', '{version}'), ('compatible_from', '{compatible_from}')
ON CONFLICT (name) DO UPDATE SET value = excluded.value;
COMMIT;

-- name: files
-- The files that are attached to a connection and have our tables, in the order in which SQLite looks into them.
SELECT d.file FROM pragma_database_list AS d
WHERE EXISTS (SELECT 1 FROM pragma_table_info('{prefix}runs', d.name))
ORDER BY d.seq LIMIT 1;
