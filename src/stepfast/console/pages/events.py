"""``/events``: what was published, which runs took it or wait for more, and what it started."""

from __future__ import annotations

from dataclasses import asdict, replace

from ...events import EventInfo
from ..history import number
from ..redaction import Redactor, aside
from ..request import ConsoleRequest
from ..responses import Page

_AGAIN = 5.0
_PAGE = 50
_WAITING = 100
"""Runs that wait, and are listed, at most."""


async def events(request: ConsoleRequest) -> Page:
    """Events, the newest first; of a name and a key, if these are given."""
    name, key = request.query.get("name") or None, request.query.get("key") or None
    before = request.query.get("before") or None
    found = await request.reader.events(
        name=name, key=key, before=None if before is None else number(before, 18), limit=_PAGE + 1
    )
    listed, more = found[:_PAGE], len(found) > _PAGE
    names = sorted({event.name for event in listed} | ({name} if name is not None else set()))
    waiters = await (await request.reader.store()).event_waiters(names, _WAITING) if names else []
    waiting = [
        {"name": of_name, "key": of_key, "run": run_id}
        for of_name, of_key, run_id in waiters
        if key is None or of_key in ("", key)
    ]
    shown = await aside(request.redactor(), lambda: [_redacted(event, request.redactor()) for event in listed])
    older = request.url("events", name=name, key=key, before=listed[-1].number) if more else None
    page = {"events": shown, "waiting": waiting, "name": name or "", "key": key or "", "older": older}
    told = {"events": [asdict(event) for event in shown], "waiting": waiting}
    return Page("events.html", page, told, again=_AGAIN, headers={"Link": f'<{older}>; rel="next"'} if older else {})


def _redacted(event: EventInfo, redactor: Redactor) -> EventInfo:
    """Redact the data of an event, as the input of a run."""
    errors = tuple(redactor.text(error) for error in event.errors)
    return replace(event, data=redactor.value(event.data, "data"), errors=errors)
