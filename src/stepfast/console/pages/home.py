"""The root: the list of runs is where everybody begins."""

from __future__ import annotations

from ..answers import Done
from ..navigation import NAVIGATION
from ..visit import Visit


async def home(visit: Visit) -> Done:
    """Go on to the runs."""
    return Done(visit.url("runs"), {"pages": [path for _, path in NAVIGATION]})
