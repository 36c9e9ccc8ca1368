"""Code that blocks the event loop is named in the log by the thread of the heartbeat; and its end is told, too."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from stepfast import Context, Stepfast
from stepfast.settings import Settings
from stepfast.worker.heartbeat import LoopWatch
from tests.support.engine import PATIENCE, eventually
from tests.support.worker_context import StandingClock, make_kit

QUICK = Settings(blocked_after=1.0)
HERE = Path(__file__).name


class Lines(logging.Handler):
    """What the log says of the event loop; kept in the thread that says it."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []
        self.of: list[tuple[object, ...]] = []
        """The ids of the run that each line is about."""
        self.blocked = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if "event loop" in record.getMessage():
            self.said.append(record.getMessage())
            self.of.append(tuple(getattr(record, name, None) for name in ("run_id", "workflow", "attempt", "step")))
            self.blocked.set()


@pytest.fixture
def lines() -> Lines:
    return Lines()


def logger_for(lines: Lines) -> logging.Logger:
    logger = logging.getLogger("stepfast.test_blocked_loop")
    logger.handlers = [lines]
    return logger


def line_of(function: Callable[..., object], text: str) -> int:
    """The line of a function that holds these words."""
    source, first = inspect.getsourcelines(function)
    return first + next(index for index, line in enumerate(source) if text in line)


@pytest.mark.parametrize("way", ["step", "bounded step", "branch", "body"])
async def test_the_step_and_the_line_are_named(lines: Lines, way: str) -> None:
    app = Stepfast("sqlite://", settings=QUICK, logger=logger_for(lines))

    async def blocking() -> None:
        assert lines.blocked.wait(PATIENCE)  # blocks the loop until it was noticed

    async def branch(ctx: Context) -> None:
        await ctx.step("charge", blocking)

    @app.workflow(name="shop")
    async def work(ctx: Context) -> None:
        if way == "body":
            await blocking()
        elif way == "branch":
            await ctx.gather(ctx.branch(branch), ctx.step("other", lambda: 1))
        else:
            await ctx.options(name="charge", timeout=60 if way == "bounded step" else None).step(blocking)

    run = await app.start(work)
    async with app, app.worker():
        await run.result(timeout=PATIENCE)
        await eventually(lambda: len(lines.said) == 2)
    said, over = lines.said
    assert f"by run {run.id} (shop)" in said
    assert ("step 'charge'" in said) == (way != "body")
    assert lines.of == [(run.id, "shop", 1, None if way == "body" else "charge")] * 2
    assert f"at {HERE}:{line_of(blocking, 'lines.blocked')} in blocking" in said
    assert "moves again" in over


async def test_a_loop_that_moves_is_left_alone(lines: Lines) -> None:
    app = Stepfast("sqlite://", settings=QUICK, logger=logger_for(lines))

    @app.task
    def busy() -> None:
        time.sleep(1.5)  # in a thread, which blocks nobody

    run = await app.start(busy)
    async with app, app.worker():
        await run.result(timeout=PATIENCE)
    assert lines.said == []


async def test_it_is_not_said_again_and_again(lines: Lines) -> None:
    """One long block, and another soon after: one warning."""
    clock = StandingClock()
    context = replace(make_kit(blocked_after=5), logger=logger_for(lines))
    context.me.clock = clock
    watch = LoopWatch(context, threading.get_ident())

    def block() -> None:
        for _ in range(5):
            clock.time += 2
            looking = threading.Thread(target=watch.examine)
            looking.start()
            looking.join()

    watch.examine()
    block()
    await eventually(lambda: len(lines.said) == 2)
    watch.examine()
    block()
    await asyncio.sleep(0)
    assert len(lines.said) == 2
    assert sys._current_frames()
