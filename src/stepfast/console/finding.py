"""The one box: an id, the beginning of one, or a key."""

from __future__ import annotations

from ..app import Stepfast
from ..model.ids import ids_beginning_with, is_id
from ..reports import RunInfo
from ..telling.explaining import infos_of

MOST = 50
_SHORTEST = 4


async def find(app: Stepfast, text: str) -> list[RunInfo]:
    """The runs that are meant, at most so many; none if there is none."""
    bounds = ids_beginning_with(text)
    if bounds is not None and (is_id(bounds[0]) and bounds[0] == bounds[1]):
        return await infos_of(app, [bounds[0]])
    found: list[RunInfo] = []
    if bounds is not None and len(text) >= _SHORTEST:
        found = await infos_of(app, await (await app.store()).ids_between(*bounds, MOST))
    return found or await app.runs(key=text, limit=MOST)
