"""What a cancel does to a run whose worker died: a step may have acted, and nobody has its record.

The undo of a step needs its record. So after one loss the run goes on to its next record first, and is undone then: the
step is called again, as after every crash. After two losses the run is a suspect, and going on could cost another
worker: it is cancelled at once, and says which step may have acted.
"""

from __future__ import annotations

import msgspec

from ..settings import SUSPECT_LOSSES
from .status import WAITING


def goes_on_first(losses: int, status: str) -> bool:
    """Whether a run that nobody holds is to come to a new record before it is cancelled. One that waits has come to the
    end of what it had begun."""
    return 0 < losses < SUSPECT_LOSSES and status != WAITING


def may_have_acted(losses: int, status: str, running: str | None, last: str | None) -> str | None:
    """The error of a suspect that is cancelled at once: which step may have acted, as far as rows can tell. ``running``
    is a step that was seen under way without an outcome, ``last`` the last one that has a record."""
    if losses < SUSPECT_LOSSES or status == WAITING:
        return None
    if running is not None:
        step = f"step {running!r}"
    else:
        step = "its first step" if last is None else f"the step after {last!r}"
    message = (
        f"{step} may have acted: {losses} workers died with this run before a result was recorded. It was not undone: "
        "look whether it happened, and undo it by hand"
    )
    return msgspec.json.encode({"type": "MayHaveActed", "message": message, "retryable": False}).decode()
