-- Making, checking and dropping the tables.

-- name: there(names text[])
-- Which of these tables and views there are.
SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name {in names};

-- name: drop_meta(name)
-- Say it no more.
DELETE FROM {meta} WHERE name = :name;

-- name: script_head
-- The beginning of the script printed for those who migrate by hand.
SET NAMES utf8mb4, SESSION sql_mode = 'STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION,PIPES_AS_CONCAT';

-- name: server_facts
-- For the doctor.
SELECT {now} / 1000.0 AS now, @@innodb_flush_log_at_trx_commit AS flushes, @@max_connections AS connections,
       @@max_allowed_packet AS packet, @@read_only AS read_only,
       (SELECT count(*) FROM information_schema.processlist) AS used;
