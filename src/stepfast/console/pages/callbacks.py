"""``/callbacks``: who is waited for outside, since when and until when, and how what was waited for has ended."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from ...engine.outcomes import shown_error
from ...model import status
from ...model.rows import CallbackRow
from ...model.stored import moment, moment_or_none
from ..history import number
from ..redaction import Redactor, aside
from ..refusals import Refused
from ..request import ConsoleRequest
from ..responses import Page

_AGAIN = 5.0
_PAGE = 50
STATES = (status.OPEN, status.COMPLETED, status.FAILED, status.TIMED_OUT, "ended")


class ShownCallback(NamedTuple):
    """A callback; its token is known to its holder alone."""

    name: str
    run: str
    state: str
    """``ended``: its run ended first."""
    opened_at: datetime
    beat_at: datetime | None
    """The last heartbeat; None: it has none."""
    due_at: datetime | None
    """Of an open one: when it times out."""
    ended_at: datetime | None
    outcome: Any


async def callbacks(request: ConsoleRequest) -> Page:
    """Callbacks of all runs, the newest first; of a name and a state, if these are given."""
    name, state = request.query.get("name") or None, request.query.get("state") or None
    if state is not None and state not in STATES:
        raise Refused(400, f"no callback is {state!r}; there are {', '.join(STATES)}")
    low, last = _after(request.query.get("before") or "")
    store = await request.reader.store()
    found = await store.callbacks_shown(name, state, low, last, _PAGE + 1)
    listed, more = found[:_PAGE], len(found) > _PAGE
    redactor = request.redactor()
    shown = await aside(redactor, lambda: [_shown(request, row, redactor) for row in listed])
    before = f"{listed[-1].opened_at}@{listed[-1].id}" if more else None
    older = request.url("callbacks", name=name, state=state, before=before) if more else None
    page = {"callbacks": shown, "name": name or "", "state": state or "", "states": STATES, "older": older}
    told = {"callbacks": [callback._asdict() for callback in shown]}
    return Page("callbacks.html", page, told, again=_AGAIN, headers={"Link": f'<{older}>; rel="next"'} if older else {})


def _after(text: str) -> tuple[int | None, str | None]:
    """Where a page begins: a time, and the id of a callback."""
    time, found, id_ = text.partition("@")
    return (number(time, 16), id_) if found else (None, None)


def _shown(request: ConsoleRequest, row: CallbackRow, redactor: Redactor) -> ShownCallback:
    payloads, outcome = request.reader._payloads, None
    if row.value is not None:
        outcome = redactor.value(payloads.shown(row.value, row.format, f"the value of callback {row.name!r}"), "output")
    elif row.error is not None:
        outcome = redactor.text(shown_error(row.error, row.format, payloads)["message"])
    is_open = row.state == status.OPEN
    return ShownCallback(
        row.name, row.run_id, row.state, moment(row.opened_at),
        None if row.heartbeat_ms is None else moment(row.beat_at), moment_or_none(row.due_at) if is_open else None,
        moment_or_none(row.ended_at), outcome,
    )  # fmt: skip
