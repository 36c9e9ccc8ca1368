-- name: exist
-- Whether both tables are on the search_path of this user.
SELECT to_regclass(:tasks::text) IS NOT NULL AND to_regclass(:results::text) IS NOT NULL;

-- name: located
-- The name of a table with its schema, or null if it does not exist.
SELECT (SELECT quote_ident(n.nspname::text) || '.' || quote_ident(c.relname::text)
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE c.oid = to_regclass(:name::text)::oid);

-- name: usable
-- Whether this user has all rights on a table that are needed.
SELECT has_table_privilege(t.id, 'SELECT') AND has_table_privilege(t.id, 'INSERT')
       AND has_table_privilege(t.id, 'UPDATE') AND has_table_privilege(t.id, 'DELETE')
FROM (SELECT to_regclass(:name::text)::oid) AS t(id);

-- name: create
-- The two tables of the contract, and the index by which workers find what is due.
CREATE TABLE IF NOT EXISTS {tasks} (
    step_id varchar(191) PRIMARY KEY,
    run_id varchar(191) NOT NULL,
    seq integer NOT NULL,
    name varchar(191) NOT NULL,
    grp varchar(191) NOT NULL,
    input text,
    attempt integer NOT NULL,
    status varchar(32) NOT NULL,
    claimed_by varchar(191),
    claimed_at bigint,
    created_at bigint NOT NULL
);
CREATE TABLE IF NOT EXISTS {results} (
    step_id varchar(191) PRIMARY KEY,
    run_id varchar(191) NOT NULL,
    seq integer NOT NULL,
    status varchar(32) NOT NULL,
    output text,
    error text,
    started_at bigint,
    claimed_by varchar(191),
    claimed_at bigint,
    created_at bigint NOT NULL
);
CREATE INDEX IF NOT EXISTS {index} ON {tasks} (grp, status, created_at);
