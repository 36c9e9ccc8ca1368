"""How an open tab learns that its page has changed, without asking for the page."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..monitoring.changes import LISTS, Print, news_of
from ..store.readonly import SIGHT

if TYPE_CHECKING:
    from .visit import Visit


class Outlook(NamedTuple):
    """What a tab needs to learn that its page has changed."""

    ask: str
    """Where it asks whether there is anything new."""
    latest: float
    """Seconds after which it asks for the page even if there is not: times grow old, and not all that a page shows is
    looked at for news."""


async def prints_of(visit: Visit, run_id: str | None = None) -> Print | None:
    """How a run stands, or all of them, before a page about it is read. What is read from now on is not older. Scripts
    are not told of news."""
    sight = SIGHT.get()
    if visit.wants_json or sight is None:
        return None
    found = await (await news_of(visit.app)).of(run_id or LISTS)
    sight.floor = found.since
    return found


def outlook(visit: Visit, seen: Print | None, latest: float, run_id: str | None = None) -> Outlook | None:
    """For a page that was read after how things stand was ``seen``. If some of it is older all the same, because
    somebody had asked for it already, the tab is to take it as changed: it has no mark."""
    sight = SIGHT.get()
    if seen is None or sight is None:
        return None
    mark = seen.text if sight.oldest >= seen.since else None
    return Outlook(visit.url("news", run=run_id, mark=mark), latest)
