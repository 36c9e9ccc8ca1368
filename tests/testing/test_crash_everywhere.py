"""A worker dies before and after every commit: pure code comes to the same end, and impure code is found."""

from __future__ import annotations

import datetime
import itertools
import os
import random
import re
import sqlite3
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from stepfast import Context, DagContext, Run, StepCall, Stepfast, SyncContext, step
from stepfast.engine.host import current_call
from stepfast.testing import Lab, crash_everywhere
from stepfast.testing.crashes import Trace, first_difference, trace_of

app = Stepfast("sqlite:///must-not-be-made.db")
undone: list[str] = []


async def refund(receipt: str, order: str) -> None:
    undone.append(order)


@step(retries=1, compensate=refund)
async def charge(order: str) -> str:
    return f"charged {order}"


@step
def pack(order: str, box: str) -> str:
    return f"{order} in {box}"


def note(connection: sqlite3.Connection, text: str) -> str:
    return text.upper()


@app.workflow
async def child(ctx: Context, order: str) -> str:
    await ctx.sleep(10)
    return await ctx.step(pack, order, str(ctx.uuid()))


@app.workflow(max_attempts=1)
async def checkout(ctx: Context, order: str) -> str:
    receipt = await ctx.step(charge, order)
    await ctx.transaction(note, f"{ctx.random()} {ctx.now()} {ctx.run_id}")
    approved = await ctx.wait_signal("approved", type=bool, timeout=timedelta(days=3))
    packed = await ctx.gather(ctx.call(child, order), ctx.call(child, f"{order}+"), ctx.step(pack, order, "a box"))
    await ctx.set("packed", packed)
    return f"{receipt}, {len(packed)}, {approved}"


@app.workflow(max_attempts=1)
async def returned(ctx: Context, order: str) -> str:
    receipt = await ctx.step(charge, order)
    if not await ctx.wait_signal("approved", type=bool):
        raise ValueError("not approved")
    return receipt


async def approve(lab: Lab, run: Run[Any]) -> None:
    await lab.advance(timedelta(hours=1))
    await run.signal("approved", True)


def refuse(lab: Lab, run: Run[Any]) -> Any:
    return run.signal("approved", False)


async def test_a_pure_workflow_ends_alike_wherever_its_worker_dies() -> None:
    report = await crash_everywhere(app, checkout, "o-1", drive=approve)
    assert (report.status, report.result) == ("completed", "charged o-1, 3, True")
    assert report.commits >= 8
    # Before and after each record. What is not a record may share a commit in one run, and have its own in the next.
    assert report.crashes >= 2 * report.records
    assert report.records >= 8


@app.workflow(max_attempts=1)
async def undone_after_branches(ctx: Context, order: str) -> None:
    async def called(ctx: Context) -> None:
        await ctx.call(slept)
        await ctx.step(charge, f"{order}/called")

    async def told(ctx: Context) -> None:
        await ctx.wait_signal("approved")
        await ctx.step(charge, f"{order}/told")

    async def charged_late(ctx: Context) -> None:
        for box in ("small", "large"):
            await ctx.step(pack, order, box)
        await ctx.step(charge, f"{order}/late")

    await ctx.wait_signal("begin")
    await ctx.gather(ctx.branch(called), ctx.branch(charged_late), ctx.branch(told))
    raise ValueError("all of it was in vain")


@app.workflow
async def slept(ctx: Context) -> None:
    await ctx.sleep(10)


async def begin(lab: Lab, run: Run[Any]) -> None:
    await run.signal("approved")
    await run.signal("begin")


@pytest.mark.thorough
async def test_a_run_with_branches_is_undone_alike_wherever_its_worker_dies() -> None:
    """After a crash what is recorded already comes at once, so that another branch may record something first."""
    report = await crash_everywhere(app, undone_after_branches, "o-1", drive=begin)
    assert (report.status, report.crashes >= 20) == ("compensated", True)


async def test_undos_are_compared_by_what_they_undo() -> None:
    """The number under which an undo is stored is that of the record that it undoes: it depends on which branch records
    something first."""

    @app.workflow(max_attempts=1)
    async def raced(ctx: Context) -> None:
        async def charged(ctx: Context, name: str) -> None:
            await ctx.wait_signal(name)
            await ctx.step(charge, name)

        await ctx.map(charged, ["a", "b"])
        raise ValueError("all of it was in vain")

    traces = []
    for names in ("ab", "ba"):
        async with Lab(app) as lab:
            run = await lab.start(raced)
            for name in names:
                await run.signal(name)
                await lab.settle()
            traces.append(await trace_of(lab.app, run))
    assert first_difference(*traces) is None
    assert "the undo of record 1 of branch '0.1'" in {str(address) for address in traces[0].records}


async def test_children_that_go_on_after_the_run_are_compared_when_they_have_ended() -> None:
    """How far they are when the run ends depends on when the worker died."""
    tried = step(name="charge", retries=1)(lambda: _fail_once())
    with_children = Stepfast("sqlite://")

    @with_children.workflow
    async def slow(ctx: Context, number: int) -> int:
        await ctx.step(tried)
        return number

    @with_children.workflow
    async def parent(ctx: Context) -> str:
        await ctx.first(ended=ctx.call(slow, 2), late=ctx.sleep(0.2))
        return "done"

    report = await crash_everywhere(with_children, parent)
    assert (report.status, report.result) == ("completed", "done")


