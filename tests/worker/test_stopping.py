"""Signals of the process: every worker of the event loop hears them, and whoever heard them before does so again."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator

import pytest

from stepfast import Stepfast
from stepfast.worker.shutdown import SIGNALS
from tests.support.engine import PATIENCE, eventually


@pytest.fixture
def handlers() -> Iterator[list[int]]:
    """A program that has handlers of its own; what they heard."""
    heard: list[int] = []
    before = {number: signal.signal(number, lambda number, _: heard.append(number)) for number in SIGNALS}
    yield heard
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
async def test_a_signal_ends_all_workers_of_the_loop(handlers: list[int], number: signal.Signals) -> None:
    async with Stepfast("sqlite://") as one, Stepfast("sqlite://") as other:
        works = [asyncio.create_task(app.work()) for app in (one, other)]
        for app in (one, other):
            await eventually((await app.store()).workers)
        signal.raise_signal(number)
        done, _ = await asyncio.wait(works, timeout=PATIENCE)
        assert done == set(works) and handlers == []
        signal.raise_signal(number)
        assert handlers == [number], "the program's own again"


async def test_one_that_leaves_takes_the_signals_from_no_other(handlers: list[int]) -> None:
    async with Stepfast("sqlite://") as one, Stepfast("sqlite://") as other:
        leaves, stays = (asyncio.create_task(app.work()) for app in (one, other))
        for app in (one, other):
            await eventually((await app.store()).workers)
        leaves.cancel()
        await asyncio.wait((leaves,), timeout=PATIENCE)
        assert not stays.done()
        signal.raise_signal(signal.SIGTERM)
        await asyncio.wait_for(stays, PATIENCE)
    assert handlers == []
