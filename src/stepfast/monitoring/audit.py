"""The audit: an entry for each action, written before the action and closed with its outcome.

Without the entry the action is not carried out. It is written in a transaction of its own, because an action may have
many transactions. So an action that is refused or fails, or whose process dies, has an entry too.
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
from ..store.answers import DONE, FAILED, INTERRUPTED, REFUSED, AuditEntry, AuditLine
from ..store.lock_timeout import RowsHeld, brief
from .changes import forget_cached

T = TypeVar("T")

LONGEST = 300
"""Characters of each part of an entry, which clients choose."""
_UNSEEN = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


class NothingDone(StepfastError):
    """An action was given up before it changed anything."""

    def __init__(self, why: str) -> None:
        super().__init__(f"nothing was done: {why}. Try again when less is going on")


class MayBeDone(StepfastError):
    """An action was given up, and the database may carry it out all the same."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"it took more than {seconds:g} s and was given up: it may have been done, now or a little later. Check "
            "before you try again"
        )


def new_entry(who: str, what: str, which: str, origin: str, detail: Mapping[str, Any] | None = None) -> AuditEntry:
    """Make the entry of an action. Values of signals and inputs do not belong into the detail."""
    text = None if not detail else msgspec.json.encode(detail).decode()
    return AuditEntry(new_id(), _kept(who), _kept(what), _kept(which), _kept(origin), text)


async def audited(
    app: Stepfast,
    entry: AuditEntry,
    act: Callable[[], Awaitable[T]],
    said: Callable[[T], str | None] = lambda _: None,
    *,
    refusals: tuple[type[Exception], ...] = (),
    over: Callable[[T], bool] = lambda _: True,
) -> T:
    """Carry out an action with its entry. ``said`` returns the outcome in words, ``refusals`` are further errors that
    count as refusals, and ``over`` returns whether the action has ended: if not, its continuation closes the entry. An
    action that takes longer than ``act_timeout`` is given up, with an error that states whether it may have been
    done."""
    patience = app.settings.act_timeout
    await _begin(app, entry, patience)
    try:
        result = await _bounded(act, patience)
    except asyncio.CancelledError:
        await _close(app, entry, INTERRUPTED, "the process was told to stop; it may have been done")
        raise
    except Exception as error:
        await _close(app, entry, *_outcome(error, refusals))
        raise
    finally:
        await forget_cached(app)
    if over(result):
        await _close(app, entry, DONE, said(result))
    return result


async def _begin(app: Stepfast, entry: AuditEntry, patience: float) -> None:
    keep = app.settings.retention_audit
    keep_ms = None if keep is None else int(seconds(keep, "retention_audit") * 1000)
    try:
        async with asyncio.timeout(patience):
            with brief(patience / 2):
                await (await app.store()).audit_begin(entry, keep_ms)
    except (RowsHeld, TimeoutError):
        raise NothingDone(f"its entry could not be written into the audit within {patience:g} s") from None


async def _bounded(act: Callable[[], Awaitable[T]], patience: float) -> T:
    limit = asyncio.timeout(patience)
    try:
        async with limit:
            with brief(patience / 2):
                return await act()
    except RowsHeld:
        raise NothingDone(f"another transaction locked its rows for more than {patience / 2:g} s") from None
    except TimeoutError:
        if not limit.expired():
            raise
        raise MayBeDone(patience) from None


def _outcome(error: Exception, refusals: tuple[type[Exception], ...]) -> tuple[str, str]:
    """Return the outcome, and why. An error about an input quotes it, and entries hold no payloads."""
    if isinstance(error, MayBeDone):
        return FAILED, "given up; it may have been done"
    if isinstance(error, DatabaseUnavailable) or not isinstance(error, (StepfastError, *refusals)):
        return FAILED, type(error).__name__
    return REFUSED, "what was given does not fit" if isinstance(error, (InvalidInput, PayloadError)) else str(error)


async def _close(app: Stepfast, entry: AuditEntry, outcome: str, said: str | None) -> None:
    """Close an entry. If that fails, the entry stays open, and the log says so."""
    patience = app.settings.act_timeout / 2
    try:
        async with asyncio.timeout(patience):
            with brief(patience):
                await (await app.store()).audit_end(entry.id, outcome, None if said is None else _kept(said))
    except (StepfastError, TimeoutError) as error:
        app.logger.warning("the outcome of %s could not be written into the audit: %s", entry.what, error)


def line_shape(line: AuditLine) -> dict[str, Any]:
    """Return an entry as JSON."""
    shape = line._asdict()
    return shape | {
        "at": line.at / 1000,
        "detail": None if line.detail is None else read_json(line.detail, object, line.detail),
    }


def _kept(text: str) -> str:
    """Cut a text, and replace control characters and lone surrogates."""
    return _UNSEEN.sub("\ufffd", text[:LONGEST])
