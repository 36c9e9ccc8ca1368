"""``crash_everywhere``: a run for every commit, in which the worker dies just before or just after it.

Each run begins with the same id, the same random values and the same time as one that nothing happened to, and must
come to the same end with the same records. Whatever is different came from something that is not recorded.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ..app import Stepfast
from ..engine.workflow import Workflow
from ..model.status import TERMINAL
from ..run import Run
from .lab import Lab
from .mortal_store import Cut
from .traces import Trace, first_difference, trace_of

Drive = Callable[[Lab, Run[Any]], Any]

_MOST_JUMPS = 1000
"""How often time is moved to what is due next, before a run counts as one that does not end."""


@dataclass(frozen=True, slots=True)
class CrashReport:
    """What was tried, and what every run came to."""

    commits: int
    """Commits of the run that nothing happened to."""
    crashes: int
    """Runs in which a worker died: one before and one after each commit."""
    records: int
    """Records that each of them left."""
    status: str
    """How each of them ended."""
    result: Any = None
    """With what, if it completed."""


@dataclass(frozen=True, slots=True)
class _Scene:
    """What is played again and again."""

    app: Stepfast
    workflow: Workflow[Any, Any] | str
    input: Any
    drive: Drive | None
    replace: Mapping[Any, Callable[..., Any]]
    now: datetime
    patience: float

    async def play(self, cut: Cut) -> Trace:
        """One run from its start to its end."""
        async with Lab._for_crash(self.app, self.now, self.patience, cut) as lab:
            for what, function in self.replace.items():
                lab.replace(what, function)
            run = await lab.start(self.workflow, self.input)
            if self.drive is not None:
                driven = self.drive(lab, run)
                if inspect.isawaitable(driven):
                    await driven
            await lab.settle()
            for _ in range(_MOST_JUMPS):
                if await run.status() in TERMINAL or await lab.advance_to_next() is None:
                    break
            return await trace_of(lab.app, run)


async def crash_everywhere(
    app: Stepfast,
    workflow: Workflow[Any, Any] | str,
    input: Any = None,
    *,
    drive: Drive | None = None,
    replace: Mapping[Any, Callable[..., Any]] | None = None,
    now: datetime | None = None,
    patience: float = 30.0,
) -> CrashReport:
    """Run a workflow as often as it commits something, twice: each time its worker dies just before, or just after, one
    of the commits, and another takes over. Every run must end alike, with the same records; otherwise an
    AssertionError shows the first that differs, and the line of its call.

    ``drive(lab, run)`` is called once after each start: it sends signals, lets time pass. What is due afterwards comes
    by itself. ``replace`` maps steps to the functions that stand in for them: a step that gives something else each
    time makes every run different.
    """
    scene = _Scene(app, workflow, input, drive, replace or {}, now or datetime.now(UTC), patience)
    cut = Cut()
    whole = await scene.play(cut)
    crashes = 0
    for after in (False, True):
        number = 1
        while await _crash(scene, whole, Cut(number, after), cut.commits):
            number, crashes = number + 1, crashes + 1
    return CrashReport(cut.commits, crashes, len(whole.records), whole.status, whole.result)


async def _crash(scene: _Scene, whole: Trace, cut: Cut, commits: int) -> bool:
    """Play it with one death; False, if there was no such commit."""
    where = f"the worker died just {'after' if cut.after else 'before'} commit {cut.number} of {commits}"
    try:
        trace = await scene.play(cut)
    except Exception as error:
        error.add_note(f"({where})")
        raise
    if (difference := first_difference(whole, trace)) is not None:
        raise AssertionError(f"{where}, and the run went another way.\n{difference}")
    assert cut.number is not None
    return cut.commits >= cut.number
