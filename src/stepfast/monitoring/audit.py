"""Doing something with a trace: a line in the audit before it is done, closed when its end is known.

Without the line nothing is done. It is written in a transaction of its own, because what is done may be many: so an
action that is refused, that fails, or whose process dies has left its line, too.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec

from ..app import Stepfast
from ..errors import DatabaseUnavailable, InvalidInput, PayloadError, StepfastError
from ..model.backoff import seconds
from ..model.ids import new_id
from ..model.stored import read_json
from ..store.answers import DONE, FAILED, INTERRUPTED, REFUSED, AuditLine, Deed
from ..store.lock_timeout import RowsHeld, brief
from .changes import seen_anew

T = TypeVar("T")

LONGEST = 300
"""Characters of each part of a line: whoever types them decides what they are."""
_UNSEEN = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


class NothingDone(StepfastError):
    """An action was given up before it had changed anything."""

    def __init__(self, why: str) -> None:
        super().__init__(f"nothing was done: {why}. Try again when less is going on")


class MayBeDone(StepfastError):
    """An action was given up, and the database may carry it out all the same."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"it took more than {seconds:g} s, and nobody waits for it any more: it may have been done, now or a "
            "little later. Look at what it was about before you try again"
        )


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
    and ``over`` says whether it is: if not, the line is closed by whoever goes on with it. What takes longer than
    ``act_timeout`` is given up, and whether it may have been done is told."""
    patience = app.settings.act_timeout
    await _begin(app, what, patience)
    try:
        result = await _bounded(act, patience)
    except asyncio.CancelledError:
        await _close(app, what, INTERRUPTED, "the process was told to stop; it may have been done")
        raise
    except Exception as error:
        unknown = isinstance(error, (DatabaseUnavailable, MayBeDone))
        refused = isinstance(error, (StepfastError, *refusals)) and not unknown
        await _close(app, what, REFUSED if refused else FAILED, _why(error) if refused else _failed(error))
        raise
    finally:
        await seen_anew(app)
    if over(result):
        await _close(app, what, DONE, said(result))
    return result


async def _begin(app: Stepfast, what: Deed, patience: float) -> None:
    keep = app.settings.retention_audit
    keep_ms = None if keep is None else int(seconds(keep, "retention_audit") * 1000)
    try:
        async with asyncio.timeout(patience):
            with brief(patience / 2):
                await (await app.store()).audit_begin(what, keep_ms)
    except (RowsHeld, TimeoutError):
        raise NothingDone(f"its line could not be written into the audit within {patience:g} s") from None


async def _bounded(act: Callable[[], Awaitable[T]], patience: float) -> T:
    limit = asyncio.timeout(patience)
    try:
        async with limit:
            with brief(patience / 2):
                return await act()
    except RowsHeld:
        raise NothingDone(f"another transaction held what this is about for more than {patience / 2:g} s") from None
    except TimeoutError:
        if not limit.expired():
            raise
        raise MayBeDone(patience) from None


def _why(error: Exception) -> str:
    """Why it was refused. An error about an input quotes it, and lines hold no payloads."""
    return "what was given does not fit" if isinstance(error, (InvalidInput, PayloadError)) else str(error)


def _failed(error: Exception) -> str:
    return "given up; it may have been done" if isinstance(error, MayBeDone) else type(error).__name__


async def _close(app: Stepfast, what: Deed, outcome: str, said: str | None) -> None:
    """What was done is done: if this cannot be written, the line stays begun, and the log says so."""
    patience = app.settings.act_timeout / 2
    try:
        async with asyncio.timeout(patience):
            with brief(patience):
                await (await app.store()).audit_end(what.id, outcome, None if said is None else _kept(said))
    except (StepfastError, TimeoutError) as error:
        app.logger.warning("what came of %s could not be written into the audit: %s", what.what, error)


def line_shape(line: AuditLine) -> dict[str, Any]:
    """A line as JSON."""
    shape = line._asdict()
    return shape | {
        "at": line.at / 1000,
        "detail": None if line.detail is None else read_json(line.detail, object, line.detail),
    }


def _kept(text: str) -> str:
    """No longer than a line needs, and nothing that a database or a terminal stumbles over."""
    return _UNSEEN.sub("\ufffd", text[:LONGEST])
