"""``/system``: whether all is well, versions, and how large the tables are."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from ... import __version__
from ...errors import DatabaseUnavailable, SchemaError, StepfastError
from ...monitoring.changes import glance_of, seen_anew
from ...monitoring.doctor import check_shape, examine, unreachable
from ...store.readonly import TableSize, TookTooLong
from ...store.store import Check
from ..answers import Page
from ..visit import Visit

_AGAIN, _AGAIN_DOWN = 30.0, 5.0
_PATIENCE = 10.0


async def system(visit: Visit) -> Page:
    """What the doctor finds, and the sizes of tables; where the database cannot be asked, since when that is so."""
    try:
        if visit.desk.outage.since is not None:  # what was found before it is of no use to anybody
            visit.desk.slow.forget()
            await seen_anew(visit.app)
        checks: list[Check] = await visit.desk.slow.get("doctor", lambda: _examined(visit))
        glance = await glance_of(visit.look)
        sizes, whole = await glance.sizes(), await glance.whole_size()
        version = await visit.desk.slow.get("schema", lambda: _version(visit))
    except (DatabaseUnavailable, SchemaError, TookTooLong) as error:
        return _down(visit, error)
    shown = {"checks": checks, "ok": all(c.ok for c in checks), "since": None}
    return _page(visit, shown, version, sizes, whole)


def _down(visit: Visit, error: StepfastError) -> Page:
    """The page without what only the database could tell."""
    since = visit.desk.outage.noticed() if isinstance(error, DatabaseUnavailable) else None
    page = _page(visit, {"checks": [unreachable(error)], "ok": False, "since": since}, None, [], None)
    return replace(page, status=503, again=_AGAIN_DOWN)


def _page(
    visit: Visit, shown: dict[str, Any], tables: int | None, sizes: Sequence[TableSize], whole: int | None
) -> Page:  # fmt: skip
    versions = {
        "stepfast": __version__,
        "python": platform.python_version(),
        "tables": tables,
        "engine": visit.app.url.kind,
        "namespace": visit.app.namespace,
    }
    since: datetime | None = shown["since"]
    shape: dict[str, Any] = {
        "checks": [check_shape(check) for check in shown["checks"]],
        "versions": versions,
        "bytes": whole,
        "tables": [size._asdict() for size in sizes],
        "unreachable_since": None if since is None else since.isoformat(),
    }
    more = {"versions": versions, "sizes": sizes, "whole": whole, "again_down": _AGAIN_DOWN}
    return Page("system.html", shown | more, shape, again=_AGAIN)


async def _examined(visit: Visit) -> list[Check]:
    try:
        async with asyncio.timeout(_PATIENCE):
            return await examine(visit.app, await visit.app.store())
    except TimeoutError:
        advice = "look at what the database is busy with"
        return [Check("connection", False, f"the database did not answer within {_PATIENCE:g} s", advice)]


async def _version(visit: Visit) -> int:
    return (await (await visit.app.store()).schema_state()).version
