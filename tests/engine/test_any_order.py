"""Whatever finishes first and whoever dies when: a tree of branches gives the same result and the same records.

Random trees of steps, sleeps, signals, children and races, in branches, maps and gathers. Each is executed twice: once
undisturbed, and once by workers that are stopped or die in its midst.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepfast import Backoff, Context, NonRetryableError, Run, Settings, StepFailed, Stepfast
from stepfast.model.records import Batch
from tests.engine.conftest import MakeApp
from tests.support.crashing import dying_worker
from tests.support.engine import eventually

pytestmark = pytest.mark.enough_on("sqlite")

Tree = dict[str, Any]
AT_ONCE = Backoff(base=0)

# -- trees ---------------------------------------------------------------------------------------------------------

_turns = st.integers(0, 4)
_step = st.fixed_dictionaries({"kind": st.just("step"), "turns": _turns, "retries": st.integers(0, 2)})
_flaky = st.fixed_dictionaries({"kind": st.just("flaky"), "turns": _turns})
_broken = st.fixed_dictionaries({"kind": st.just("broken"), "turns": _turns})
_sleep = st.fixed_dictionaries({"kind": st.just("sleep"), "ms": st.integers(0, 30)})
_signal = st.fixed_dictionaries({"kind": st.just("signal")})
_child = st.fixed_dictionaries({"kind": st.just("child"), "turns": _turns})
_leaf = st.one_of(_step, _step, _step, _flaky, _broken, _sleep, _signal, _child)


def _larger(inner: st.SearchStrategy[Tree], least: int = 1) -> st.SearchStrategy[Tree]:
    parts = st.lists(inner, min_size=least, max_size=4)
    return st.one_of(
        st.fixed_dictionaries({"kind": st.just("line"), "parts": parts}),
        st.fixed_dictionaries({"kind": st.just("gather"), "parts": parts}),
        st.fixed_dictionaries({"kind": st.just("map"), "parts": parts, "limit": st.integers(1, 3)}),
        st.fixed_dictionaries({"kind": st.just("race"), "part": inner}),
    )


trees = _larger(st.recursive(_leaf, _larger, max_leaves=12), least=3)
disturbances = st.lists(
    st.tuples(st.sampled_from(["stop", "die before", "die after"]), st.integers(1, 15)), min_size=1, max_size=4
)


class World:
    """What the trees do, and how often it was done."""

    def __init__(self, app: Stepfast) -> None:
        self.app = app
        self.calls: Counter[tuple[str, str]] = Counter()
        """(label of the run, place in the tree) → calls of that step."""
        app.workflow(name="tree", max_attempts=100, backoff=AT_ONCE)(self.tree)
        app.task(name="child", max_attempts=100)(self.child)

    async def tree(self, ctx: Context, input: dict[str, Any]) -> Any:
        return await self.perform(ctx, input["tree"], input["label"], "t")

    async def child(self, input: list[Any]) -> str:
        label, place, turns = input
        return await self.work(label, place, turns, 0)

    async def perform(self, ctx: Context, tree: Tree, label: str, place: str) -> Any:
        kind, parts = tree["kind"], list(enumerate(tree.get("parts", [])))
        if kind == "line":
            return [await self.perform(ctx, part, label, f"{place}.{n}") for n, part in parts]
        if kind == "gather":
            return await ctx.gather(*(ctx.branch(self.perform, part, label, f"{place}.{n}") for n, part in parts))
        if kind == "map":
            return await ctx.map(lambda ctx, item: self.perform(ctx, item[1], label, f"{place}.{item[0]}"), parts,
                                 limit=tree["limit"])  # fmt: skip
        if kind == "race":
            branch = ctx.branch(self.perform, tree["part"], label, f"{place}.r")
            return list(await ctx.first(branch=branch, never=ctx.wait_signal("never")))
        return await self.leaf(ctx, tree, label, place)

    async def leaf(self, ctx: Context, tree: Tree, label: str, place: str) -> Any:
        kind = tree["kind"]
        if kind == "sleep":
            return await ctx.sleep(tree["ms"] / 1000)
        if kind == "signal":
            return await ctx.wait_signal(place)
        if kind == "child":
            return await ctx.call("child", [label, place, tree["turns"]])
        if kind == "step":
            retries = tree["retries"]
            steps = ctx.options(retries=retries, backoff=AT_ONCE)
            return await steps.step(f"step {place}", self.work, label, place, tree["turns"], retries)
        if kind == "flaky":
            return await ctx.step(f"flaky {place}", self.work, label, place, tree["turns"], 1)
        try:
            return await ctx.step(f"broken {place}", self.break_down, label, place, tree["turns"])
        except StepFailed as error:
            return f"caught {error.message}"

    async def work(self, label: str, place: str, turns: int, failures: int) -> str:
        """Fails a number of times, then succeeds; each success is told apart."""
        self.calls[label, place] += 1
        number = self.calls[label, place]
        for _ in range(turns):
            await asyncio.sleep(0)
        if number <= failures:
            raise ValueError(f"call {number}")
        return f"{place} by call {number}"

    async def break_down(self, label: str, place: str, turns: int) -> None:
        self.calls[label, place] += 1
        for _ in range(turns):
            await asyncio.sleep(0)
        raise NonRetryableError(place)

    def called(self, label: str) -> int:
        return sum(count for (of, _), count in self.calls.items() if of == label)

    # -- running them ----------------------------------------------------------------------------------------------

    async def start(self, tree: Tree, label: str) -> Run[Any]:
        run = await self.app.start("tree", {"tree": tree, "label": label})
        for place in signals(tree, "t"):
            await run.signal(place, f"signal {place}")
        return run

    async def finished(self, run: Run[Any]) -> Any:
        async with self.app.worker():
            return await run.result(timeout=20)

    async def disturb(self, run: Run[Any], label: str, how: str, after: int) -> None:
        """Let a worker work until it has called so many steps or made so many flushes, then take it away."""

        async def over() -> bool:
            return await run.status() == "completed"

        if how == "stop":
            enough = self.called(label) + after
            async with self.app.worker(shutdown_grace=0):
                await eventually(lambda: self.called(label) >= enough or over())
            return
        flushes = 0

        def count(batch: Batch) -> bool:
            nonlocal flushes
            flushes += 1
            return flushes >= after

        async with dying_worker(self.app, count, written=how == "die after") as crash:
            await eventually(lambda: crash.is_dead or over())


def signals(tree: Tree, place: str) -> list[str]:
    """The places of a tree that wait for a signal."""
    found = [place] if tree["kind"] == "signal" else []
    for number, part in enumerate(tree.get("parts", [])):
        found += signals(part, f"{place}.{number}")
    return found + (signals(tree["part"], f"{place}.r") if "part" in tree else [])


def needed_calls(tree: Tree, place: str) -> dict[str, int]:
    """How often each step of a tree has to be called if nobody dies."""
    own = {"step": tree.get("retries", 0) + 1, "flaky": 2, "broken": 1, "child": 1}
    found = {place: own[tree["kind"]]} if tree["kind"] in own else {}
    for number, part in enumerate(tree.get("parts", [])):
        found |= needed_calls(part, f"{place}.{number}")
    return found | (needed_calls(tree["part"], f"{place}.r") if "part" in tree else {})


def without_numbers(result: Any) -> Any:
    """Which call of a step it was that succeeded depends on who died; all else does not."""
    if isinstance(result, list):
        return [without_numbers(part) for part in result]
    return result.split(" by call ")[0] if isinstance(result, str) else result


def texts(result: Any) -> set[str]:
    """Every text in a result."""
    if isinstance(result, list):
        return set().union(*(texts(part) for part in result)) if result else set()
    return {result} if isinstance(result, str) and " by call " in result else set()


async def records(run: Run[Any]) -> dict[tuple[str, int], tuple[str, str, str]]:
    """What is recorded where: kind, name and status."""
    steps = await run.steps()
    found = {(s.branch, s.position): (s.kind, s.name, s.status) for s in steps}
    assert len(found) == len(steps), "one place is recorded twice"
    return found


@asynccontextmanager
async def world_of(make_app: MakeApp, moment: float) -> AsyncIterator[World]:
    app = make_app(settings=Settings(inline_wait=moment, max_losses=1000))
    try:
        yield World(app)
    finally:
        await app.close()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("moment", [0.0, 2.0], ids=["released", "in memory"])
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(tree=trees, disturbed_by=disturbances)
async def test_a_tree_comes_out_the_same_whoever_dies_when(
    make_app: MakeApp, moment: float, tree: Tree, disturbed_by: list[tuple[str, int]]
) -> None:
    """Same result, same records; each step is recorded once, and done again only if the worker
    died before that."""
    async with world_of(make_app, moment) as world:
        quiet = await world.start(tree, "quiet")
        expected = await world.finished(quiet)
        disturbed = await world.start(tree, "disturbed")
        for how, after in disturbed_by:
            await world.disturb(disturbed, "disturbed", how, after)
        result = await world.finished(disturbed)

        assert without_numbers(result) == without_numbers(expected)
        assert await records(disturbed) == await records(quiet)
        outputs = texts([step.output for step in await disturbed.steps()])
        assert texts(result) <= outputs, "the code saw a result that is not recorded"
        for place, count in needed_calls(tree, "t").items():
            assert world.calls["quiet", place] == count
            assert world.calls["disturbed", place] <= count + len(disturbed_by)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("moment", [0.0, 2.0], ids=["released", "in memory"])
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(tree=trees, disturbed_by=disturbances)
async def test_many_trees_come_out_the_same_whoever_dies_when(
    make_app: MakeApp, moment: float, tree: Tree, disturbed_by: list[tuple[str, int]]
) -> None:
    """The same, longer."""
    await test_a_tree_comes_out_the_same_whoever_dies_when.hypothesis.inner_test(make_app, moment, tree, disturbed_by)
