-- name: exist
-- The number of the tables that exist.
SELECT count(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name IN :names;

-- name: lock
-- One process at a time makes the tables.
SELECT GET_LOCK(:lock, :seconds);

-- name: unlock
-- Let the next process make them.
SELECT RELEASE_LOCK(:lock);

-- name: create
-- The two tables of the contract, and the index by which workers find what is due. A binary collation, because names that
-- differ in a capital letter or an accent are different names.
CREATE TABLE IF NOT EXISTS {tasks} (
    step_id varchar(191) PRIMARY KEY,
    run_id varchar(191) NOT NULL,
    seq integer NOT NULL,
    name varchar(191) NOT NULL,
    grp varchar(191) NOT NULL,
    input longtext,
    attempt integer NOT NULL,
    status varchar(32) NOT NULL,
    claimed_by varchar(191),
    claimed_at bigint,
    created_at bigint NOT NULL,
    KEY {index} (grp, status, created_at)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
CREATE TABLE IF NOT EXISTS {results} (
    step_id varchar(191) PRIMARY KEY,
    run_id varchar(191) NOT NULL,
    seq integer NOT NULL,
    status varchar(32) NOT NULL,
    output longtext,
    error longtext,
    started_at bigint,
    claimed_by varchar(191),
    claimed_at bigint,
    created_at bigint NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
