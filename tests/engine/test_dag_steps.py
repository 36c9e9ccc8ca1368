"""One step of a dag run: what it sees, how often it is tried, and what it may do inside."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepfast import Backoff, NonRetryableError, RetryLater, RunFailed, Settings, Stepfast
from tests.engine.conftest import ON_BOTH, ON_SQLITE, MakeApp
from tests.support.crashing import crash_at, end_of, outcome_of
from tests.support.dags import how, make_step_due, returning, row_of, steps_of
from tests.support.engine import Calls, Gate, eventually, interrupt
from tests.worker.spying import HeldReply

pytestmark = ON_SQLITE

QUICK = Backoff(base=0.001, jitter=False)


# -- what a step sees ----------------------------------------------------------------------------------------------


async def test_a_step_sees_the_input_and_the_outputs_of_all_steps_before_it(app: Stepfast) -> None:
    """Not only of those it names itself."""
    dag = app.dag("dag")
    seen: dict[str, Any] = {}

    @dag.step
    async def first(ctx: Any) -> dict[str, int]:
        return {"n": ctx.input["n"] + 1}

    @dag.step(after=[first])
    async def second(ctx: Any) -> int:
        return int(ctx.outputs["first"]["n"] + 1)

    @dag.step(after=["second"])
    async def third(ctx: Any) -> None:
        seen.update(ctx.outputs)

    await app.start(dag, {"n": 1})
    await app.drain()
    assert seen == {"first": {"n": 2}, "second": 3}


async def test_a_step_knows_its_name_its_run_and_its_attempt(app: Stepfast) -> None:
    dag = app.dag("dag")
    seen: list[Any] = []

    @dag.step(retries=1, backoff=QUICK)
    async def work(ctx: Any) -> None:
        seen.append((ctx.step_name, ctx.run_id, ctx.attempt))
        if ctx.attempt == 1:
            raise ValueError("once")

    run = await app.start(dag)
    await app.drain()
    assert seen == [("work", run.id, 1), ("work", run.id, 2)]


@pytest.mark.parametrize("value", [None, False, 0, "", [], {}])
@pytest.mark.enough_on("sqlite")
async def test_an_empty_output_arrives_as_itself(app: Stepfast, value: Any) -> None:
    dag = app.dag("dag")
    seen: list[Any] = []
    dag.declare(returning(value), name="give")

    @dag.step(after=["give"])
    async def take(ctx: Any) -> bool:
        seen.append(ctx.outputs["give"])
        return "give" in ctx.outputs

    run = await app.start(dag, value)
    await app.drain()
    assert seen == [value] and type(seen[0]) is type(value)
    assert await run.result() == {"give": value, "take": True}


@pytest.mark.parametrize("value", [None, False, 0, ""])
@pytest.mark.enough_on("sqlite")
async def test_an_empty_input_arrives_as_itself(app: Stepfast, value: Any) -> None:
    dag = app.dag("dag")
    seen: list[Any] = []
    dag.declare(lambda ctx: seen.append(ctx.input), name="look")
    await app.start(dag, value)
    await app.drain()
    assert seen == [value] and type(seen[0]) is type(value)


async def test_the_output_of_a_step_that_does_not_come_before_is_refused_by_name(app: Stepfast) -> None:
    """Also if it happens to be done already; else the order of two workers would decide."""
    dag = app.dag("dag")
    said: list[str] = []
    dag.declare(returning(1), name="elsewhere")

    @dag.step
    async def first(ctx: Any) -> None: ...

    @dag.step(after=[first])
    async def look(ctx: Any) -> None:
        assert list(ctx.outputs) == ["first"]
        for name in ("elsewhere", "nowhere", "look"):
            try:
                ctx.outputs[name]
            except KeyError as error:
                said.append(str(error.args[0]))

    run = await app.start(dag)
    await app.drain()
    assert await run.status() == "completed"
    assert said == [
        "step 'elsewhere' does not come before 'look'; name it in after=",
        "there is no step 'nowhere' in this dag",
        "step 'look' does not come before 'look'; name it in after=",
    ]


async def test_a_missing_output_can_have_a_default(app: Stepfast) -> None:
    dag = app.dag("dag")
    dag.declare(returning(1), name="maybe", when=lambda ctx: False)
    dag.declare(returning(2), name="sure")

    @dag.step(after=["maybe", "sure"])
    async def join(ctx: Any) -> Any:
        return [ctx.outputs.get("maybe", "no"), ctx.outputs.get("sure", "no")]

    run = await app.start(dag)
    await app.drain()
    assert (await run.result())["join"] == ["no", 2]


async def test_plain_functions_are_steps_too(app: Stepfast) -> None:
    dag = app.dag("dag")

    @dag.step
    def double(ctx: Any) -> int:
        return int(ctx.input * 2)

    @dag.step(after=[double])
    def add(ctx: Any) -> int:
        return int(ctx.step("one", lambda: 1) + ctx.outputs["double"])

    run = await app.start(dag, 20)
    await app.drain()
    assert await run.result() == {"double": 40, "add": 41}


async def test_a_typed_output_is_stored_as_json(app: Stepfast) -> None:
    dag = app.dag("dag")

    @dag.step
    async def give(ctx: Any) -> tuple[int, ...]:
        return (1, 2)

    @dag.step(after=[give])
    async def take(ctx: Any) -> Any:
        return ctx.outputs["give"]

    run = await app.start(dag)
    await app.drain()
    assert await run.result() == {"give": [1, 2], "take": [1, 2]}


async def test_an_output_that_is_no_json_fails_the_step_by_name(app: Stepfast) -> None:
    dag = app.dag("dag")
    dag.declare(lambda ctx: object(), name="odd", retries=0)
    run = await app.start(dag)
    await app.drain()
    with pytest.raises(RunFailed, match="odd"):
        await run.result()


# -- retries, timeouts, backoff --------------------------------------------------------------------------------------


async def test_a_step_that_fails_twice_is_retried_alone(app: Stepfast, calls: Calls) -> None:
    """The others are not done again."""
    dag = app.dag("dag")
    dag.declare(lambda ctx: calls.hit("before"), name="before")

    @dag.step(after=["before"], retries=2, backoff=QUICK)
    async def shaky(ctx: Any) -> str:
        if calls.hit("shaky") < 3:
            raise ValueError("not yet")
        return "at last"

    dag.declare(lambda ctx: calls.hit("after"), name="after", after=["shaky"])
    run = await app.start(dag)
    await app.drain()
    assert (await run.result())["shaky"] == "at last"
    assert calls == {"before": 1, "shaky": 3, "after": 1}
    assert {name: info.attempts for name, info in (await steps_of(run)).items()} == {
        "before": 1,
        "shaky": 3,
        "after": 1,
    }


async def test_a_step_without_retries_is_called_once(app: Stepfast, calls: Calls) -> None:
    dag = app.dag("dag")

    @dag.step(retries=0)
    async def once(ctx: Any) -> None:
        calls.hit("once")
        raise ValueError("no")

    run = await app.start(dag)
    await app.drain()
    assert calls == {"once": 1}
    assert await run.status() == "failed"


@pytest.mark.parametrize(
    ("settings", "options", "tries"),
    [({}, {}, 3), ({"dag_retries": 1}, {}, 2), ({}, {"retries": 0}, 1), ({"retries": 9}, {}, 3)],
    ids=["default", "setting", "none", "other setting"],
)
async def test_a_step_that_says_nothing_is_retried_as_the_settings_say(
    make_app: MakeApp, calls: Calls, settings: dict[str, Any], options: dict[str, Any], tries: int
) -> None:
    """A transient error of one step does not fail, and undo, the run."""
    app = make_app(settings=Settings(backoff_base=0.001, **settings))
    dag = app.dag("dag")

    @dag.step(**options)
    async def broken(ctx: Any) -> None:
        calls.hit("broken")
        raise ValueError("no")

    await app.start(dag)
    await app.drain()
    assert calls == {"broken": tries}


@ON_BOTH
async def test_an_error_that_is_not_to_be_retried_ends_the_step_at_once(app: Stepfast, calls: Calls) -> None:
    dag = app.dag("dag")

    @dag.step(retries=5)
    async def broken(ctx: Any) -> None:
        calls.hit("broken")
        raise NonRetryableError("never")

    run = await app.start(dag)
    await app.drain()
    assert calls == {"broken": 1}
    with pytest.raises(RunFailed, match="step 'broken' failed: NonRetryableError: never"):
        await run.result()


@ON_BOTH
async def test_a_backoff_is_waited_for_without_a_slot(app: Stepfast, calls: Calls) -> None:
    """Computed, not honoured. The next attempt is not before its time."""
    dag = app.dag("dag")

    @dag.step(retries=1, backoff=Backoff(base=3600, max=7200, jitter=False))
    async def shaky(ctx: Any) -> int:
        if calls.hit("shaky") == 1:
            raise ValueError("not yet")
        return 2

    run = await app.start(dag)
    await app.drain()
    info = await app.get(await row_of(run, "shaky")).info()
    assert (info.status, info.worker, info.ready) == ("queued", None, False)
    assert info.due_at is not None and 3590 < (info.due_at - info.read_at).total_seconds() <= 3600
    assert (await steps_of(run))["shaky"].status == "waiting"
    await app.drain()
    assert calls == {"shaky": 1}
    await make_step_due(app, run, "shaky")
    await app.drain()
    assert await run.result() == {"shaky": 2}


async def test_a_step_can_say_when_it_is_to_be_tried_again(app: Stepfast, calls: Calls) -> None:
    dag = app.dag("dag")

    @dag.step(retries=1)
    async def shaky(ctx: Any) -> int:
        if calls.hit("shaky") == 1:
            raise RetryLater(3600)
        return 2

    run = await app.start(dag)
    await app.drain()
    assert await run.status() == "running"
    await make_step_due(app, run, "shaky")
    await app.drain()
    assert await run.result() == {"shaky": 2}


async def test_a_step_that_takes_too_long_is_stopped_and_tried_again(app: Stepfast, calls: Calls) -> None:
    dag = app.dag("dag")

    @dag.step(timeout=1, retries=1, backoff=QUICK)
    async def slow(ctx: Any) -> str:
        if calls.hit("slow") == 1:
            await asyncio.Event().wait()
        return "quick now"

    run = await app.start(dag)
    await app.drain()
    assert await run.result() == {"slow": "quick now"}
    assert calls == {"slow": 2}


async def test_a_step_that_always_takes_too_long_fails_the_run(app: Stepfast) -> None:
    dag = app.dag("dag")

    @dag.step(timeout=0.05, retries=0)
    async def slow(ctx: Any) -> None:
        await asyncio.Event().wait()

    run = await app.start(dag)
    await app.drain()
    with pytest.raises(RunFailed, match="slow"):
        await run.result()
    assert (await steps_of(run))["slow"].detail == "timeout"


async def test_a_step_whose_time_is_up_before_it_knows_its_graph_is_ended_all_the_same(app: Stepfast) -> None:
    """The worker does not leave before the end is in the journal."""
    dag = app.dag("dag")

    @dag.step(timeout=0.05, retries=0)
    async def slow(ctx: Any) -> None:
        await asyncio.Event().wait()

    def ends_late_step() -> bool:
        return any("TimeLimits._end" in repr(task.get_coro()) for task in asyncio.all_tasks())

    held = HeldReply(await app.store(), "dag_outputs")
    run = await app.start(dag)
    drained = asyncio.create_task(app.drain())
    await held.done()
    await eventually(ends_late_step)
    await asyncio.wait((drained,), timeout=0.5)
    assert not drained.done()
    held.release()
    await drained
    with pytest.raises(RunFailed, match="slow"):
        await run.result(timeout=20)


async def test_the_failed_tries_of_a_step_are_in_its_log(app: Stepfast, calls: Calls) -> None:
    dag = app.dag("dag")

    @dag.step(retries=1, backoff=QUICK)
    async def shaky(ctx: Any) -> None:
        if calls.hit("shaky") == 1:
            raise ValueError("once")

    run = await app.start(dag)
    await app.drain()
    log = await app.get(await row_of(run, "shaky")).activity()
    assert [(entry.status, entry.error and entry.error.message) for entry in log] == [("failed", "once")]


# -- checkpoints, sleeps and children inside a step --------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "plain"])
@ON_BOTH
async def test_what_a_step_records_is_not_done_again_after_a_crash(app: Stepfast, calls: Calls, kind: str) -> None:
    """Count the calls."""
    dag = app.dag("dag")

    async def pay(ctx: Any) -> int:
        calls.hit("pay")
        await ctx.step("first", lambda: calls.hit("first"))
        await ctx.step("second", lambda: calls.hit("second"))
        return 7

    def pay_plainly(ctx: Any) -> int:
        calls.hit("pay")
        ctx.step("first", lambda: calls.hit("first"))
        ctx.step("second", lambda: calls.hit("second"))
        return 7

    dag.declare(pay if kind == "async" else pay_plainly, name="pay")
    run = await app.start(dag)
    await crash_at(app, outcome_of("second"), written=False)
    await app.drain()
    assert await run.result() == {"pay": 7}
    assert calls == {"pay": 2, "first": 1, "second": 2}


async def test_what_a_step_recorded_is_kept_for_its_next_attempt(app: Stepfast, calls: Calls) -> None:
    dag = app.dag("dag")

    @dag.step(retries=1, backoff=QUICK)
    async def work(ctx: Any) -> None:
        await ctx.step("once", lambda: calls.hit("once"))
        if calls.hit("work") == 1:
            raise ValueError("after the checkpoint")

    run = await app.start(dag)
    await app.drain()
    assert await run.status() == "completed"
    assert calls == {"once": 1, "work": 2}


@pytest.mark.parametrize("written", [False, True], ids=["before the commit", "after the commit"])
@ON_BOTH
async def test_a_crash_when_a_step_ends_repeats_at_most_that_step(app: Stepfast, calls: Calls, written: bool) -> None:
    """Rule 41: its dependents are released once."""
    dag = app.dag("dag")
    dag.declare(lambda ctx: calls.hit("root"), name="root")
    dag.declare(lambda ctx: calls.hit("left"), name="left", after=["root"])
    dag.declare(lambda ctx: calls.hit("right"), name="right", after=["root"])
    dag.declare(lambda ctx: calls.hit("join"), name="join", after=["left", "right"])
    run = await app.start(dag)
    await crash_at(app, end_of("completed"), written=written)
    await app.drain()
    assert await run.status() == "completed"
    assert calls == {"root": 1 if written else 2, "left": 1, "right": 1, "join": 1}


@ON_BOTH
async def test_a_crash_when_the_run_ends_repeats_no_step(app: Stepfast, calls: Calls) -> None:
    dag = app.dag("dag")
    dag.declare(lambda ctx: calls.hit("only"), name="only")
    run = await app.start(dag)
    await crash_at(
        app, lambda batch: any(m.run_id == run.id and m.status == "completed" for m in batch.transitions), written=False
    )
    await app.drain()
    assert await run.result() == {"only": 1}
    assert calls == {"only": 1}


@ON_BOTH
async def test_a_worker_that_stops_gives_its_step_back(app: Stepfast, calls: Calls) -> None:
    """No attempt used."""
    gate = Gate()
    dag = app.dag("dag")

    @dag.step(retries=0)
    async def work(ctx: Any) -> int:
        calls.hit("work")
        await gate.passing()
        return int(ctx.attempt)

    run = await app.start(dag)
    await interrupt(app, gate)
    assert (await how(run))["work"] == "waiting"
    gate.open()
    await app.drain()
    assert await run.result() == {"work": 1}
    assert calls == {"work": 2}


@pytest.mark.parametrize("moment", [2.0, 0.0])
@ON_BOTH
async def test_a_step_sleeps_without_a_slot_and_goes_on(make_app: MakeApp, calls: Calls, moment: float) -> None:
    app = make_app(settings=Settings(inline_wait=moment))
    dag = app.dag("dag")

    @dag.step
    async def nap(ctx: Any) -> str:
        await ctx.step("before", lambda: calls.hit("before"))
        await ctx.sleep(7200)
        return str(ctx.outputs.get("nothing", "rested"))

    @dag.step(after=[nap])
    async def after(ctx: Any) -> str:
        return str(ctx.outputs["nap"])

    run = await app.start(dag)
    await app.drain()
    info = (await steps_of(run))["nap"]
    assert (info.status, info.detail) == ("waiting", "time")
    await make_step_due(app, run, "nap")
    await app.drain()
    assert await run.result() == {"nap": "rested", "after": "rested"}
    assert calls == {"before": 1}


@pytest.mark.parametrize("moment", [2.0, 0.0])
async def test_a_step_can_call_a_child(make_app: MakeApp, moment: float) -> None:
    app = make_app(settings=Settings(inline_wait=moment))

    @app.task
    async def double(number: int) -> int:
        return 2 * number

    dag = app.dag("dag")

    @dag.step
    async def work(ctx: Any) -> int:
        return int(await ctx.call(double, ctx.input))

    run = await app.start(dag, 21)
    await app.drain()
    assert await run.result() == {"work": 42}


async def test_a_step_cannot_go_on_as_another_run(app: Stepfast) -> None:
    dag = app.dag("dag")

    @dag.step(retries=0)
    async def work(ctx: Any) -> None:
        ctx.continue_as(1)

    run = await app.start(dag)
    await app.drain()
    with pytest.raises(RunFailed, match="continue_as"):
        await run.result()
