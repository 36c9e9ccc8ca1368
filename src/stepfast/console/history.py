"""The steps of a run, so many at a time: a run may have tens of thousands."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..app import Stepfast
from ..carrying import begun_elsewhere
from ..errors import RunNotFound
from ..model import status
from ..remote_reports import with_claims
from ..reports import RunInfo, StepInfo, run_info
from .refusals import Refused

PAGE = 500
_BEGIN = ("", -1)

Address = tuple[str, int]
"""A branch, and a position in it."""


class History(NamedTuple):
    """A run, and a page of its steps."""

    info: RunInfo
    steps: list[StepInfo]
    after: Address | None
    """Where this page begins; None: at the beginning."""
    more: Address | None
    """Where the next page begins; None: this is the last."""

    @property
    def whole(self) -> bool:
        """Whether these are all steps."""
        return self.after is None and self.more is None


async def read_history(app: Stepfast, run_id: str, after: Address | None = None, limit: int = PAGE) -> History:
    """A run, and the page of its steps behind an address."""
    handle, store = app.get(run_id), await app.store()
    row = await store.run(handle.id)
    if row is None:
        raise RunNotFound(handle.id)
    records = await store.steps(handle.id, after or _BEGIN, limit + 1)
    more = (records[limit - 1].branch, records[limit - 1].position) if len(records) > limit else None
    info = run_info(row, app._payloads)
    steps = await handle._told(row, records[:limit], first=after is None)
    if status.WAITING_REMOTE in (info.waiting_for or "") and after is None:
        steps = with_claims(steps, await begun_elsewhere(app, handle.id))
    return History(info, steps, after, more)


def written(address: Address | None) -> str | None:
    """An address as it stands in a link."""
    return None if address is None else f"{address[1]}@{address[0]}"


def address_of(text: str | None) -> Address | None:
    """The address that a link names."""
    if not text:
        return None
    position, _, branch = text.partition("@")
    return branch, number(position)


def number(text: Any) -> int:
    """A whole number out of a link."""
    digits = str(text)
    if not digits.removeprefix("-").isdecimal() or not digits.isascii() or len(digits) > 12:
        raise Refused(400, "this link is broken: a number was expected in it")
    return int(digits)
