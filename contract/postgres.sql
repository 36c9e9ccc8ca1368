-- The two tables of the contract, and the index by which workers find what is due.
CREATE TABLE IF NOT EXISTS "durable_transport_tasks" (
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
CREATE TABLE IF NOT EXISTS "durable_transport_results" (
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
CREATE INDEX IF NOT EXISTS "durable_transport_tasks_grp_idx" ON "durable_transport_tasks" (grp, status, created_at);
