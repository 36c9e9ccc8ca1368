"""``/runs/{id}/logs`` and ``/runs/{id}/streams``: what a run has logged, and what it has sent to its streams."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, NamedTuple

from ...info import RunInfo
from ...model.names import LOGS, OWN_STREAMS
from ...model.stored import moment
from ...monitoring.changes import glance_of
from ...store.readonly import BaseGlance
from ...streams import LogLine, as_line
from ..history import number
from ..redaction import HIDDEN, Redactor, aside, redacted_history
from ..request import ConsoleRequest
from ..responses import Page
from ..run_view import read_extras

_AGAIN = 1.0
_LINES, _ITEMS = 500, 100
"""Lines, and items, of a page: the last, or those before a number."""
_READ = 2000
_LARGE_LINE, _LARGE_ITEM = 100_000, 4096
"""Bytes of a value that is shown."""
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


class ShownItem(NamedTuple):
    """An item of a stream."""

    number: int
    attempt: int
    restarted: bool
    sent_at: Any
    value: Any
    size: int | None
    """Its bytes, if it is too large to be shown."""
    end: bool


async def logs(request: ConsoleRequest) -> Page:
    """The lines that a run has logged: the last ones, or those of a level or with a text."""
    run_id = request.reader.get(request.params["id"]).id
    glance = await glance_of(request.reader)
    last = (await glance.stream_sizes(run_id)).get(LOGS, 0)
    info, redactor, complete = await _seen(request, run_id)
    level, text = request.query.get("level", ""), request.query.get("text", "")
    before = number(request.query.get("before") or str(last + 1))
    least = logging.getLevelNamesMapping().get(level, 0)
    found: list[tuple[int, LogLine]] = []
    low = max(0, before - 1 - _LINES) if not (least or text) else max(0, before - 1 - _READ)
    high = before - 1
    while high > 0 and len(found) < _LINES:
        lines = await _lines(request, glance, run_id, low, high, redactor, complete)
        found = [each for each in lines if _fits(each[1], least, text)] + found
        low, high = max(0, low - _READ), low
        if not (least or text):
            break
    found = found[-_LINES:]
    earlier = found[0][0] if found and found[0][0] > 1 else None
    dropped = await glance.dropped_lines(run_id) if before > last else 0
    shown = {
        "run": info, "lines": [line for _, line in found], "dropped": dropped, "level": level, "text": text,
        "levels": LEVELS, "kept": last,
        "earlier": None if earlier is None else _url(request, "logs", level=level, text=text, before=earlier),
        "latest": None if before > last else _url(request, "logs", level=level, text=text),
    }  # fmt: skip
    told = [{"at": line.at, "level": line.level, "logger": line.logger, "message": line.message, "step": line.step}
            for _, line in found]  # fmt: skip
    shape = {"run": run_id, "lines": told, "dropped": dropped, "before": earlier}
    return Page("logs.html", shown, shape, again=None if info.completed_at or before <= last else _AGAIN)


async def _lines(
    request: ConsoleRequest, glance: BaseGlance, run_id: str, low: int, high: int, redactor: Redactor, complete: bool
) -> list[tuple[int, LogLine]]:
    rows = await glance.stream_part(run_id, LOGS, low, high, _LARGE_LINE)
    payloads = request.reader._payloads

    def shown() -> list[tuple[int, LogLine]]:
        found = []
        for row in rows:
            line = as_line(payloads.plain(row.value, row.format, "a line of the log"), moment(row.sent_at))
            if redactor.hides:
                said = redactor.value(line.message, "logs")
                line = LogLine(line.at, line.level, line.logger, _without(redactor, said, complete), line.step)
            found.append((row.number, line))
        return found

    return await aside(redactor, shown)


def _without(redactor: Redactor, text: str, complete: bool) -> str:
    """A text that may quote payloads, without what is hidden of them."""
    return redactor.text(text) if complete else HIDDEN


def _fits(line: LogLine, least: int, text: str) -> bool:
    known = logging.getLevelNamesMapping().get(line.level, least)
    said = f"{line.logger} {line.step or ''} {line.message}".casefold()
    return known >= least and text.casefold() in said


async def streams(request: ConsoleRequest) -> Page:
    """The streams of a run, and the items of one of them."""
    run_id = request.reader.get(request.params["id"]).id
    glance = await glance_of(request.reader)
    every = await glance.stream_sizes(run_id)
    sizes = {name: items for name, items in every.items() if not name.startswith(OWN_STREAMS)}
    info = await request.reader.get(run_id).this.info()
    name = request.query.get("name") or next(iter(sizes), "")
    last = sizes.get(name, 0)
    before = number(request.query.get("before") or str(last + 1))
    redactor, payloads = request.redactor(), request.reader._payloads
    rows = await glance.stream_part(run_id, name, max(0, before - 1 - _ITEMS), before - 1, _LARGE_ITEM) if last else []

    def made() -> list[ShownItem]:
        return [
            ShownItem(
                row.number, row.attempt, row.restarted, moment(row.sent_at),
                redactor.value(payloads.plain(row.value, row.format, "an item"), f"streams.{name}"),
                row.size if row.value is None else None, row.size is None,
            )
            for row in rows
        ]  # fmt: skip

    items = await aside(redactor, made)
    earlier = items[0].number if items and items[0].number > 1 else None
    shown = {
        "run": info, "names": [(each, number_, _url(request, "streams", name=each)) for each, number_ in sizes.items()],
        "name": name, "items": items,
        "earlier": None if earlier is None else _url(request, "streams", name=name, before=earlier),
        "latest": None if before > last else _url(request, "streams", name=name),
    }  # fmt: skip
    told = [{"number": each.number, "value": each.value, "attempt": each.attempt, "restarted": each.restarted,
             "sent_at": each.sent_at, "left_out": each.size is not None} for each in items if not each.end]  # fmt: skip
    shape = {"run": run_id, "streams": sizes, "name": name, "items": told, "before": earlier}
    return Page("streams.html", shown, shape, again=None if info.completed_at or before <= last else _AGAIN)


async def _seen(request: ConsoleRequest, run_id: str) -> tuple[RunInfo, Redactor, bool]:
    """The run, a redactor that has seen its payloads, and whether it has seen all of them: lines may quote them."""
    redactor = request.redactor()
    history = await request.history(run_id)
    if redactor.hides:
        await read_extras(request, history.info, redactor)
    info = (await aside(redactor, partial(redacted_history, history, redactor))).info
    return info, redactor, history.complete


def _url(request: ConsoleRequest, page: str, **query: str | int | None) -> str:
    return request.url("runs", request.params["id"], page, **query)