async def test_children_that_never_end_are_left_out() -> None:
    """Of those that have not ended when enough time has passed nothing is compared."""
    ended = {"run 2 beside it": "child: completed"}
    whole = Trace("completed", 1, None, {}, dict(ended), ["run 2 beside it"], at_rest=False)
    later = Trace("completed", 1, None, {}, dict(ended), ["run 2 beside it", "run 3 beside it"], at_rest=False)
    later.others["run 3 beside it"] = "loop: completed"
    assert first_difference(whole, later) is None
    later.others["run 2 beside it"] = "child: failed"
    assert "run 2 beside it" in str(first_difference(whole, later))


def _fail_once() -> None:
    call = current_call.get()
    assert isinstance(call, StepCall)
    if call.number_of_try == 1:
        raise ValueError("once")


@pytest.mark.thorough
async def test_a_run_that_fails_is_undone_alike_wherever_its_worker_dies() -> None:
    report = await crash_everywhere(app, returned, "o-1", drive=refuse)
    assert report.status == "compensated"
    assert len(undone) >= report.crashes


async def test_plain_functions_and_dags_are_cut_alike() -> None:
    mine = Stepfast("sqlite://")

    @mine.workflow
    def plain(ctx: SyncContext, order: str) -> str:
        first = ctx.step(pack, order, "one")
        ctx.sleep(60)
        return ctx.step(pack, first, "two")

    graph = mine.dag("graph")

    @graph.step
    async def first(ctx: DagContext) -> int:
        return 1

    @graph.step(after=["first"])
    async def second(ctx: DagContext) -> int:
        return await ctx.step("add", lambda: 2)

    assert (await crash_everywhere(mine, plain, "o-1")).result == "o-1 in one in two"
    assert (await crash_everywhere(mine, graph, {})).result == {"first": 1, "second": 2}


class Thing:
    """Hashed by where it lies in memory."""

    def __init__(self, name: str) -> None:
        self.name = name


_numbers = itertools.count()
_keep: list[object] = []


def _order_of_a_set() -> str:
    things = [Thing(str(number)) for number in range(20)]
    _keep.extend(random.sample([object() for _ in range(100)], 50))  # so that the next ones lie elsewhere
    return "".join(thing.name for thing in set(things))


def _environment() -> str:
    os.environ["STEPFAST_TEST_IMPURE"] = str(int(os.environ.get("STEPFAST_TEST_IMPURE", "0")) + 1)
    return os.environ["STEPFAST_TEST_IMPURE"]


def _file(path: Path) -> str:
    path.write_text(path.read_text() + "x" if path.exists() else "x")
    return path.read_text()


def _address() -> int:
    _keep.append(object())
    return id(_keep[-1])


IMPURE: dict[str, Callable[[Path], Any]] = {
    "the wall clock": lambda path: time.time(),
    "the date": lambda path: datetime.datetime.now(datetime.UTC).isoformat(),
    "a stopwatch": lambda path: time.perf_counter_ns(),
    "chance": lambda path: random.random(),
    "a random id": lambda path: str(uuid.uuid4()),
    "the system's randomness": lambda path: os.urandom(4).hex(),
    "the environment": lambda path: _environment(),
    "the order of a set": lambda path: _order_of_a_set(),
    "a counter of the module": lambda path: next(_numbers),
    "a file": lambda path: _file(path / "state"),
    "an address in memory": lambda path: _address(),
}
WAYS = ("argument", "branch", "result", "pause")
"""How something impure gets into a run."""


@pytest.mark.parametrize(("kind", "how"), list(zip(IMPURE, itertools.cycle(WAYS), strict=False)))
async def test_impure_code_is_found(kind: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPFAST_TEST_IMPURE", "0")
    mine = Stepfast("sqlite://")

    @mine.workflow
    async def impure(ctx: Context) -> str:
        await ctx.step(pack, "o-1", "a box")
        drawn = str(IMPURE[kind](tmp_path))
        if how == "argument":
            await ctx.step(pack, "o-2", drawn)
        elif how == "branch":
            await ctx.step(f"way {drawn}"[:100], pack, "o-2", "a box")
        elif how == "pause":
            await ctx.sleep(1 + hash(drawn) % 1000)
        return drawn if how == "result" else ""

    with pytest.raises(AssertionError) as caught:
        await crash_everywhere(mine, impure)
    said = str(caught.value)
    assert re.search(r"the worker died just (before|after) commit \d+ of \d+", said)
    assert ("the end of the run" if how == "result" else f"(at {Path(__file__).name}:") in said.replace(
        str(Path(__file__).parent) + "/", ""
    )


async def test_a_step_that_is_another_each_time_is_replaced() -> None:
    mine = Stepfast("sqlite://")

    @step
    async def draw() -> float:
        return random.random()

    @mine.workflow
    async def drawing(ctx: Context) -> float:
        return await ctx.step(draw)

    async def three() -> float:
        return 3.0

    with pytest.raises(AssertionError, match="step 'draw'"):
        await crash_everywhere(mine, drawing)
    assert (await crash_everywhere(mine, drawing, replace={draw: three})).result == 3.0
