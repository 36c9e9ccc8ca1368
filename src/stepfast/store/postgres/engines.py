"""Which server it is that speaks the protocol of Postgres, found out with the first connection.

On Citus the tables of a namespace are on one node, and a coordinator passes statements on to it. It refuses some that a
plain server takes: changes of rows by a volatile function, plans that are made before the values are known, and some
with several writes in one. There the store does everything by the flows of all databases.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from ...errors import ConfigurationError
from ..answers import Check

FACTS = """
SELECT pg_catalog.pg_backend_pid() AS pid, pg_catalog.version() AS version,
       pg_catalog.to_regclass('pg_catalog.pg_dist_partition'::text) IS NOT NULL AS citus,
       pg_catalog.to_regclass('sys.iam_pg_role_mappings'::text) IS NOT NULL AS dsql
"""
_DSQL_HOST = re.compile(r"[@/,][^@/,]*\.dsql\.[a-z0-9-]+\.on\.aws\b")


class Engine(NamedTuple):
    """A kind of server."""

    name: str = "PostgreSQL"
    routes: bool = False
    """Whether it passes statements on to other nodes."""
    plain: bool = True
    """Whether it plans as Postgres does."""


PLAIN = Engine()
CITUS = Engine("Citus", routes=True, plain=False)
YUGABYTE = Engine("YugabyteDB", plain=False)


def recognize(facts: Any) -> Engine:
    """Which server has answered ``FACTS``; ConfigurationError if Stepfast does not work with it."""
    if "CockroachDB" in facts["version"]:
        raise _refused("CockroachDB", "it may drop locks of rows when these move between nodes, and it has no LISTEN")
    if facts["dsql"]:
        raise _refused_dsql()
    if facts["citus"]:
        return CITUS
    return YUGABYTE if "-YB-" in facts["version"] else PLAIN


def refuse_by_host(url: str) -> None:
    """Refuse a service that is known by its address, before anything is sent to it."""
    if _DSQL_HOST.search(url):
        raise _refused_dsql()


def _refused_dsql() -> ConfigurationError:
    return _refused("Aurora DSQL", "it has no PL/pgSQL, and transactions meet each other only at their commit")


def _refused(name: str, reason: str) -> ConfigurationError:
    return ConfigurationError(f"{name} is not supported: {reason}. Use PostgreSQL, or Citus with one node per schema")


_PLACED = """
SELECT (SELECT e.extversion::text FROM pg_catalog.pg_extension e WHERE e.extname::text = 'citus'::text) AS version,
       pg_catalog.current_setting('citus.enable_schema_based_sharding', true) = 'on'::text AS sharding,
       pg_catalog.count(*) AS tables,
       pg_catalog.bool_and(p.partmethod::text = 'n'::text AND p.repmodel::text = 's'::text) AS whole
FROM pg_catalog.pg_dist_partition p
JOIN pg_catalog.pg_class c ON c.oid = p.logicalrelid::oid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE '"'::text || n.nspname::text || '"'::text = $1::text
"""
"""Where Citus keeps the tables of a namespace."""
_ISOLATION = "SELECT pg_catalog.current_setting('yb_effective_transaction_isolation_level', true)"


async def engine_checks(connection: Any, engine: Engine, schema: str) -> list[Check]:
    """What an operator has to know of a server that is not a plain one; ``schema`` is its quoted name."""
    if engine is CITUS:
        return [_placed(await connection.fetchrow(_PLACED, schema), schema)]
    if engine is YUGABYTE:
        return [_isolated(await connection.fetchval(_ISOLATION))]
    return []


def _placed(row: Any, schema: str) -> Check:
    found = f"Citus {row['version']}: "
    if not row["tables"]:
        found += "the tables are on the coordinator"
        if not row["sharding"]:
            found += ", and so will be those of new namespaces (citus.enable_schema_based_sharding is off)"
        return Check("citus", True, found)
    if row["whole"]:
        return Check("citus", True, found + "all tables of the namespace are on one node (schema-based sharding)")
    advice = (
        "undistribute these tables (undistribute_table), then move the schema to one node: "
        f"SELECT citus_schema_distribute('{schema}')"
    )
    return Check("citus", False, found + "tables of the namespace were distributed one by one", advice)


def _isolated(level: str | None) -> Check:
    found = "YugabyteDB: works, but each commit waits for several nodes; where LISTEN is off, workers poll"
    if level is None or level.lower() == "read committed":
        return Check("yugabyte", True, found)
    advice = "start its servers with yb_enable_read_committed_isolation: a claim must see what was committed before it"
    return Check("yugabyte", False, f"YugabyteDB, where transactions are {level.lower()}", advice)
