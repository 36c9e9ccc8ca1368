"""Code that changed under a run: noticed, reported with both steps and lines, repairable; and ``ctx.patched``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stepfast import (
    Backoff,
    Context,
    NonDeterminismError,
    NonRetryableError,
    Run,
    RunInfo,
    Settings,
    StepFailed,
    Stepfast,
)
from stepfast.engine.history import PAGE
from tests.engine.conftest import ON_SQLITE, MakeApp
from tests.support.both_kinds import workflow_of
from tests.support.engine import Calls, Gate, drained, eventually, failure, finished, interrupt, make_due, replayed

pytestmark = ON_SQLITE

Body = Callable[[Context], Awaitable[object]]


async def work() -> str:
    return "done"


def register(app: Stepfast, body: Body, **options: Any) -> None:
    """The code of the workflow "order" in one application; another application has other code under that name."""
    app.workflow(name="order", **options)(body)


def line_of(body: Body, text: str) -> str:
    lines, start = inspect.getsourcelines(body)
    [number] = [n for n, line in enumerate(lines) if text in line]
    return f"test_non_determinism.py:{start + number}"


class Scene:
    """A run with steps a, b and c recorded, interrupted before its end; other applications have other code for it."""

    def __init__(self, make_app: MakeApp) -> None:
        self.make_app = make_app
        self.gate = Gate()

        async def order(ctx: Context) -> str:
            for name in ("a", "b", "c"):
                await ctx.step(name, work)  # recorded here
            await ctx.step("gate", self.gate.passing)
            return "as recorded"

        self.body = order
        self.recorded = self.changed(order)
        self.run: Any = None

    async def interrupted(self) -> None:
        self.run = await self.recorded.start("order")
        await interrupt(self.recorded, self.gate)
        self.gate.open()

    async def continued(self, body: Body) -> RunInfo:
        """What becomes of the run by other code."""
        await self.interrupted()
        await self.changed(body).drain()
        info: RunInfo = await self.run.info()
        return info

    def changed(self, body: Body) -> Stepfast:
        app = self.make_app()
        register(app, body, max_attempts=5)
        return app


@pytest.fixture
def scene(make_app: MakeApp) -> Scene:
    return Scene(make_app)


def steps(*names: str) -> Body:
    """Code that calls these steps."""

    async def order(ctx: Context) -> None:
        for name in names:
            await ctx.step(name, work)  # now here

    return order


@pytest.mark.parametrize(
    ("now", "named"),
    [("a bee c", "bee"), ("a c b", "c"), ("a new b c", "new"), ("a c", "c"), ("a b", "")],
    ids=["renamed", "reordered", "inserted", "removed", "removed at the end"],
)
async def test_changed_steps_end_the_run_and_the_error_says_where(scene: Scene, now: str, named: str) -> None:
    """Named are the recorded step, the step now called, and the source lines of both."""
    body = steps(*now.split())
    await scene.continued(body)
    error = await failure(scene.run)
    assert error.reason == "non_determinism"
    assert error.error_type is not None and error.error_type.endswith("NonDeterminismError")
    assert line_of(scene.body, "recorded here") in error.message
    if named:
        assert "step 'b'" in error.message and f"step {named!r}" in error.message
        assert line_of(body, "now here") in error.message
        assert "ctx.patched" in error.message and PAGE in error.message
    else:
        assert "'c'" in error.message


async def test_steps_added_after_the_last_record_are_no_divergence(scene: Scene) -> None:
    assert (await scene.continued(steps("a", "b", "c", "one more"))).status == "completed"


async def test_a_divergence_uses_no_attempts_and_runs_nothing(scene: Scene, calls: Calls) -> None:
    async def other(ctx: Context) -> None:
        calls.hit("attempt")
        await ctx.step("another", lambda: calls.hit("another"))

    info = await scene.continued(other)
    assert (info.status, info.reason, info.attempt) == ("failed", "non_determinism", 1)
    assert calls == {"attempt": 1}
    assert [s.name for s in await scene.run.steps()] == ["a", "b", "c"]


async def test_swallowing_the_error_changes_nothing(scene: Scene, calls: Calls) -> None:
    """Rule 20: the context is closed; every further call raises it again, and the result is discarded."""
    seen: list[BaseException] = []

    async def stubborn(ctx: Context) -> str:
        for _ in range(3):
            try:
                await ctx.step("another", lambda: calls.hit("another"))
            except Exception as error:
                seen.append(error)
        return "all is well"

    info = await scene.continued(stubborn)
    assert (info.status, info.reason, info.output) == ("failed", "non_determinism", None)
    assert [type(error) for error in seen] == [NonDeterminismError] * 3
    assert calls["another"] == 0


async def test_an_operator_can_retry_after_the_code_was_corrected(scene: Scene) -> None:
    assert (await scene.continued(steps("a", "bee", "c"))).status == "failed"
    await scene.run.retry()
    assert await finished(scene.recorded, scene.run) == "as recorded"


async def test_a_divergence_in_a_plain_def_workflow(make_app: MakeApp) -> None:
    """Rule 30."""
    gate = Gate()
    one, other = make_app(), make_app()

    def first(ctx: object) -> None:
        ctx.step("a", lambda: 1)  # type: ignore[attr-defined]
        ctx.step("gate", gate.passing)  # type: ignore[attr-defined]

    def second(ctx: object) -> str:
        try:
            ctx.step("other", lambda: 1)  # type: ignore[attr-defined]
        except Exception:
            pass
        return "swallowed"

    one.workflow(name="order")(first)
    other.workflow(name="order")(second)
    run = await one.start("order")
    await interrupt(one, gate)
    await other.drain()
    caught = await failure(run, r"'a' .*'other'")
    assert caught.reason == "non_determinism"
    assert len(re.findall(r"test_non_determinism\.py:\d+", caught.message)) == 2


async def test_a_loop_that_turns_once_less_is_noticed(make_app: MakeApp) -> None:
    gate = Gate()
    one, other = make_app(), make_app()

    def looping(turns: int) -> Body:
        async def order(ctx: Context) -> None:
            for _ in range(turns):
                await ctx.step("turn", work)
            await ctx.step("gate", gate.passing)

        return order

    register(one, looping(3))
    register(other, looping(2))
    run = await one.start("order")
    await interrupt(one, gate)
    await other.drain()
    await failure(run, r"'turn' .*'gate'")


# -- rule 22: while the recorded code still runs somewhere, the run goes back to it --------------------------------


async def test_while_a_worker_with_the_recorded_code_lives_the_run_goes_back_to_it(scene: Scene) -> None:
    """Rule 22: a rolling deployment must not fail the runs of the old code."""
    await scene.interrupted()
    new = scene.changed(steps("a", "bee", "c"))

    async def given_back() -> bool:
        info = await scene.run.info()
        return info.status == "queued" and info.due_at is not None

    async with scene.recorded.worker(queues=["elsewhere"]):  # lives, but does not take this run
        async with new.worker(shutdown_grace=0):
            await eventually(given_back)
        info = await scene.run.info()
        assert (info.error, info.reason, info.attempt) == (None, None, 1)
        assert await finished(scene.recorded, scene.run) == "as recorded"


async def test_when_no_worker_has_the_recorded_code_the_run_ends(scene: Scene) -> None:
    """Rule 22: a live worker with yet other code does not help."""
    async with scene.changed(steps("a", "c", "b")).worker(queues=["elsewhere"]):
        assert (await scene.continued(steps("a", "bee", "c"))).reason == "non_determinism"


async def test_a_divergence_of_the_very_code_that_recorded_is_not_given_back(make_app: MakeApp) -> None:
    """Rule 22: code that does not do the same twice ends, even with many workers that have it."""
    gate, names = Gate(), iter("ab")
    app = make_app()

    async def fickle(ctx: Context) -> None:
        await ctx.step(next(names), work)
        await ctx.step("gate", gate.passing)

    register(app, fickle)
    run = await app.start("order")
    await interrupt(app, gate)
    async with app.worker(queues=["elsewhere"]):
        await app.drain()
    assert (await run.info()).reason == "non_determinism"


def patching(app: Stepfast, body: Body) -> Stepfast:
    register(app, body, backoff=Backoff(base=600, max=600))
    return app


async def say(text: str) -> str:
    return text


async def old(ctx: Context) -> list[str]:
    return [await ctx.step("a", say, "a"), await ctx.step("b", say, "old b")]


async def patched(ctx: Context) -> list[str]:
    results = [await ctx.step("a", say, "a")]
    if ctx.patched("new b"):
        results += [await ctx.step("check", say, "checked"), await ctx.step("new b", say, "new b")]
    else:
        results.append(await ctx.step("b", say, "old b"))
    return results


def with_gate(body: Body, gate: Gate, *, first: bool = False) -> Body:
    """Code that stops at a gate, after the body or before it."""

    async def order(ctx: Context) -> Any:
        if first:
            await ctx.step("gate", gate.passing)
        results = await body(ctx)
        if not first:
            await ctx.step("gate", gate.passing)
        return results

    return order


async def deployed(make_app: MakeApp, gate: Gate, before: Body, after: Body) -> Run[Any]:
    """A run that came to a gate by one code and is continued by another."""
    old, new = patching(make_app(), before), patching(make_app(), after)
    run: Run[Any] = await old.start("order")
    await interrupt(old, gate)
    gate.open()
    await new.drain()
    return run


async def test_a_new_run_takes_the_new_way_and_its_patch_is_not_listed(app: Stepfast) -> None:
    run = await drained(patching(app, patched), "order")
    assert await run.result() == ["a", "checked", "new b"]
    assert [s.name for s in await run.steps()] == ["a", "check", "new b"]


@pytest.mark.parametrize("first", [False, True], ids=["after the change", "before the change"])
async def test_a_run_of_the_old_code_takes_the_way_by_where_it_was(make_app: MakeApp, first: bool) -> None:
    gate = Gate()
    run = await deployed(make_app, gate, with_gate(old, gate, first=first), with_gate(patched, gate, first=first))
    assert await run.result() == (["a", "checked", "new b"] if first else ["a", "old b"])


async def test_the_way_taken_is_taken_again(app: Stepfast) -> None:
    """Interrupted right behind the patch, in a loop, which is one decision, and in each item of a map."""
    gate = Gate()

    async def item(ctx: Context, number: int) -> list[Any]:
        return [ctx.patched("item"), await ctx.step("s", lambda: number)]

    async def order(ctx: Context) -> list[Any]:
        ways: list[Any] = []
        for number in range(3):
            ways.append(ctx.patched("p"))
            await ctx.step(f"turn {number}", say, "new")
            if number < 2:
                await ctx.step(f"gate {number}", gate.passing)
        return [ways, await ctx.map(item, range(3))]

    assert await (await replayed(patching(app, order), gate, "order")).result() == [
        [True] * 3,
        [[True, number] for number in range(3)],
    ]


async def test_the_way_taken_survives_the_failure_of_the_step_behind_it(app: Stepfast, calls: Calls) -> None:
    """A new attempt forgets the failed step, not the way."""

    def flaky() -> str:
        if calls.hit("flaky") == 1:
            raise ValueError("once")
        return "better"

    async def order(ctx: Context) -> list[Any]:
        return [ctx.patched("p"), await ctx.step(flaky)]

    run = await drained(patching(app, order), "order")
    await make_due(app, run.id)
    assert await finished(app, run) == [True, "better"]


async def test_branches_take_their_ways_singly(make_app: MakeApp) -> None:
    """One branch had passed the change by the old code, the other had not."""
    gate = Gate()

    async def ahead(ctx: Context, new: bool) -> str:
        way = "new" if new and ctx.patched("p") else "old"
        return await ctx.step(f"{way} way", say, way)

    async def behind(ctx: Context, new: bool) -> str:
        await ctx.step("gate", gate.passing)
        return await ahead(ctx, new)

    def body(new: bool) -> Body:
        async def order(ctx: Context) -> list[str]:
            return list(await ctx.gather(ctx.branch(ahead, new), ctx.branch(behind, new)))

        return order

    assert await (await deployed(make_app, gate, body(False), body(True))).result() == ["old", "new"]


async def test_a_change_met_in_every_round_begins_with_the_first_new_round(make_app: MakeApp) -> None:
    """The rounds made by the old code stay old on every later replay."""

    def body(new: bool) -> Body:
        async def order(ctx: Context) -> list[str]:
            results = []
            for _ in range(4):
                if new and ctx.patched("p"):
                    results.append(await ctx.step("new", say, "new"))
                results.append(await ctx.step("round", say, "round"))
                await ctx.wait_signal("on")
            return results

        return order

    before, after = (patching(make_app(settings=Settings(inline_wait=0)), body(new)) for new in (False, True))
    run = await drained(before, "order")
    await run.signal("on")
    await before.drain()
    for _ in range(3):
        assert [found.verdict for found in await after.check()] == ["fits"]
        await run.signal("on")
        await after.drain()
    assert await run.result() == ["round", "round", "new", "round", "new", "round"]


async def test_a_change_in_two_places_may_be_old_at_the_first_and_new_at_the_second(make_app: MakeApp) -> None:
    def body(new: bool) -> Body:
        async def order(ctx: Context) -> list[bool]:
            ways = []
            for name in ("a", "b"):
                ways.append(new and ctx.patched("p"))
                await ctx.step(f"new {name}" if ways[-1] else name, say, name)
                await ctx.wait_signal("on")
            return ways

        return order

    before, after = (patching(make_app(settings=Settings(inline_wait=0)), body(new)) for new in (False, True))
    run = await drained(before, "order")
    for _ in range(2):
        await run.signal("on")
        await after.drain()
    assert await run.result() == [False, True]


async def test_a_new_attempt_that_comes_to_the_change_earlier_takes_the_new_way(app: Stepfast, calls: Calls) -> None:
    """The first attempt made another call before it; that is forgotten, and the earlier position counts then."""
    gate = Gate()

    def flaky() -> str:
        if calls.hit("flaky") == 1:
            raise ValueError("once")
        return "better"

    async def order(ctx: Context) -> list[Any]:
        try:
            await ctx.step(flaky)
        except StepFailed:
            await ctx.step("a detour", say, "a detour")
            ctx.patched("p")
            raise
        way = ctx.patched("p")
        await ctx.step("gate", gate.passing)
        return [way, ctx.patched("p")]

    run = await drained(patching(app, order), "order")
    await make_due(app, run.id)
    await interrupt(app, gate)
    assert await finished(app, run, gate) == [True, True]


async def test_several_changes_are_told_apart(make_app: MakeApp) -> None:
    gate = Gate()

    def changed(*names: str) -> Body:
        async def order(ctx: Context) -> list[Any]:
            return [*(ctx.patched(name) for name in names), await ctx.step("a", say, "a")]

        return with_gate(order, gate)

    run = await deployed(make_app, gate, changed("one"), changed("one", "two"))
    assert await run.result() == [True, False, "a"]


async def test_a_change_may_leave_the_code_when_no_run_needs_it(make_app: MakeApp) -> None:
    """What is recorded of a patch is no step that must be called."""
    gate = Gate()

    async def cleaned(ctx: Context) -> list[str]:
        said = (("a", "a"), ("check", "checked"), ("new b", "new b"))
        return [await ctx.step(name, say, text) for name, text in said]

    run = await deployed(make_app, gate, with_gate(patched, gate), with_gate(cleaned, gate))
    assert await run.result() == ["a", "checked", "new b"]


async def test_a_plain_def_is_patched_too(make_app: MakeApp) -> None:
    before, after = make_app(), make_app()
    gate = Gate()

    async def was(ctx: Context) -> list[Any]:
        result = [await ctx.step("a", say, "a")]
        await ctx.step("gate", gate.passing)
        return result

    async def now(ctx: Context) -> list[Any]:
        result: list[Any] = [ctx.patched("early"), await ctx.step("a", say, "a")]
        await ctx.step("gate", gate.passing)
        return [*result, ctx.patched("late")]

    workflow_of(before, "def", was)
    workflow_of(after, "def", now)
    run = await before.start("order")
    await interrupt(before, gate)
    assert await finished(after, run, gate) == [False, "a", True]


async def test_a_run_undone_by_newer_code_goes_the_way_it_went(make_app: MakeApp) -> None:
    """The replay that finds the undos asks the patches too."""
    gate = Gate()
    undone: list[str] = []

    def body(new: bool) -> Body:
        async def order(ctx: Context) -> None:
            way = "new" if new and ctx.patched("p") else "old"
            await ctx.options(compensate=lambda *_: undone.append(way)).step(way, say, way)
            await ctx.step("gate", gate.passing)
            raise NonRetryableError("no")

        return order

    run = await deployed(make_app, gate, body(False), body(True))
    assert await run.status() == "compensated"
    assert undone == ["old"]


@pytest.mark.parametrize("name", ["", "x" * 300])
async def test_a_change_needs_a_name(app: Stepfast, name: str) -> None:
    async def order(ctx: Context) -> None:
        ctx.patched(name)

    app.workflow(name="order", max_attempts=1)(order)
    await failure(await drained(app, "order"), "the name of a change")
