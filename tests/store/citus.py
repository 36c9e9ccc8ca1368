"""A plain server that is taken for Citus, because it has the catalogue of the extension."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

_ALLOW = "SET allow_system_table_mods = on"
_MAKE = (
    'CREATE TABLE pg_catalog.pg_dist_partition (logicalrelid regclass, partmethod "char", repmodel "char")',
    "INSERT INTO pg_extension (oid, extname, extowner, extnamespace, extrelocatable, extversion) "  # noqa: ISC004
    "SELECT 1, 'citus', 10, oid, false, '13.2' FROM pg_namespace WHERE nspname = 'public'",
)
_REMOVE = ("DELETE FROM pg_extension WHERE extname = 'citus'", "DROP TABLE pg_catalog.pg_dist_partition")


@asynccontextmanager
async def as_citus(url: str) -> AsyncIterator[None]:
    """Let stores that connect to this database take it for a coordinator."""
    await _execute(url, _MAKE)
    try:
        yield
    finally:
        await _execute(url, _REMOVE)


async def _execute(url: str, statements: tuple[str, ...]) -> None:
    connection = await asyncpg.connect(url)
    try:
        for sql in (_ALLOW, *statements):
            await connection.execute(sql)
    finally:
        await connection.close()
