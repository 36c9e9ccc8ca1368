"""Which application stands in for another: where a lab executes code, the lab's own does.

A step that starts runs by the application of its module, and is tried in a lab, must start them there: a test that
reached the application's database would be worse than none.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .app import Stepfast

_instead: ContextVar[tuple[Stepfast, Stepfast] | None] = ContextVar("stepfast_instead", default=None)
"""An application, and the one that stands in for it."""


_everywhere: dict[Stepfast, Stepfast] = {}
"""Applications, and those that stand in for them in the whole process: see ``Lab.in_place``."""


def here(app: Stepfast) -> Stepfast:
    """The application itself; or the one that stands in for it where this is called."""
    instead = _instead.get()
    if instead is not None and instead[0] is app:
        return instead[1]
    return _everywhere.get(app, app) if _everywhere else app


@contextlib.contextmanager
def stands_in_everywhere(app: Stepfast, other: Stepfast) -> Iterator[None]:
    """Let the other application stand in, in every task and thread of the process."""
    before = _everywhere.get(app)
    _everywhere[app] = other
    try:
        yield
    finally:
        if before is None:
            _everywhere.pop(app, None)
        else:
            _everywhere[app] = before


def where_stands_in(app: Stepfast, other: Stepfast) -> contextvars.Context:
    """Variables like those of the caller; but in code that is executed with them the other application stands in."""
    made = contextvars.copy_context()
    made.run(_instead.set, (app, other))
    return made
