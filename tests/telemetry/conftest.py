"""Applications in memory that are watched."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from stepfast import Run, Stepfast
from stepfast.telemetry import Observer

MakeApp = Callable[..., Stepfast]


class Diary(Observer):
    """Writes down all that it is told: the name of the hook, and the event."""

    def __init__(self) -> None:
        self.pages: list[tuple[str, Any]] = []

    def hooks(self, *but: str) -> list[str]:
        """What it was told, in order; without what comes and goes with the worker's own rhythm."""
        left_out = {"claim_answered", "flushed", "swept", "sending", "sending_ended", "releasing"}
        left_out |= {"try_failed", "attempt_failed", "wait_began", "wait_ended", "branch_began", "branch_ended", *but}
        return [hook for hook, _ in self.pages if hook not in left_out]

    def of(self, hook: str) -> list[Any]:
        return [event for told, event in self.pages if told == hook]


def _writing(hook: str) -> Callable[[Diary, Any], None]:
    def write(self: Diary, event: Any) -> None:
        self.pages.append((hook, event))

    return write


for _hook in [name for name, value in vars(Observer).items() if callable(value)]:
    setattr(Diary, _hook, _writing(_hook))


@pytest.fixture
async def make_app() -> AsyncIterator[MakeApp]:
    """Makes applications, each with a database of its own in memory."""
    made: list[Stepfast] = []

    def make(**options: Any) -> Stepfast:
        app = Stepfast("sqlite://", **options)
        made.append(app)
        return app

    yield make
    for app in made:
        await app.close()


@pytest.fixture
def diary() -> Diary:
    return Diary()


@pytest.fixture
def app(make_app: MakeApp, diary: Diary) -> Stepfast:
    return make_app(observers=[diary])


async def drained(app: Stepfast, what: Any, *arguments: Any, **options: Any) -> Run[Any]:
    """A run that was started, when all that can be done is done."""
    run: Run[Any] = await app.start(what, *arguments, **options)
    await app.drain()
    return run
