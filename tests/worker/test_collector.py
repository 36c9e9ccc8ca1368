"""Python's garbage collector, and the turns of its threads, while workers work."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from stepfast import Context, Settings, Stepfast
from stepfast.engine.execution import Execution

EASED = 10_000


@pytest.fixture(autouse=True)
def usual() -> Iterator[tuple[int, int, int]]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield (700, 10, 10)
    gc.set_threshold(*before)


async def test_it_looks_less_often_until_the_last_worker_has_stopped(
    sqlite_url: str, usual: tuple[int, int, int]
) -> None:
    async with Stepfast(sqlite_url) as app:
        async with app.worker():
            assert gc.get_threshold() == (EASED, *usual[1:])
            async with app.worker():
                assert gc.get_threshold()[0] == EASED
            assert gc.get_threshold()[0] == EASED
        assert gc.get_threshold() == usual


async def test_more_slots_make_it_look_less_often_in_proportion(sqlite_url: str) -> None:
    async with Stepfast(sqlite_url) as app, app.worker(concurrency=500):
        assert gc.get_threshold()[0] == 5 * EASED


@pytest.mark.parametrize("own", [0, 50_000])
async def test_an_application_s_own_choice_is_left(sqlite_url: str, own: int) -> None:
    gc.set_threshold(own, 10, 10)
    async with Stepfast(sqlite_url) as app, app.worker():
        assert gc.get_threshold()[0] == own
    assert gc.get_threshold()[0] == own


async def test_it_can_be_left_alone(sqlite_url: str, usual: tuple[int, int, int]) -> None:
    async with Stepfast(sqlite_url, settings=Settings(gc_threshold=0)) as app, app.worker():
        assert gc.get_threshold() == usual


async def test_threads_take_shorter_turns_until_the_last_worker_has_stopped(sqlite_url: str) -> None:
    before = sys.getswitchinterval()
    async with Stepfast(sqlite_url) as app, app.worker():
        assert sys.getswitchinterval() == before  # by default it is left alone
    async with Stepfast(sqlite_url, settings=Settings(switch_interval=before / 5)) as app:
        async with app.worker(), app.worker():
            assert sys.getswitchinterval() == pytest.approx(before / 5)
        assert sys.getswitchinterval() == before
    async with Stepfast(sqlite_url, settings=Settings(switch_interval=2 * before)) as app, app.worker():
        assert sys.getswitchinterval() == before  # which is shorter


@pytest.mark.parametrize("plain", [False, True])
async def test_ended_runs_leave_nothing_that_only_the_collector_could_free(sqlite_url: str, plain: bool) -> None:
    async with Stepfast(sqlite_url) as app:

        async def double(number: int) -> int:
            return 2 * number

        def double_in_a_thread(number: int) -> int:
            return 2 * number

        @app.workflow()
        async def twice(ctx: Context, number: int) -> int:
            function: Any = double_in_a_thread if plain else double
            once: int = await ctx.step("first", function, number)
            return int(await ctx.step("second", function, once))

        await app.migrate()
        await app.start_many(twice, list(range(20)))
        gc.collect()
        of_other_tests = executions()  # of workers that a test has killed, perhaps
        gc.disable()
        try:
            await app.drain()
            left = [one for one in executions() if not any(one is other for other in of_other_tests)]
        finally:
            gc.enable()
        assert left == []


def executions() -> list[Execution]:
    return [thing for thing in gc.get_objects() if type(thing) is Execution]
