"""Two branches that wait for different things: each continues when its own wait is over, whatever the other waits for.

Rule 49: a call is held back until the code has asked for its records, and no longer.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from stepfast import Backoff, Context, Run, RunNotFound, Settings, Stepfast
from stepfast.model.ids import child_id
from stepfast.testing import Lab
from tests.engine.conftest import MakeApp
from tests.remote_steps.memory import MemoryTransport, echo
from tests.support.engine import eventually
from tests.support.workflows import listener

ENDED = ("call", "start", "signal", "timed", "first", "until", "timed until", "remote")
"""Waits that the test ends."""
TIMED = ("sleep", "retry", "transaction")
"""Waits that end when their time has come."""
SHAPES = ("gather", "map", "nested", "nested map")
SOON, LATE = 0.05, 3600.0
"""Seconds that these take in the first branch, and in the other one."""


Input = tuple[str, str, str]
"""What the first branch waits for, what the other one waits for, and how they are begun."""


@dataclass
class Outside:
    """What the test knows of the runs, and what it lets happen."""

    so: set[tuple[str, str]] = field(default_factory=set)
    """(run, branch) of checks that are true by now."""
    went: set[tuple[str, str]] = field(default_factory=set)
    """(run, where) that the code has come to."""
    tries: Counter[tuple[str, str]] = field(default_factory=Counter)
    transport: MemoryTransport = field(default_factory=MemoryTransport)

    def serve(self, run_id: str, name: str) -> bool:
        """Serve a remote step of a run, if it was sent already."""
        tasks = self.transport.tasks
        task = next((task for task in tasks.values() if (task.run_id, task.name) == (run_id, name)), None)
        if task is not None:
            del tasks[task.step_id]
            self.transport.done[task.step_id] = echo(task)
        return task is not None


def add_workflows(app: Stepfast, outside: Outside) -> None:
    """``pair`` waits in two branches; ``child`` waits until it is told to end."""
    listener(app, "end", name="child")

    async def failing_once(run_id: str, which: str) -> None:
        outside.tries[run_id, which] += 1
        if outside.tries[run_id, which] == 1:
            raise ValueError("once")

    def failing_once_inside(connection: Any, run_id: str, which: str) -> None:
        outside.tries[run_id, which] += 1
        if outside.tries[run_id, which] == 1:
            raise ValueError("once")

    async def is_so(run_id: str, which: str) -> bool:
        return (run_id, which) in outside.so

    async def go(run_id: str, where: str) -> None:
        outside.went.add((run_id, where))

    async def wait(ctx: Context, kind: str, which: str) -> None:
        seconds = SOON if which == "a" else LATE
        again = ctx.options(retries=1, backoff=Backoff(base=seconds, jitter=False))
        match kind:
            case "call":
                await ctx.call("child")
            case "start":
                await (await ctx.start("child")).result()
            case "signal":
                await ctx.wait_signal(which)
            case "timed":
                await ctx.wait_signal(which, timeout=2 * LATE)
            case "first":
                await ctx.first(told=ctx.wait_signal(which), late=ctx.sleep(2 * LATE))
            case "until":
                await ctx.wait_until(is_so, ctx.run_id, which, every=2 * LATE)
            case "timed until":
                await ctx.wait_until(is_so, ctx.run_id, which, every=2 * LATE, timeout=4 * LATE)
            case "remote":
                await ctx.remote(which)
            case "sleep":
                await ctx.sleep(seconds)
            case "retry":
                await again.step(failing_once, ctx.run_id, which)
            case "transaction":
                await again.transaction(failing_once_inside, ctx.run_id, which)

    async def line(ctx: Context, work: tuple[str, str]) -> None:
        kind, which = work
        await wait(ctx, kind, which)
        await ctx.step(go, ctx.run_id, which)
        if which == "a":
            await ctx.wait_signal("again")
            await ctx.step(go, ctx.run_id, "again")

    async def inner(ctx: Context, kinds: tuple[str, str]) -> None:
        await both(ctx, kinds, "gather")

    async def both(ctx: Context, kinds: tuple[str, str], shape: str) -> None:
        first, second = (kinds[0], "a"), (kinds[1], "b")
        match shape:
            case "gather":
                await ctx.gather(ctx.branch(line, first), ctx.branch(line, second))
            case "map":
                await ctx.map(line, [first, second])
            case "nested":
                await ctx.gather(ctx.branch(inner, kinds), ctx.branch(line, ("signal", "c")))
            case "nested map":
                await ctx.map(inner, [kinds])

    @app.workflow
    async def pair(ctx: Context, input: Input) -> str:
        await both(ctx, input[:2], input[2])
        return "both"


WHERE = {"gather": ("0", "1"), "map": ("0.0", "0.1"), "nested": ("0/0", "0/1"), "nested map": ("0.0/0", "0.0/1")}
"""The branches of each shape."""


async def end(app: Stepfast, outside: Outside, run: Run[Any], what: Input, which: str) -> None:
    """End what a branch waits for, unless time does."""
    if which == "again" or (which == "c" and what[2] == "nested"):
        await run.signal(which)
    if which not in "ab":
        return
    number = "ab".index(which)
    kind, branch = what[number], WHERE[what[2]][number]
    match kind:
        case "call" | "start":
            await tell(app.get(child_id(run.id, branch, 0)), "end")
        case "signal" | "timed" | "first":
            await run.signal(which)
        case "until" | "timed until":
            outside.so.add((run.id, which))
            await run.signal("knock")  # a signal of any name makes the checks of its run due
        case "remote":
            await eventually(lambda: outside.serve(run.id, which))


async def tell(run: Run[Any], name: str) -> None:
    """Signal a run as soon as it is there."""

    async def told() -> bool:
        with contextlib.suppress(RunNotFound):
            await run.signal(name)
            return True
        return False

    await eventually(told)


async def waits(run: Run[Any]) -> bool:
    return await run.status() == "waiting"


async def play(app: Stepfast, outside: Outside, pairs: list[Input], at_rest: bool) -> None:
    """Each pair is a run. The wait of its first branch ends, twice; then that of the other one, unless that would take
    an hour. ``at_rest``: each time only when the run has given its slot back."""
    runs = {pair: await app.start("pair", pair) for pair in pairs}
    async with app.worker(concurrency=1000):
        for which in ("a", "again"):
            for pair, run in runs.items():
                if at_rest:
                    await eventually(lambda: waits(run))  # noqa: B023
                await end(app, outside, run, pair, which)
            await come_to(which, runs, outside)
        ending = {pair: run for pair, run in runs.items() if pair[1] not in TIMED}
        for pair, run in ending.items():
            await end(app, outside, run, pair, "b")
            await end(app, outside, run, pair, "c")
        for run in ending.values():
            assert await run.result(timeout=20) == "both"


async def come_to(where: str, runs: dict[Input, Run[Any]], outside: Outside) -> None:
    """Until the code of every run has come to a place."""
    hang = set(runs)

    def all_there() -> bool:
        hang.difference_update([pair for pair in hang if (runs[pair].id, where) in outside.went])
        return not hang

    try:
        await eventually(all_there)
    except AssertionError:
        raise AssertionError(f"did not come to {where!r}: {sorted(hang)}") from None


def make(make_app: MakeApp, moment: float) -> tuple[Stepfast, Outside]:
    """The application, and what is outside of its runs."""
    outside = Outside()
    app = make_app(
        settings=Settings(inline_wait=moment, sweep_interval=0.2, poll_interval=0.05), transport=outside.transport
    )
    add_workflows(app, outside)
    return app, outside


ALL = [(a, b) for a in ENDED + TIMED for b in ENDED + TIMED]
WITH_CHILDREN = [pair for pair in ALL if pair[0] == "call" and pair[1] in ENDED] + [
    ("start", "call"),
    ("until", "call"),
]
"""Those that hang most easily: a call has two records, that of its start and its outcome."""

pytestmark = pytest.mark.enough_on("sqlite")
at_any_moment = pytest.mark.parametrize("moment", [0.0, 0.1, 5.0], ids=["released", "released soon", "in memory"])


@at_any_moment
async def test_branches_that_call_children_do_not_wait_for_each_other(make_app: MakeApp, moment: float) -> None:
    app, outside = make(make_app, moment)
    pairs = [(*pair, SHAPES[number % len(SHAPES)]) for number, pair in enumerate(WITH_CHILDREN)]
    await play(app, outside, pairs, at_rest=moment < 1)


@pytest.mark.thorough
@at_any_moment
@pytest.mark.parametrize("shape", SHAPES)
async def test_no_branch_waits_for_what_another_waits_for(make_app: MakeApp, moment: float, shape: str) -> None:
    app, outside = make(make_app, moment)
    await play(app, outside, [(*pair, shape) for pair in ALL], at_rest=moment < 1)


async def play_in_lab(app: Stepfast, outside: Outside, pairs: list[Input]) -> None:
    """The same where waits of an hour take no time; all runs come to their end."""
    async with Lab(app) as lab:
        runs = {pair: await lab.start("pair", pair) for pair in pairs}
        for which, seconds in (("a", SOON), ("again", SOON), ("b", LATE)):
            for pair, run in runs.items():
                await end(lab.app, outside, run, pair, which)
            await lab.advance(seconds)
            hang = [pair for pair, run in runs.items() if (run.id, which) not in outside.went]
            assert not hang, f"did not come to {which!r}: {hang}"
        for pair, run in runs.items():
            await end(lab.app, outside, run, pair, "c")
        await lab.settle()
        assert {await run.result() for run in runs.values()} == {"both"}


async def test_no_branch_waits_for_another_in_a_lab(make_app: MakeApp) -> None:
    pairs = [pair for pair in ALL if {"call", "timed until"} & {*pair} and "remote" not in pair]
    await play_in_lab(*make(make_app, 2.0), [(*pair, "gather") for pair in pairs])


@pytest.mark.thorough
@pytest.mark.parametrize("moment", [0.0, 2.0], ids=["released", "in memory"])
@pytest.mark.parametrize("shape", SHAPES)
async def test_no_branch_waits_for_another_in_a_lab_in_any_shape(make_app: MakeApp, moment: float, shape: str) -> None:
    await play_in_lab(*make(make_app, moment), [(*pair, shape) for pair in ALL if "remote" not in pair])
