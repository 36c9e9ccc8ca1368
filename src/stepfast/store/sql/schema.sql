-- What the tables are, and what time it is.

-- name: now
-- The only clock that decides anything.
SELECT {now};

-- name: meta
-- The version of the tables.
SELECT name, value FROM {meta};

-- name: put_meta(name, value)
-- Set it.
INSERT INTO {meta} (name, value) VALUES (:name, :value) {upsert name} value = {new.value};

-- name: script_tail
-- The end of the script printed for those who migrate by hand.
INSERT INTO {meta} (name, value) VALUES ('version', '{version}'), ('compatible_from', '{compatible_from}')
{upsert name} value = {new.value};
COMMIT;
