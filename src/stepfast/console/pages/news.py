"""``/news``: whether anything has happened to what a tab shows. Answered from memory, while one task looks for all.

The answer comes at once, and no connection is held open: a browser has six for a host, and a server that is told to
stop waits for those that are under way.
"""

from __future__ import annotations

import time

from ...monitoring.changes import LISTS, news_of
from ..answers import Word
from ..visit import Visit

_SOON, _LATE = 1.0, 5.0
_QUIET = 30.0
"""For each so many seconds in which nothing has happened, a tab waits a second longer, up to five."""


async def news(visit: Visit) -> Word:
    """Whether a run, or the list of them, stands otherwise than by a mark; and in how many seconds to ask again."""
    run_id = visit.query.get("run")
    what = LISTS if run_id is None else visit.look.get(run_id).id
    found = await (await news_of(visit.app)).ask(what)
    if found is None:
        return Word({"changed": True, "again": _LATE})
    quiet = time.monotonic() - found.since
    again = round(min(max(_SOON, quiet / _QUIET), _LATE), 1)
    return Word({"changed": visit.query.get("mark") != found.text, "again": again})
