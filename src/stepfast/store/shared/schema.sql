-- What the tables are, and what time it is.

-- name: now
-- The only clock that decides anything.
SELECT {now};

-- name: meta
-- The version of the tables.
SELECT name, value FROM {schema}.meta;

-- name: put_meta
-- Set it.
INSERT INTO {schema}.meta (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: script_tail
-- The end of the script printed for those who migrate by hand.
INSERT INTO {schema}.meta (name, value) VALUES ('version', '{version}'), ('compatible_from', '{compatible_from}')
ON CONFLICT (name) DO UPDATE SET value = excluded.value;
COMMIT;
