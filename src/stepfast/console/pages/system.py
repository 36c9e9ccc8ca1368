"""``/system``: whether all is well, versions, and how large the tables are."""

from __future__ import annotations

import asyncio
import platform
from typing import Any

from ... import __version__
from ...store.protocol import Check
from ...telling.doctor import check_shape, examine
from ...watching.onlooker import glance_of
from ..answers import Page
from ..visit import Visit

_AGAIN = 30.0
_PATIENCE = 10.0


async def system(visit: Visit) -> Page:
    """What the doctor finds, and the sizes of tables."""
    checks: list[Check] = await visit.desk.slow.get("doctor", lambda: _examined(visit))
    glance = await glance_of(visit.look)
    sizes, whole = await glance.sizes(), await glance.whole_size()
    versions = {
        "stepfast": __version__,
        "python": platform.python_version(),
        "tables": (await visit.desk.slow.get("schema", lambda: _version(visit))),
        "engine": visit.app.url.kind,
        "namespace": visit.app.namespace,
    }
    shown = {"checks": checks, "versions": versions, "sizes": sizes, "whole": whole, "ok": all(c.ok for c in checks)}
    shape: dict[str, Any] = {
        "checks": [check_shape(check) for check in checks],
        "versions": versions,
        "bytes": whole,
        "tables": [size._asdict() for size in sizes],
    }
    return Page("system.html", shown, shape, again=_AGAIN)


async def _examined(visit: Visit) -> list[Check]:
    try:
        async with asyncio.timeout(_PATIENCE):
            return await examine(visit.app, await visit.app.store())
    except TimeoutError:
        advice = "look at what the database is busy with"
        return [Check("connection", False, f"the database did not answer within {_PATIENCE:g} s", advice)]


async def _version(visit: Visit) -> int:
    return (await (await visit.app.store()).schema_state()).version
