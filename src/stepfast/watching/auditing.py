"""Doing something with a trace: a line in the audit before it is done, closed when its end is known.

Without the line nothing is done. It is written in a transaction of its own, because what is done may be many: so an
action that is refused, that fails, or whose process dies has left its line, too.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec

from ..app import Stepfast
from ..errors import DatabaseUnavailable, InvalidInput, PayloadError, StepfastError
from ..model.backoff import seconds
from ..model.ids import new_id
from ..store.audit import DONE, FAILED, REFUSED, AuditLine, Deed
from .onlooker import seen_anew

T = TypeVar("T")

LONGEST = 300
"""Characters of each part of a line: whoever types them decides what they are."""
_UNSEEN = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


def deed(who: str, what: str, which: str, origin: str, detail: Mapping[str, Any] | None = None) -> Deed:
    """What somebody is about to do. Values of signals and inputs do not belong into the detail."""
    text = None if not detail else msgspec.json.encode(detail).decode()
    return Deed(new_id(), _kept(who), _kept(what), _kept(which), _kept(origin), text)


async def audited(
    app: Stepfast,
    what: Deed,
    act: Callable[[], Awaitable[T]],
    said: Callable[[T], str | None] = lambda _: None,
    *,
    refusals: tuple[type[Exception], ...] = (),
    over: Callable[[T], bool] = lambda _: True,
) -> T:
    """Do it, and leave a line. ``said`` tells in words what came of it, ``refusals`` are further errors that refuse it,
    and ``over`` says whether it is: if not, the line is closed by whoever goes on with it."""
    store = await app.store()
    keep = app.settings.retention_audit
    await store.audit_begin(what, None if keep is None else int(seconds(keep, "retention_audit") * 1000))
    try:
        result = await act()
    except Exception as error:
        refused = isinstance(error, (StepfastError, *refusals)) and not isinstance(error, DatabaseUnavailable)
        await _close(app, what, REFUSED if refused else FAILED, _why(error) if refused else type(error).__name__)
        raise
    finally:
        await seen_anew(app)
    if over(result):
        await _close(app, what, DONE, said(result))
    return result


def _why(error: Exception) -> str:
    """Why it was refused. An error about an input quotes it, and lines hold no payloads."""
    return "what was given does not fit" if isinstance(error, (InvalidInput, PayloadError)) else str(error)


async def _close(app: Stepfast, what: Deed, outcome: str, said: str | None) -> None:
    """What was done is done: if this cannot be written, the line stays begun, and the log says so."""
    try:
        await (await app.store()).audit_end(what.id, outcome, None if said is None else _kept(said))
    except StepfastError as error:
        app.logger.warning("what came of %s could not be written into the audit: %s", what.what, error)


def line_shape(line: AuditLine) -> dict[str, Any]:
    """A line as JSON."""
    shape = line._asdict()
    return shape | {"at": line.at / 1000, "detail": None if line.detail is None else msgspec.json.decode(line.detail)}


def _kept(text: str) -> str:
    """No longer than a line needs, and nothing that a database or a terminal stumbles over."""
    return _UNSEEN.sub("\ufffd", text[:LONGEST])
