"""Approvals: steps of a dag that wait for an answer."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from stepfast import ConfigurationError, InvalidState, Settings, Stepfast
from stepfast.engine.dag import Dag
from stepfast.run import Run
from tests.engine.conftest import ON_BOTH, ON_SQLITE, MakeApp
from tests.support.dags import build, ended, how, make_step_due, no, passing, row_of, steps_of
from tests.support.engine import Calls, Gate, drained, eventually, failure, finished, stopped_at_once

pytestmark = ON_SQLITE

Declare = Callable[..., Dag]


@pytest.fixture
def app(make_app: MakeApp, request: pytest.FixtureRequest) -> Stepfast:
    """Gates give their slot back at once, unless a test has them wait in memory."""
    return make_app(settings=Settings(inline_wait=getattr(request, "param", 0.0)))


in_memory_or_not = pytest.mark.parametrize("app", [3600.0, 0.0], ids=["in memory", "released"], indirect=True)


@pytest.fixture
def log() -> list[Any]:
    """What was done, in order."""
    return []


def charge_and_ship(dag: Dag, log: list[Any]) -> None:
    """The steps before the gate and after it."""
    dag.declare(lambda ctx: log.append("charge"), name="charge", compensate=lambda ctx: log.append("refund"))

    @dag.step(after=["manager_ok"])
    async def ship(ctx: Any) -> Any:
        log.append("ship")
        return ctx.outputs.get("manager_ok", "no answer")


@pytest.fixture
def declare(app: Stepfast, log: list[Any]) -> Declare:
    """charge → manager_ok → ship."""

    def make(**options: Any) -> Dag:
        dag = app.dag("order")
        charge_and_ship(dag, log)
        dag.approval("manager_ok", after=["charge"], **options)
        return dag

    return make


async def waits(app: Stepfast, run: Run[Any], name: str) -> None:
    """Wait until a step has recorded its wait."""
    step = app.get(await row_of(run, name))
    await eventually(step.steps)


async def test_a_gate_holds_what_comes_after_it(app: Stepfast, declare: Declare, log: list[Any]) -> None:
    run = await drained(app, declare())
    info = (await steps_of(run))["manager_ok"]
    assert (info.status, info.detail) == ("waiting", "signal:manager_ok")
    assert log == ["charge"]
    assert (await run.status(), (await app.get(await row_of(run, "manager_ok")).info()).worker) == ("waiting", None)


@pytest.mark.parametrize("value", [True, "yes", {"by": "eve"}, 0, None, ""])
async def test_a_signal_opens_it_and_its_value_is_the_output(app: Stepfast, declare: Declare, value: Any) -> None:
    run = await drained(app, declare())
    await run.signal("manager_ok", value)
    await app.drain()
    result = await run.result()
    assert result == {"charge": None, "manager_ok": value, "ship": value}
    assert type(result["manager_ok"]) is type(value)


async def test_false_fails_the_step_and_so_undoes_the_run(app: Stepfast, declare: Declare, log: list[Any]) -> None:
    run = await drained(app, declare())
    await run.signal("manager_ok", False)
    await app.drain()
    assert log == ["charge", "refund"]
    assert await run.status() == "compensated"
    assert await how(run) == {"charge": "completed", "manager_ok": "failed", "ship": "skipped"}
    await failure(run, "'manager_ok' was not approved")


@in_memory_or_not
@ON_BOTH
async def test_a_worker_that_waits_is_notified_at_once(app: Stepfast, declare: Declare) -> None:
    run = await app.start(declare(timeout=1800))
    async with app.worker():
        await waits(app, run, "manager_ok")
        await run.signal("manager_ok", "go")
        assert (await run.result())["ship"] == "go"


@pytest.mark.parametrize("value", [True, False])
@ON_BOTH
async def test_a_signal_sent_before_the_gate_is_reached_is_kept(app: Stepfast, declare: Declare, value: bool) -> None:
    run = await app.start(declare())
    await run.signal("manager_ok", value)
    await app.drain()
    assert await run.status() == ("completed" if value else "compensated")


@in_memory_or_not
async def test_a_signal_sent_during_the_step_before_is_kept(app: Stepfast) -> None:
    gate = Gate()
    dag = build(app, {"before": passing(gate)})
    dag.approval("ok", after=["before"])
    run = await app.start(dag)
    async with app.worker():
        await gate.reached()
        await run.signal("ok", 7)
        gate.open()
        assert (await run.result())["ok"] == 7


async def test_of_two_signals_the_first_counts(app: Stepfast, declare: Declare) -> None:
    run = await app.start(declare())
    await run.signal("manager_ok", "first")
    await run.signal("manager_ok", "second")
    await app.drain()
    assert (await run.result())["ship"] == "first"


async def test_several_gates_are_opened_in_any_order(app: Stepfast) -> None:
    dag = app.dag("dag")
    dag.approval("legal")
    dag.approval("finance")
    dag.declare(lambda ctx: [ctx.outputs["legal"], ctx.outputs["finance"]], name="sign", after=["legal", "finance"])
    run = await drained(app, dag)
    await run.signal("finance", 2)
    await app.drain()
    assert await how(run) == {"legal": "waiting", "finance": "completed", "sign": "waiting"}
    await run.signal("legal", 1)
    await app.drain()
    assert (await run.result())["sign"] == [1, 2]


async def test_k_of_n_approvals_are_enough(app: Stepfast) -> None:
    dag = app.dag("dag")
    voters = ["ann", "bob", "cyd"]
    for name in voters:
        dag.approval(name, timeout=3600, on_timeout="skip")
    dag.declare(lambda ctx: sorted(ctx.outputs), name="act", after=voters, at_least=2)
    run = await drained(app, dag)
    for voter in ("cyd", "ann"):
        assert (await how(run))["act"] == "waiting"
        await run.signal(voter, True)
        await app.drain()
    assert (await how(run)) == {"ann": "completed", "bob": "waiting", "cyd": "completed", "act": "completed"}
    await make_step_due(app, run, "bob")
    await app.drain()
    assert (await run.result())["act"] == ["ann", "cyd"]


# -- too late ----------------------------------------------------------------------------------------------------------


async def timed_out(app: Stepfast, dag: Dag) -> Run[Any]:
    """A run whose gate was not opened in time."""
    run = await drained(app, dag)
    await make_step_due(app, run, "manager_ok")
    await app.drain()
    return run


@ON_BOTH
async def test_a_gate_that_is_not_opened_in_time_fails(app: Stepfast, declare: Declare, log: list[Any]) -> None:
    run = await drained(app, declare(timeout=timedelta(days=2)))
    info = await app.get(await row_of(run, "manager_ok")).info()
    assert info.due_at is not None
    assert timedelta(days=1, hours=23) < info.due_at - info.read_at <= timedelta(days=2)
    await make_step_due(app, run, "manager_ok")
    await app.drain()
    assert log == ["charge", "refund"]
    assert "SignalTimeout" in (await failure(run, "manager_ok")).message


async def test_a_gate_that_is_not_opened_in_time_can_be_skipped(
    app: Stepfast, declare: Declare, log: list[Any]
) -> None:
    """With what depends only on it."""
    run = await timed_out(app, declare(timeout=3600, on_timeout="skip"))
    assert await run.result() == {"charge": None}
    assert await how(run) == {"charge": "completed", "manager_ok": "skipped", "ship": "skipped"}
    assert log == ["charge"]


async def test_a_gate_can_open_by_itself(app: Stepfast, declare: Declare) -> None:
    run = await timed_out(app, declare(timeout=3600, on_timeout="approve"))
    assert await run.result() == {"charge": None, "manager_ok": True, "ship": True}


@pytest.mark.parametrize("on_timeout", ["fail", "skip", "approve"])
async def test_an_answer_in_time_counts_whatever_on_timeout_is(
    app: Stepfast, declare: Declare, on_timeout: str
) -> None:
    run = await drained(app, declare(timeout=3600, on_timeout=on_timeout))
    await run.signal("manager_ok", "in time")
    await app.drain()
    assert (await run.result())["ship"] == "in time"


@in_memory_or_not
async def test_a_short_timeout_is_kept_in_memory_too(app: Stepfast, declare: Declare) -> None:
    run = await app.start(declare(timeout=0.05, on_timeout="approve"))
    async with app.worker():
        assert (await run.result())["manager_ok"] is True


async def test_the_timeout_counts_from_when_the_gate_is_reached(app: Stepfast) -> None:
    """Not from the start of the run."""
    gate = Gate()
    dag = build(app, {"before": passing(gate)})
    dag.approval("ok", after=["before"], timeout=3600)
    run = await app.start(dag)
    async with stopped_at_once(app):
        await gate.reached()
    assert (await app.get(await row_of(run, "ok")).info()).due_at is None
    gate.open()
    await app.drain()
    assert (await app.get(await row_of(run, "ok")).info()).due_at is not None
    await run.signal("ok", True)
    await app.drain()
    assert await run.status() == "completed"


# -- what is refused ---------------------------------------------------------------------------------------------------


async def test_a_signal_to_no_unfinished_step_of_the_run_is_refused(app: Stepfast, declare: Declare) -> None:
    run = await app.start(declare())
    with pytest.raises(InvalidState, match="has no unfinished step 'manager'"):
        await run.signal("manager", True)
    await run.signal("manager_ok", True)
    await app.drain()
    with pytest.raises(InvalidState):
        await run.signal("manager_ok", False)


@in_memory_or_not
async def test_a_signal_to_a_gate_that_was_passed_is_refused(app: Stepfast) -> None:
    gate = Gate()
    dag = app.dag("dag")
    dag.approval("ok")
    dag.declare(passing(gate), name="after", after=["ok"])
    run = await app.start(dag)
    await run.signal("ok", True)
    async with app.worker():
        await gate.reached()
        with pytest.raises(InvalidState, match="has no unfinished step 'ok'"):
            await run.signal("ok", False)
        gate.open()
        await run.result()


async def test_what_happens_when_it_is_late_must_be_one_of_three(app: Stepfast) -> None:
    with pytest.raises(ConfigurationError, match='"fail", "skip" or "approve"'):
        app.dag("dag").approval("ok", on_timeout="wait")  # type: ignore[arg-type]


# -- when something else ends the run -------------------------------------------------------------------------------


@in_memory_or_not
async def test_a_gate_that_waits_ends_when_the_run_is_cancelled(
    app: Stepfast, declare: Declare, log: list[Any]
) -> None:
    run = await app.start(declare(timeout=1800))
    async with app.worker():
        await waits(app, run, "manager_ok")
        await run.cancel()
        assert await ended(run) == "compensated"
    assert log == ["charge", "refund"]
    assert (await how(run))["manager_ok"] == "cancelled"


@in_memory_or_not
async def test_a_gate_that_waits_ends_when_another_step_fails(app: Stepfast, calls: Calls) -> None:
    gate = Gate()
    dag = app.dag("dag")
    dag.approval("ok", timeout=1800)

    @dag.step
    async def broken(ctx: Any) -> None:
        await gate.passing()
        await no(ctx)

    dag.declare(lambda ctx: calls.hit("after"), name="after", after=["ok"])
    run = await app.start(dag)
    async with app.worker():
        await gate.reached()
        await waits(app, run, "ok")
        gate.open()
        await ended(run)
    assert (await how(run))["ok"] == "cancelled"
    assert calls == {}


# -- when the code changes ---------------------------------------------------------------------------------------------


async def test_a_gate_waits_for_as_long_as_the_graph_of_its_run_says(
    make_app: MakeApp, app: Stepfast, declare: Declare, log: list[Any]
) -> None:
    run = await app.start(declare(timeout=3600, on_timeout="skip"))
    other = make_app(settings=Settings(inline_wait=0.0))
    dag = other.dag("order")
    charge_and_ship(dag, log)
    dag.approval("manager_ok", after=["charge"], timeout=60, on_timeout="approve")
    await other.drain()
    info = await other.get(await row_of(run, "manager_ok")).info()
    assert info.due_at is not None
    assert timedelta(minutes=50) < info.due_at - info.read_at
    await make_step_due(other, run, "manager_ok")
    await other.drain()
    assert await how(run) == {"charge": "completed", "manager_ok": "skipped", "ship": "skipped"}


@pytest.mark.parametrize("plain", [True, False], ids=["plain function", "coroutine"])
async def test_a_gate_waits_though_the_code_has_a_step_of_its_name_now(
    make_app: MakeApp, app: Stepfast, declare: Declare, log: list[Any], plain: bool
) -> None:
    run = await app.start(declare())
    other = make_app(settings=Settings(inline_wait=0.0))
    dag = other.dag("order")
    charge_and_ship(dag, log)

    def automatic(ctx: Any) -> int:
        log.append("no answer awaited")
        return 1

    async def automatic_too(ctx: Any) -> int:
        return automatic(ctx)

    dag.declare(automatic if plain else automatic_too, name="manager_ok", after=["charge"], when=lambda ctx: False)
    await other.drain()
    assert (await how(run))["manager_ok"] == "waiting"
    await run.signal("manager_ok", "by all means")
    await other.drain()
    assert log == ["charge", "ship"]
    assert (await run.result())["manager_ok"] == "by all means"


async def test_a_step_for_which_the_code_has_a_gate_now_is_left_to_code_that_has_its_function(
    make_app: MakeApp, app: Stepfast, caplog: pytest.LogCaptureFixture
) -> None:
    """There is no wait that the graph of the run does not have, and nothing fails because of it."""
    old = app.dag("order")
    old.declare(lambda ctx: "checked", name="check", retries=0)
    run = await app.start(old)
    other = make_app(settings=Settings(inline_wait=0.0, poll_interval=3600))
    other.dag("order").approval("check", timeout=1, on_timeout="approve")
    await other.drain()
    info = (await steps_of(run))["check"]
    assert (info.status, info.detail) == ("waiting", "retry")
    assert "the code has an approval of that name" in caplog.text
    await make_step_due(app, run, "check")
    assert await finished(app, run) == {"check": "checked"}


async def test_what_a_step_did_before_the_code_had_a_gate_instead_counts_as_not_undone(
    make_app: MakeApp, app: Stepfast
) -> None:
    async def check(ctx: Any) -> None:
        await ctx.options(compensate=lambda _: None).step("hold", lambda: None)
        await ctx.sleep(3600)

    run = await drained(app, build(app, {"check": check}, "order"))
    await run.cancel()
    other = make_app(settings=Settings(inline_wait=0.0))
    other.dag("order").approval("check")
    await other.drain()
    assert (await how(run))["check"] == "failed"
    error = (await steps_of(run))["check"].error
    assert error is not None
    assert "was not called: the code as it is now does not call that step" in error.message
