"""Runs as people name them: by the whole id, or by as much of its beginning as belongs to one run only."""

from __future__ import annotations

from typing import Any

from ..app import Stepfast
from ..errors import InvalidInput, RunNotFound
from ..model.ids import ids_beginning_with, is_id
from ..run import Run
from .words import listed

_SHORTEST = 4
"""Fewer characters are rather a slip of the finger than a run."""
_TOLD = 3


async def find_run(app: Stepfast, text: str, key: str | None = None) -> Run[Any]:
    """The run that is meant: by its id, or with a key by its workflow. A whole id is not looked up here; the next
    question about the run tells."""
    if key is not None:
        return app.get((await app.find(text, key=key)).id)
    bounds = ids_beginning_with(text)
    if bounds is None or len(text.strip()) < _SHORTEST or bounds[0] == bounds[1] or is_id(text.lower()):
        return app.get(bounds[0] if bounds is not None and bounds[0] == bounds[1] else text)
    found = await (await app.store()).ids_between(*bounds, _TOLD + 1)
    if not found:
        raise RunNotFound(f"whose id begins with {text}")
    if len(found) > 1:
        told = found if len(found) <= _TOLD else [*found[:_TOLD], "others"]
        raise InvalidInput(f"{text!r} is the beginning of several ids: {listed(told)}; write more of it")
    return app.get(found[0])
