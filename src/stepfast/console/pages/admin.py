"""``/workers``, ``/system`` and ``/audit``: registered workers, the checks of the doctor, and what operators did."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl

from ... import __version__
from ...errors import DatabaseUnavailable, SchemaError, StepfastError
from ...model.ids import check_id
from ...model.stored import moment
from ...monitoring.audit import LONGEST, line_shape
from ...monitoring.changes import glance_of
from ...monitoring.doctor import check_shape, examine, unreachable
from ...monitoring.text import queues_of, worker_name, worker_shape
from ...store.answers import FAILED, INTERRUPTED, UNKNOWN, AuditLine, Check
from ...store.readonly import TableSize, TookTooLong
from ..filters import Filters, Group
from ..request import ConsoleRequest
from ..responses import Page

_WORKERS_REFRESH = 5.0


async def workers(request: ConsoleRequest) -> Page:
    """Every registered worker; a dead one until it is reaped."""
    found = await (await glance_of(request.reader)).workers()
    rows = [
        {
            "worker": worker,
            "name": worker_name(worker),
            "queues": queues_of(worker),
            "workflows": sorted(worker.workflows),
            "up": (worker.beat_at - worker.started_at + worker.age_ms) / 1000,
            "silent": worker.age_ms / 1000,
            "started_at": moment(worker.started_at),
        }
        for worker in found
    ]
    return Page("workers.html", {"workers": rows}, [worker_shape(worker) for worker in found], again=_WORKERS_REFRESH)


_SYSTEM_REFRESH, _AGAIN_DOWN = 30.0, 5.0
_PATIENCE = 10.0


async def system(request: ConsoleRequest) -> Page:
    """The checks of the doctor and the sizes of tables; or since when the database is unreachable."""
    try:
        if request.state.outage_since is not None:  # cached results are from before the outage
            request.state.slow.forget()
            (await glance_of(request.app)).remembered.forget()
        checks: list[Check] = await request.state.slow.get("doctor", lambda: _examined(request))
        glance = await glance_of(request.reader)
        sizes, whole = await glance.sizes(), await glance.whole_size()
        version = await request.state.slow.get("schema", lambda: _version(request))
    except (DatabaseUnavailable, SchemaError, TookTooLong) as error:
        return _down(request, error)
    shown = {"checks": checks, "ok": all(c.ok for c in checks), "since": None}
    return _page(request, shown, version, sizes, whole)


def _down(request: ConsoleRequest, error: StepfastError) -> Page:
    since = request.state.note_outage() if isinstance(error, DatabaseUnavailable) else None
    page = _page(request, {"checks": [unreachable(error)], "ok": False, "since": since}, None, [], None)
    return replace(page, status=503, again=_AGAIN_DOWN)


def _page(
    request: ConsoleRequest, shown: dict[str, Any], tables: int | None, sizes: Sequence[TableSize], whole: int | None
) -> Page:  # fmt: skip
    versions = {
        "stepfast": __version__,
        "python": platform.python_version(),
        "tables": tables,
        "engine": request.app.url.kind,
        "namespace": request.app.namespace,
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
    return Page("system.html", shown | more, shape, again=_SYSTEM_REFRESH)


async def _examined(request: ConsoleRequest) -> list[Check]:
    try:
        async with asyncio.timeout(_PATIENCE):
            return await examine(request.app, await request.app.store())
    except TimeoutError:
        advice = "check which statements keep the database busy"
        return [Check("connection", False, f"the database did not answer within {_PATIENCE:g} s", advice)]


async def _version(request: ConsoleRequest) -> int:
    return (await (await request.app.store()).schema_state()).version


PAGE = 50
_AUDIT_REFRESH = 15.0


async def audit(request: ConsoleRequest) -> Page:
    """A page of entries, the newest first; of one run, queue or schedule, if ``which`` is given."""
    which, before = request.query.get("which") or None, request.query.get("before") or None
    glance = await glance_of(request.reader)
    found = await glance.audit(which, None if before is None else check_id(before), PAGE + 1)
    lines, more = found[:PAGE], len(found) > PAGE
    rows = [{"line": line, "at": moment(line.at), "again": _ask_again(request, line)} for line in lines]
    link = request.url("audit", which=which, before=lines[-1].id) if more else None
    shown = {"lines": rows, "which": which or "", "more": link, "first": before is None}
    headers = {"Link": f'<{link}>; rel="next"'} if link else {}
    return Page("audit.html", shown, [line_shape(line) for line in lines], again=_AUDIT_REFRESH, headers=headers)


def _ask_again(request: ConsoleRequest, line: AuditLine) -> str | None:
    """The address for the rest of an interrupted bulk job, by the filters in its entry, unless they were cut."""
    if line.outcome not in (INTERRUPTED, UNKNOWN, FAILED) or len(line.which) >= LONGEST:
        return None
    kind, _, verb = line.what.partition(".")
    given = dict(parse_qsl(line.which))
    if kind == "failures" and given.get("workflow"):
        return request.url("failures", verb, **Group.of(given).query)
    return request.url("bulk", verb, **Filters.of(given).query) if kind == "bulk" else None
