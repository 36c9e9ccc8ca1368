"""One step of a dag run: what it sees, how often it is tried, and what it may do inside."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepfast import Backoff, NonRetryableError, Settings, Stepfast
from tests.engine.conftest import ON_BOTH, ON_SQLITE, WAITS, MakeApp
from tests.support.crashing import crash_at, end_of, outcome_of
from tests.support.dags import QUICK, build, how, make_step_due, passing, returning, row_of, steps_of
from tests.support.engine import Calls, Gate, drained, eventually, failure, finished, interrupt, outcome
from tests.worker.spying import HeldReply

pytestmark = ON_SQLITE

WRITTEN = pytest.mark.parametrize("written", [False, True], ids=["before the commit", "after the commit"])


def same(value: Any, expected: Any) -> bool:
    return bool(value == expected and type(value) is type(expected))


# -- what a step sees ----------------------------------------------------------------------------------------------


async def test_a_step_sees_the_input_and_the_outputs_of_all_steps_before_it(app: Stepfast) -> None:
    """Not only of those it names itself."""
    dag = app.dag("dag")

    @dag.step
    async def first(ctx: Any) -> dict[str, int]:
        return {"n": ctx.input["n"] + 1}

    @dag.step(after=[first])
    async def second(ctx: Any) -> int:
        return int(ctx.outputs["first"]["n"] + 1)

    @dag.step(after=["second"])
    async def third(ctx: Any) -> dict[str, Any]:
        return dict(ctx.outputs)

    assert (await outcome(app, dag, {"n": 1}))["third"] == {"first": {"n": 2}, "second": 3}


async def test_a_step_knows_its_name_its_run_and_its_attempt(app: Stepfast) -> None:
    dag = app.dag("dag")
    seen: list[Any] = []

    @dag.step(retries=1, backoff=QUICK)
    async def work(ctx: Any) -> None:
        seen.append((ctx.step_name, ctx.run_id, ctx.attempt))
        if ctx.attempt == 1:
            raise ValueError("once")

    run = await drained(app, dag)
    assert seen == [("work", run.id, 1), ("work", run.id, 2)]
    log = await app.get(await row_of(run, "work")).activity()
    assert [(entry.status, entry.error and entry.error.message) for entry in log] == [("failed", "once")]


@pytest.mark.parametrize("value", [None, False, 0, "", [], {}])
async def test_empty_inputs_and_outputs_arrive_as_themselves(app: Stepfast, value: Any) -> None:
    seen: list[Any] = []

    async def take(ctx: Any) -> bool:
        seen.extend([ctx.input, ctx.outputs["give"]])
        return "give" in ctx.outputs

    dag = build(app, {"give": returning(value), "take < give": take})
    assert await outcome(app, dag, value) == {"give": value, "take": True}
    assert same(seen[0], value) and same(seen[1], value)


async def test_the_output_of_a_step_that_does_not_come_before_is_refused_by_name(app: Stepfast) -> None:
    """Also if it happens to be completed; else the order of two workers would decide."""
    said: list[str] = []

    async def look(ctx: Any) -> None:
        assert list(ctx.outputs) == ["first"]
        for name in ("elsewhere", "nowhere", "look"):
            with pytest.raises(KeyError) as error:
                ctx.outputs[name]
            said.append(str(error.value.args[0]))

    await outcome(app, build(app, {"elsewhere": returning(1), "first": returning(1), "look < first": look}))
    assert said == [
        "step 'elsewhere' does not come before 'look'; name it in after=",
        "there is no step 'nowhere' in this dag",
        "step 'look' does not come before 'look'; name it in after=",
    ]


async def test_a_missing_output_can_have_a_default(app: Stepfast) -> None:
    dag = build(app, {"sure": returning(2)})
    dag.declare(returning(1), name="maybe", when=lambda ctx: False)
    dag.declare(lambda ctx: [ctx.outputs.get(n, "no") for n in ("maybe", "sure")], name="join", after=["maybe", "sure"])
    assert (await outcome(app, dag))["join"] == ["no", 2]


async def test_plain_functions_are_steps_too(app: Stepfast) -> None:
    dag = app.dag("dag")

    @dag.step
    def double(ctx: Any) -> int:
        return int(ctx.input * 2)

    @dag.step(after=[double])
    def add(ctx: Any) -> int:
        return int(ctx.step("one", lambda: 1) + ctx.outputs["double"])

    assert await outcome(app, dag, 20) == {"double": 40, "add": 41}


async def test_a_typed_output_is_stored_as_json(app: Stepfast) -> None:
    dag = app.dag("dag")

    @dag.step
    async def give(ctx: Any) -> tuple[int, ...]:
        return (1, 2)

    dag.declare(lambda ctx: ctx.outputs["give"], name="take", after=[give])
    assert await outcome(app, dag) == {"give": [1, 2], "take": [1, 2]}


# -- retries, timeouts, backoff --------------------------------------------------------------------------------------


async def test_a_step_that_fails_twice_is_retried_alone(app: Stepfast, calls: Calls) -> None:
    dag = app.dag("dag")
    dag.declare(lambda ctx: calls.hit("before"), name="before")

    @dag.step(after=["before"], retries=2, backoff=QUICK)
    async def shaky(ctx: Any) -> str:
        if calls.hit("shaky") < 3:
            raise ValueError("not yet")
        return "at last"

    dag.declare(lambda ctx: calls.hit("after"), name="after", after=["shaky"])
    run = await drained(app, dag)
    assert (await run.result())["shaky"] == "at last"
    attempts = {name: info.attempts for name, info in (await steps_of(run)).items()}
    assert calls == attempts == {"before": 1, "shaky": 3, "after": 1}


@pytest.mark.parametrize(
    ("settings", "options", "tries"),
    [({}, {}, 3), ({"dag_retries": 1}, {}, 2), ({}, {"retries": 0}, 1), ({"retries": 9, "max_attempts": 1}, {}, 3)],
    ids=["default", "setting", "none", "other settings"],
)
async def test_a_step_without_options_is_retried_as_the_settings_say(
    make_app: MakeApp, calls: Calls, settings: dict[str, Any], options: dict[str, Any], tries: int
) -> None:
    """A transient error of one step does not fail, and undo, the run."""
    app = make_app(settings=Settings(backoff_base=0.001, **settings))
    dag = app.dag("dag")

    @dag.step(**options)
    async def broken(ctx: Any) -> None:
        calls.hit("broken")
        raise ValueError("no")

    run = await drained(app, dag)
    assert (calls, await run.status()) == ({"broken": tries}, "failed")


@ON_BOTH
async def test_a_non_retryable_error_ends_the_step_at_once(app: Stepfast, calls: Calls) -> None:
    dag = app.dag("dag")

    @dag.step(retries=5)
    async def broken(ctx: Any) -> None:
        calls.hit("broken")
        raise NonRetryableError("never")

    await failure(await drained(app, dag), "step 'broken' failed: NonRetryableError: never")
    assert calls == {"broken": 1}


async def test_an_output_that_is_no_json_fails_the_step_by_name(app: Stepfast) -> None:
    dag = app.dag("dag")
    dag.declare(lambda ctx: object(), name="odd", retries=0)
    await failure(await drained(app, dag), "odd")


@ON_BOTH
async def test_a_backoff_is_waited_for_without_a_slot(app: Stepfast, calls: Calls) -> None:
    """The next attempt is not before its time."""
    dag = app.dag("dag")

    @dag.step(retries=1, backoff=Backoff(base=3600, max=7200, jitter=False))
    async def shaky(ctx: Any) -> int:
        if calls.hit("shaky") == 1:
            raise ValueError("not yet")
        return 2

    run = await drained(app, dag)
    info = await app.get(await row_of(run, "shaky")).info()
    assert (info.status, info.worker, info.ready) == ("queued", None, False)
    assert info.due_at is not None and 3590 < (info.due_at - info.read_at).total_seconds() <= 3600
    assert await how(run) == {"shaky": "waiting"}
    await app.drain()
    assert calls == {"shaky": 1}
    await make_step_due(app, run, "shaky")
    assert await finished(app, run) == {"shaky": 2}


async def test_a_step_that_takes_too_long_is_stopped_and_tried_again(app: Stepfast, calls: Calls) -> None:
    dag = app.dag("dag")

    @dag.step(timeout=1, retries=1, backoff=QUICK)
    async def slow(ctx: Any) -> str:
        if calls.hit("slow") == 1:
            await asyncio.Event().wait()
        return "quick now"

    assert await outcome(app, dag) == {"slow": "quick now"}
    assert calls == {"slow": 2}


async def test_a_step_that_always_takes_too_long_fails_the_run(app: Stepfast) -> None:
    dag = app.dag("dag")
    dag.declare(passing(Gate()), name="slow", timeout=0.05, retries=0)
    run = await drained(app, dag)
    await failure(run, "slow")
    assert (await steps_of(run))["slow"].detail == "timeout"


async def test_a_step_that_times_out_before_its_graph_is_read_is_ended_all_the_same(app: Stepfast) -> None:
    """The worker does not leave before the end is in the journal."""
    dag = app.dag("dag")
    dag.declare(passing(Gate()), name="slow", timeout=0.05, retries=0)

    def ends_late_step() -> bool:
        return any("TimeLimits._end" in repr(task.get_coro()) for task in asyncio.all_tasks())

    held = HeldReply(await app.store(), "dag_outputs")
    run = await app.start(dag)
    draining = asyncio.create_task(app.drain())
    await held.done()
    await eventually(ends_late_step)
    await asyncio.wait((draining,), timeout=0.5)
    assert not draining.done()
    held.release()
    await draining
    await failure(run, "slow")


# -- checkpoints, sleeps and children inside a step --------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "plain"])
@ON_BOTH
async def test_what_a_step_records_is_not_done_again_after_a_crash(app: Stepfast, calls: Calls, kind: str) -> None:
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

    run = await app.start(build(app, {"pay": pay if kind == "async" else pay_plainly}))
    await crash_at(app, outcome_of("second"), written=False)
    assert await finished(app, run) == {"pay": 7}
    assert calls == {"pay": 2, "first": 1, "second": 2}


@WRITTEN
@ON_BOTH
async def test_a_crash_when_a_step_ends_repeats_at_most_that_step(app: Stepfast, calls: Calls, written: bool) -> None:
    """Rule 41: its dependents are released once."""

    def count(ctx: Any) -> None:
        calls.hit(ctx.step_name)

    dag = build(app, {"root": count, "left < root": count, "right < root": count, "join < left right": count})
    run = await app.start(dag)
    await crash_at(app, end_of("completed"), written=written)
    await app.drain()
    assert await run.status() == "completed"
    assert calls == {"root": 1 if written else 2, "left": 1, "right": 1, "join": 1}


@ON_BOTH
async def test_a_crash_when_the_run_ends_repeats_no_step(app: Stepfast, calls: Calls) -> None:
    run = await app.start(build(app, {"only": lambda ctx: calls.hit("only")}))
    await crash_at(
        app, lambda batch: any(m.run_id == run.id and m.status == "completed" for m in batch.transitions), written=False
    )
    assert await finished(app, run) == {"only": 1} == calls


@ON_BOTH
async def test_a_worker_that_stops_gives_its_step_back_without_an_attempt(app: Stepfast, calls: Calls) -> None:
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
    assert await finished(app, run, gate) == {"work": 1}
    assert calls == {"work": 2}


@WAITS
@ON_BOTH
async def test_a_step_sleeps_without_a_slot_and_goes_on(app: Stepfast, calls: Calls) -> None:
    async def nap(ctx: Any) -> str:
        await ctx.step("before", lambda: calls.hit("before"))
        await ctx.sleep(7200)
        return str(ctx.outputs.get("nothing", "rested"))

    run = await drained(app, build(app, {"nap": nap, "after < nap": lambda ctx: ctx.outputs["nap"]}))
    info = (await steps_of(run))["nap"]
    assert (info.status, info.detail) == ("waiting", "time")
    await make_step_due(app, run, "nap")
    assert await finished(app, run) == {"nap": "rested", "after": "rested"}
    assert calls == {"before": 1}


@WAITS
async def test_a_step_can_call_a_child(app: Stepfast) -> None:
    @app.task
    async def double(number: int) -> int:
        return 2 * number

    assert await outcome(app, build(app, {"work": lambda ctx: ctx.call(double, ctx.input)}), 21) == {"work": 42}


async def test_a_step_cannot_continue_as_another_run(app: Stepfast) -> None:
    dag = app.dag("dag")
    dag.declare(lambda ctx: ctx.continue_as(1), name="work", retries=0)
    await failure(await drained(app, dag), "continue_as")


async def test_the_log_of_a_dag_run_is_that_of_its_steps(app: Stepfast) -> None:
    async def checked(ctx: Any) -> int:
        return int(await ctx.step("count", lambda: 1))

    run = await drained(app, build(app, {"a": checked, "b < a": checked}))
    assert [(call.branch, call.name) for call in await run.activity()] == [("a", "count"), ("b", "count")]


async def test_values_that_a_step_sets_are_kept_with_the_step(app: Stepfast) -> None:
    run = await drained(app, build(app, {"count": lambda ctx: ctx.set("seen", 3)}))
    assert await app.get(await row_of(run, "count")).get("seen") == 3
