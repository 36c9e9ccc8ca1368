"""Conditions, joins and caught errors in dags (rule 43)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stepfast import AttemptTimeout, Backoff, NonRetryableError, RunFailed, Settings, Stepfast
from tests.engine.conftest import MakeApp
from tests.support.dags import how, make_step_due, steps_of
from tests.support.engine import Calls, Gate, eventually, interrupt

pytestmark = pytest.mark.enough_on("sqlite")

QUICK = Backoff(base=0.001, jitter=False)


def names(*steps: str) -> Callable[[Any], Any]:
    """A step that returns which of these it has outputs of."""
    return lambda ctx: [step for step in steps if step in ctx.outputs]


async def give(ctx: Any) -> str:
    return str(ctx.step_name)


async def no(ctx: Any) -> None:
    raise NonRetryableError(f"{ctx.step_name} cannot")


# -- when --------------------------------------------------------------------------------------------------------


async def test_a_condition_decides_on_the_input(app: Stepfast) -> None:
    """In the words of the promise."""
    dag = app.dag("dag")
    dag.declare(give, name="charge", when=lambda ctx: ctx.input["cents"] > 0)
    free, paid = await app.start(dag, {"cents": 0}), await app.start(dag, {"cents": 5})
    await app.drain()
    assert (await free.result(), await paid.result()) == ({}, {"charge": "charge"})
    assert (await how(free), await free.status()) == ({"charge": "skipped"}, "completed")


async def test_a_condition_decides_on_earlier_outputs(app: Stepfast) -> None:
    dag = app.dag("dag")
    dag.declare(lambda ctx: ctx.input, name="score")
    dag.declare(give, name="high", after=["score"], when=lambda ctx: ctx.outputs["score"] > 5)
    dag.declare(give, name="low", after=["score"], when=lambda ctx: ctx.outputs["score"] <= 5)
    runs = [await app.start(dag, 9), await app.start(dag, 1)]
    await app.drain()
    assert [set(await run.result()) for run in runs] == [{"score", "high"}, {"score", "low"}]


async def test_a_condition_may_be_async_and_belong_to_a_plain_function(app: Stepfast) -> None:
    dag = app.dag("dag")

    async def later(ctx: Any) -> bool:
        return bool(ctx.input)

    dag.declare(lambda ctx: 1, name="work", when=later)
    runs = [await app.start(dag, True), await app.start(dag, False)]
    await app.drain()
    assert [await run.result() for run in runs] == [{"work": 1}, {}]


async def test_a_skipped_step_is_not_called(app: Stepfast, calls: Calls) -> None:
    dag = app.dag("dag")
    dag.declare(lambda ctx: calls.hit("work"), name="work", when=lambda ctx: calls.hit("asked") == 0)
    run = await app.start(dag)
    await app.drain()
    assert await run.result() == {}
    assert calls == {"asked": 1}


async def test_a_condition_that_raises_is_a_failed_attempt_of_its_step(app: Stepfast, calls: Calls) -> None:
    """Rule 43."""
    dag = app.dag("dag")

    def shaky(ctx: Any) -> bool:
        if calls.hit("asked") == 1:
            raise KeyError("not there yet")
        return True

    dag.declare(give, name="work", when=shaky, retries=1, backoff=QUICK)
    run = await app.start(dag)
    await app.drain()
    assert await run.result() == {"work": "work"}
    assert calls == {"asked": 2}


async def test_a_condition_that_always_raises_fails_its_step(app: Stepfast, calls: Calls) -> None:
    """Rule 43."""
    dag = app.dag("dag")
    dag.declare(lambda ctx: calls.hit("work"), name="work", when=lambda ctx: ctx.outputs["nothing"], retries=0)
    run = await app.start(dag)
    await app.drain()
    with pytest.raises(RunFailed, match=r"step 'work' failed: KeyError: .*there is no step 'nothing' in this dag"):
        await run.result()
    assert calls == {}


async def test_the_error_of_a_condition_is_caught_like_that_of_the_step(app: Stepfast) -> None:
    dag = app.dag("dag")
    dag.declare(give, name="work", when=lambda ctx: ctx.outputs["nothing"], retries=0, catch={KeyError: "instead"})
    dag.declare(give, name="instead")
    run = await app.start(dag)
    await app.drain()
    assert await run.result() == {"instead": "instead"}


async def test_a_condition_that_the_code_has_got_since_does_not_count_for_runs_that_go_by_the_old_graph(
    app: Stepfast, make_app: MakeApp
) -> None:
    old = app.dag("dag")
    old.declare(give, name="work")
    run = await app.start(old)
    other = make_app()
    new = other.dag("dag")
    new.declare(give, name="work", when=lambda ctx: False)
    later = await other.start(new)
    await other.drain()
    assert (await run.result(), await later.result()) == ({"work": "work"}, {})


async def test_a_condition_that_the_code_no_longer_has_is_met(app: Stepfast, make_app: MakeApp) -> None:
    old = app.dag("dag")
    old.declare(give, name="work", when=lambda ctx: False)
    run = await app.start(old)
    other = make_app()
    other.dag("dag").declare(give, name="work")
    await other.drain()
    assert await run.result() == {"work": "work"}


async def test_a_step_that_has_begun_is_not_skipped_any_more(app: Stepfast, calls: Calls) -> None:
    """A condition that changes its mind while the step sleeps would leave what it did undone for ever."""
    dag = app.dag("dag")

    @dag.step(when=lambda ctx: calls.hit("asked") == 1)
    async def work(ctx: Any) -> str:
        await ctx.step("first", lambda: calls.hit("first"))
        await ctx.sleep(7200)
        return "whole"

    run = await app.start(dag)
    await app.drain()
    await make_step_due(app, run, "work")
    await app.drain()
    assert await run.result() == {"work": "whole"}


# -- what a skipped step means to others -----------------------------------------------------------------------------


async def test_what_hangs_only_on_a_skipped_step_is_skipped_too(app: Stepfast, calls: Calls) -> None:
    dag = app.dag("dag")
    dag.declare(give, name="gift", when=lambda ctx: False)
    for name, before in (("wrap", "gift"), ("ribbon", "wrap"), ("card", "ribbon")):
        dag.declare(lambda ctx: calls.hit("done"), name=name, after=[before])
    run = await app.start(dag)
    await app.drain()
    assert await run.result() == {}
    assert await how(run) == dict.fromkeys(("gift", "wrap", "ribbon", "card"), "skipped")
    assert calls == {}


async def test_a_skipped_step_counts_as_finished(app: Stepfast) -> None:
    """A join with another completed dependency goes on without it."""
    dag = app.dag("dag")
    dag.declare(give, name="gift", when=lambda ctx: False)
    dag.declare(give, name="pack")
    dag.declare(names("gift", "pack"), name="ship", after=["gift", "pack"])
    run = await app.start(dag)
    await app.drain()
    assert await run.result() == {"pack": "pack", "ship": ["pack"]}


async def test_a_join_waits_for_a_condition_that_is_not_decided_yet(app: Stepfast) -> None:
    gate = Gate()
    dag = app.dag("dag")

    async def slow(ctx: Any) -> bool:
        await gate.passing()
        return False

    dag.declare(give, name="maybe", when=slow)
    dag.declare(give, name="sure")
    dag.declare(names("maybe", "sure"), name="join", after=["maybe", "sure"])
    run = await app.start(dag)
    async with app.worker():
        await gate.reached()
        await eventually(lambda: has(run, "sure", "completed"))
        assert (await how(run))["join"] == "waiting"
        gate.open()
        assert (await run.result())["join"] == ["sure"]


async def has(run: Any, step: str, status: str) -> bool:
    return (await how(run))[step] == status


async def test_why_there_is_no_output_of_a_skipped_step_is_said_by_name(app: Stepfast) -> None:
    dag = app.dag("dag")
    dag.declare(give, name="gift", when=lambda ctx: False)
    dag.declare(give, name="pack")
    dag.declare(lambda ctx: ctx.outputs["gift"], name="ship", after=["gift", "pack"], retries=0)
    run = await app.start(dag)
    await app.drain()
    with pytest.raises(RunFailed, match="step 'gift' has no output: it was skipped"):
        await run.result()


# -- joins ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"join": "any"}, {"at_least": 1}], ids=["any", "at least 1"])
async def test_a_join_of_any_begins_with_the_first(app: Stepfast, options: dict[str, Any]) -> None:
    """The other is still at its gate; and its output is not there later either."""
    gate, first = Gate(), Gate()
    dag = app.dag("dag")

    @dag.step
    async def slow(ctx: Any) -> None:
        await gate.passing()

    dag.declare(give, name="quick")

    async def look(ctx: Any) -> list[str]:
        await first.passing()
        return list(ctx.outputs)

    dag.declare(look, name="race", after=["slow", "quick"], **options)
    run = await app.start(dag)
    async with app.worker():
        await gate.reached()
        await first.reached()
        gate.open()
        await eventually(lambda: has(run, "slow", "completed"))
        first.open()
        assert (await run.result())["race"] == ["quick"]


async def test_outputs_are_pinned_when_a_step_is_released(app: Stepfast) -> None:
    """Rule 43: a new attempt, on another worker, sees what the first one saw."""
    late, held = Gate(), Gate()
    seen: list[list[str]] = []
    dag = app.dag("dag")

    @dag.step
    async def slow(ctx: Any) -> None:
        await late.passing()

    dag.declare(give, name="quick")

    @dag.step(after=["slow", "quick"], join="any")
    async def race(ctx: Any) -> None:
        seen.append(list(ctx.outputs))
        await held.passing()

    run = await app.start(dag)
    async with app.worker(shutdown_grace=0):
        await late.reached()
        await held.reached()
        late.open()
        await eventually(lambda: has(run, "slow", "completed"))
    held.open()
    await app.drain()
    assert seen == [["quick"], ["quick"]]
    assert await run.status() == "completed"


async def test_a_run_ends_when_every_step_is_settled_also_those_nobody_waited_for(app: Stepfast) -> None:
    """Rule 43."""
    gate = Gate()
    dag = app.dag("dag")

    @dag.step
    async def slow(ctx: Any) -> str:
        await gate.passing()
        return "slow"

    dag.declare(give, name="quick")
    dag.declare(give, name="race", after=["slow", "quick"], join="any")
    run = await app.start(dag)
    async with app.worker():
        await gate.reached()
        await eventually(lambda: has(run, "race", "completed"))
        assert await run.status() == "running"
        gate.open()
        assert await run.result() == {"slow": "slow", "quick": "quick", "race": "race"}


@pytest.mark.enough_on("postgres", "sqlite")
async def test_a_join_of_any_is_done_once(app: Stepfast, calls: Calls) -> None:
    dag = app.dag("dag")
    for name in "abcdef":
        dag.declare(give, name=name)
    dag.declare(lambda ctx: calls.hit("race"), name="race", after=list("abcdef"), join="any")
    run = await app.start(dag)
    await app.drain()
    assert (await run.result())["race"] == 1
    assert calls == {"race": 1}


async def test_a_join_of_any_does_not_count_skipped_steps(app: Stepfast) -> None:
    dag = app.dag("dag")
    gate = Gate()

    @dag.step
    async def late(ctx: Any) -> None:
        await gate.passing()

    dag.declare(give, name="never", when=lambda ctx: False)
    dag.declare(names("late", "never"), name="race", after=["late", "never"], join="any")
    run = await app.start(dag)
    async with app.worker():
        await gate.reached()
        await eventually(lambda: has(run, "never", "skipped"))
        assert (await how(run))["race"] == "waiting"
        gate.open()
        assert (await run.result())["race"] == ["late"]


async def test_k_of_n_begin_with_the_kth(app: Stepfast) -> None:
    gates = {name: Gate() for name in ("one", "two", "three")}
    dag = app.dag("dag")

    async def vote(ctx: Any) -> None:
        await gates[ctx.step_name].passing()

    for name in gates:
        dag.declare(vote, name=name)
    dag.declare(names(*gates), name="quorum", after=list(gates), at_least=2)
    run = await app.start(dag)
    async with app.worker():
        gates["three"].open()
        await eventually(lambda: has(run, "three", "completed"))
        assert (await how(run))["quorum"] == "waiting"
        gates["one"].open()
        await eventually(lambda: has(run, "quorum", "completed"))
        assert (await how(run))["two"] == "running"
        gates["two"].open()
        assert (await run.result())["quorum"] == ["one", "three"]


async def test_a_join_that_can_no_longer_be_met_is_skipped(app: Stepfast) -> None:
    """Rule 43: as soon as that is clear, with what hangs on it."""
    gate = Gate()
    dag = app.dag("dag")
    for name in ("a", "b"):
        dag.declare(give, name=name, when=lambda ctx: False)

    @dag.step
    async def c(ctx: Any) -> None:
        await gate.passing()

    dag.declare(give, name="quorum", after=["a", "b", c], at_least=2)
    dag.declare(give, name="act", after=["quorum"])
    run = await app.start(dag)
    async with app.worker():
        await gate.reached()
        await eventually(lambda: has(run, "act", "skipped"))
        assert (await how(run))["quorum"] == "skipped"
        gate.open()
        assert await run.result() == {"c": None}


# -- catch -----------------------------------------------------------------------------------------------------------


async def test_a_caught_error_leads_to_its_step_instead_of_failing(app: Stepfast, calls: Calls) -> None:
    dag = app.dag("dag")

    @dag.step(retries=1, backoff=QUICK, catch={ValueError: "tell"})
    async def pay(ctx: Any) -> None:
        calls.hit("pay")
        raise ValueError("no money")

    dag.declare(give, name="ship", after=["pay"])
    dag.declare(give, name="tell")
    run = await app.start(dag)
    await app.drain()
    assert await run.result() == {"tell": "tell"}
    assert await run.status() == "completed"
    assert await how(run) == {"pay": "failed", "ship": "skipped", "tell": "completed"}
    assert calls == {"pay": 2}


async def test_the_step_for_an_error_is_skipped_when_there_is_none(app: Stepfast) -> None:
    dag = app.dag("dag")
    dag.declare(give, name="pay", catch={ValueError: "tell"})
    dag.declare(give, name="ship", after=["pay"])
    dag.declare(give, name="tell")
    run = await app.start(dag)
    await app.drain()
    assert await run.result() == {"pay": "pay", "ship": "ship"}


async def test_another_error_fails_the_run(app: Stepfast) -> None:
    dag = app.dag("dag")
    dag.declare(no, name="pay", catch={ValueError: "tell"})
    dag.declare(give, name="tell")
    run = await app.start(dag)
    await app.drain()
    with pytest.raises(RunFailed, match="pay cannot"):
        await run.result()
    assert await how(run) == {"pay": "failed", "tell": "skipped"}


async def test_errors_of_several_types_lead_to_several_steps(app: Stepfast) -> None:
    """A base class catches its children; the first that fits is taken."""
    dag = app.dag("dag")
    errors: dict[str, Exception] = {"key": KeyError("k"), "value": ValueError("v"), "index": IndexError("i")}

    @dag.step(retries=0, catch={KeyError: "by key", LookupError: "by lookup", ValueError: "by value"})
    async def work(ctx: Any) -> None:
        raise errors[ctx.input]

    for name in ("by key", "by lookup", "by value"):
        dag.declare(give, name=name)
    runs = {kind: await app.start(dag, kind) for kind in errors}
    await app.drain()
    assert {kind: list(await run.result()) for kind, run in runs.items()} == {
        "key": ["by key"],
        "value": ["by value"],
        "index": ["by lookup"],
    }


async def test_the_error_of_a_checkpoint_is_caught_by_its_type(app: Stepfast) -> None:
    """What the step raises is a StepFailed, which says of what type its error was."""
    dag = app.dag("dag")

    @dag.step(retries=0, catch={ZeroDivisionError: "tell"})
    async def work(ctx: Any) -> None:
        await ctx.step("divide", lambda: 1 / 0)

    dag.declare(give, name="tell")
    run = await app.start(dag)
    await app.drain()
    assert await run.result() == {"tell": "tell"}


async def test_a_target_can_be_named_by_its_function(app: Stepfast) -> None:
    dag = app.dag("dag")

    @dag.step(name="tell them")
    async def tell(ctx: Any) -> str:
        return "told"

    @dag.step(catch={NonRetryableError: tell})
    async def pay(ctx: Any) -> None:
        raise NonRetryableError("no")

    run = await app.start(dag)
    await app.drain()
    assert await run.result() == {"tell them": "told"}


async def test_the_target_can_also_be_what_comes_next(app: Stepfast) -> None:
    """In either case it is done once."""
    dag = app.dag("dag")

    @dag.step(catch={NonRetryableError: "close"})
    async def pay(ctx: Any) -> int:
        if ctx.input:
            raise NonRetryableError("no")
        return 1

    dag.declare(names("pay"), name="close", after=["pay"])
    bad, good = await app.start(dag, True), await app.start(dag, False)
    await app.drain()
    assert (await bad.result(), await good.result()) == ({"close": []}, {"pay": 1, "close": ["pay"]})


async def test_two_ways_meet_again_after_a_caught_error(app: Stepfast) -> None:
    dag = app.dag("dag")

    @dag.step(catch={NonRetryableError: "by invoice"})
    async def by_card(ctx: Any) -> int:
        if ctx.input == "bad card":
            raise NonRetryableError("declined")
        return 1

    dag.declare(give, name="by invoice")
    dag.declare(names("by_card", "by invoice"), name="ship", after=["by_card", "by invoice"])
    runs = [await app.start(dag, "bad card"), await app.start(dag, "good card")]
    await app.drain()
    assert [(await run.result())["ship"] for run in runs] == [["by invoice"], ["by_card"]]


async def test_what_a_caught_step_recorded_is_undone_before_its_target_begins(app: Stepfast) -> None:
    log: list[str] = []
    dag = app.dag("dag")

    @dag.step(catch={NonRetryableError: "tell"})
    async def book(ctx: Any) -> None:
        await ctx.options(compensate=lambda output: log.append("undo")).step("reserve", lambda: log.append("reserve"))
        raise NonRetryableError("full")

    dag.declare(lambda ctx: log.append("tell"), name="tell")
    run = await app.start(dag)
    await app.drain()
    assert log == ["reserve", "undo", "tell"]
    assert await run.result() == {"tell": None}


async def test_a_caught_error_is_told_of_its_step(app: Stepfast) -> None:
    dag = app.dag("dag")
    dag.declare(no, name="pay", catch={NonRetryableError: "tell"})
    dag.declare(give, name="tell")
    run = await app.start(dag)
    await app.drain()
    info = (await steps_of(run))["pay"]
    assert (info.status, info.detail) == ("failed", "caught:tell")
    assert info.error is not None and info.error.message == "pay cannot"


async def test_the_target_of_a_caught_error_may_fail_itself(app: Stepfast) -> None:
    dag = app.dag("dag")
    dag.declare(no, name="pay", catch={NonRetryableError: "tell"})
    dag.declare(no, name="tell")
    run = await app.start(dag)
    await app.drain()
    with pytest.raises(RunFailed, match="step 'tell' failed"):
        await run.result()


async def test_a_timeout_can_be_caught(app: Stepfast) -> None:
    dag = app.dag("dag")
    gate = Gate()

    @dag.step(timeout=0.05, retries=0, catch={AttemptTimeout: "later"})
    async def slow(ctx: Any) -> None:
        await gate.passing()

    dag.declare(give, name="later")
    run = await app.start(dag)
    await app.drain()
    assert await run.result() == {"later": "later"}


@pytest.mark.parametrize("broken", [False, True])
async def test_a_step_that_errors_lead_to_and_that_comes_after_others_is_done_either_way(
    app: Stepfast, broken: bool
) -> None:
    dag = app.dag("dag")

    @dag.step(catch={NonRetryableError: "report"})
    async def pay(ctx: Any) -> str:
        if broken:
            raise NonRetryableError("no")
        return "paid"

    dag.declare(lambda ctx: "packed", name="pack")
    dag.declare(lambda ctx: sorted(ctx.outputs), name="report", after=["pack"])
    run = await app.start(dag)
    await app.drain()
    assert (await run.result())["report"] == (["pack"] if broken else ["pack", "pay"])


async def test_a_catch_that_is_new_in_the_code_does_not_lead_an_old_run_astray(make_app: MakeApp) -> None:
    """The graph of the start has no such way."""
    old, new = make_app(), make_app()
    old.dag("dag").declare(no, name="pay")
    run = await old.start("dag")
    dag = new.dag("dag")
    dag.declare(no, name="pay", catch={NonRetryableError: "tell"})
    dag.declare(give, name="tell")
    await new.drain()
    assert await run.status() == "failed"


@pytest.mark.parametrize("moment", [2.0, 0.0])
async def test_conditions_joins_and_catches_together(make_app: MakeApp, moment: float) -> None:
    app = make_app(settings=Settings(inline_wait=moment))
    dag = app.dag("dag")
    dag.declare(give, name="root")
    dag.declare(no, name="broken", after=["root"], catch={NonRetryableError: "repair"})
    dag.declare(give, name="skipped", after=["root"], when=lambda ctx: False)
    dag.declare(give, name="repair")
    dag.declare(give, name="done", after=["root"])
    dag.declare(names("root", "broken", "skipped", "repair", "done"), name="end",
                after=["broken", "skipped", "repair", "done"], at_least=2)  # fmt: skip
    run = await app.start(dag)
    await app.drain()
    assert (await run.result())["end"] == ["root", "repair", "done"]


@pytest.mark.enough_on("postgres", "sqlite")
async def test_a_skip_survives_a_worker_that_stops(app: Stepfast, calls: Calls) -> None:
    gate = Gate()
    dag = app.dag("dag")

    async def ask(ctx: Any) -> bool:
        calls.hit("asked")
        await gate.passing()
        return False

    dag.declare(give, name="work", when=ask)
    run = await app.start(dag)
    await interrupt(app, gate)
    gate.open()
    await app.drain()
    assert (await run.result(), calls) == ({}, {"asked": 2})


@pytest.mark.parametrize("error", [ValueError, OSError])
async def test_several_errors_can_lead_to_one_step(app: Stepfast, error: type[Exception]) -> None:
    dag = app.dag("dag")

    @dag.step(retries=0, catch={(ValueError, OSError): "instead", KeyError: "other"})
    async def work(ctx: Any) -> None:
        raise error("no")

    dag.declare(give, name="instead")
    dag.declare(give, name="other")
    run = await app.start(dag)
    await app.drain()
    assert await run.result() == {"instead": "instead"}
    assert dag.graph.dag_steps["work"].catch == {"ValueError": "instead", "OSError": "instead", "KeyError": "other"}
