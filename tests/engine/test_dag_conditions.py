"""Conditions, joins and caught errors in dags (rule 43)."""

from __future__ import annotations

from typing import Any

import pytest

from stepfast import AttemptTimeout, NonRetryableError, Stepfast
from tests.engine.conftest import ON_BOTH, ON_SQLITE, WAITS, MakeApp
from tests.support.dags import QUICK, build, give, how, make_step_due, names, no, passing, step_is, steps_of
from tests.support.engine import Calls, Gate, drained, failure, finished, outcome, replayed

pytestmark = ON_SQLITE


def never(ctx: Any) -> bool:
    """A condition that is not met."""
    return False


# -- when --------------------------------------------------------------------------------------------------------


async def test_a_condition_decides_on_the_input(app: Stepfast) -> None:
    """Also an async one, and one of a plain function."""

    async def later(ctx: Any) -> bool:
        return bool(ctx.input["cents"])

    dag = app.dag("dag")
    dag.declare(give, name="charge", when=lambda ctx: ctx.input["cents"] > 0)
    dag.declare(lambda ctx: 1, name="plain", when=later)
    free, paid = await app.start(dag, {"cents": 0}), await app.start(dag, {"cents": 5})
    await app.drain()
    assert (await free.result(), await paid.result()) == ({}, {"charge": "charge", "plain": 1})
    assert (await how(free), await free.status()) == ({"charge": "skipped", "plain": "skipped"}, "completed")


async def test_a_condition_decides_on_earlier_outputs(app: Stepfast) -> None:
    dag = build(app, {"score": lambda ctx: ctx.input})
    dag.declare(give, name="high", after=["score"], when=lambda ctx: ctx.outputs["score"] > 5)
    dag.declare(give, name="low", after=["score"], when=lambda ctx: ctx.outputs["score"] <= 5)
    runs = [await app.start(dag, 9), await app.start(dag, 1)]
    await app.drain()
    assert [set(await run.result()) for run in runs] == [{"score", "high"}, {"score", "low"}]


async def test_a_skipped_step_is_not_called(app: Stepfast, calls: Calls) -> None:
    dag = app.dag("dag")
    dag.declare(lambda ctx: calls.hit("work"), name="work", when=lambda ctx: calls.hit("condition") == 0)
    assert await outcome(app, dag) == {}
    assert calls == {"condition": 1}


async def test_a_condition_that_raises_is_a_failed_attempt_of_its_step(app: Stepfast, calls: Calls) -> None:
    def shaky(ctx: Any) -> bool:
        if calls.hit("condition") == 1:
            raise KeyError("not there yet")
        return True

    dag = app.dag("dag")
    dag.declare(give, name="work", when=shaky, retries=1, backoff=QUICK)
    assert await outcome(app, dag) == {"work": "work"}
    assert calls == {"condition": 2}


async def test_a_condition_that_always_raises_fails_its_step(app: Stepfast, calls: Calls) -> None:
    """Its error can be caught like one of the step."""
    dag = app.dag("dag")
    options: dict[str, Any] = {"when": lambda ctx: ctx.outputs["nothing"], "retries": 0}
    dag.declare(lambda ctx: calls.hit("work"), name="work", **options)
    said = r"step 'work' failed: KeyError: .*there is no step 'nothing' in this dag"
    await failure(await drained(app, dag), said)
    assert calls == {}
    caught = build(app, {"instead": give}, "caught")
    caught.declare(give, name="work", catch={KeyError: "instead"}, **options)
    assert await outcome(app, caught) == {"instead": "instead"}


async def test_a_condition_that_is_new_in_the_code_does_not_count_for_runs_of_the_old_graph(
    app: Stepfast, make_app: MakeApp
) -> None:
    run = await app.start(build(app, {"work": give}))
    other = make_app()
    new = other.dag("dag")
    new.declare(give, name="work", when=never)
    later = await drained(other, new)
    assert (await run.result(), await later.result()) == ({"work": "work"}, {})


async def test_a_condition_that_the_code_no_longer_has_is_met(app: Stepfast, make_app: MakeApp) -> None:
    old = app.dag("dag")
    old.declare(give, name="work", when=never)
    run = await app.start(old)
    other = make_app()
    build(other, {"work": give})
    assert await finished(other, run) == {"work": "work"}


async def test_a_step_that_has_begun_is_not_skipped_any_more(app: Stepfast, calls: Calls) -> None:
    """Else what it did before its sleep would never be undone."""
    dag = app.dag("dag")

    @dag.step(when=lambda ctx: calls.hit("condition") == 1)
    async def work(ctx: Any) -> str:
        await ctx.step("first", lambda: calls.hit("first"))
        await ctx.sleep(7200)
        return "whole"

    run = await drained(app, dag)
    await make_step_due(app, run, "work")
    assert await finished(app, run) == {"work": "whole"}


@ON_BOTH
async def test_a_condition_is_evaluated_again_after_a_worker_stopped(app: Stepfast, calls: Calls) -> None:
    gate, dag = Gate(), app.dag("dag")

    async def condition(ctx: Any) -> bool:
        calls.hit("condition")
        await gate.passing()
        return False

    dag.declare(give, name="work", when=condition)
    run = await replayed(app, gate, dag)
    assert (await run.result(), calls) == ({}, {"condition": 2})


# -- what a skipped step means to others -----------------------------------------------------------------------------


async def test_what_depends_only_on_a_skipped_step_is_skipped_too(app: Stepfast, calls: Calls) -> None:
    dag = app.dag("dag")
    dag.declare(give, name="gift", when=never)
    for name, before in (("wrap", "gift"), ("ribbon", "wrap"), ("card", "ribbon")):
        dag.declare(lambda ctx: calls.hit("done"), name=name, after=[before])
    run = await drained(app, dag)
    assert await run.result() == {}
    assert await how(run) == dict.fromkeys(("gift", "wrap", "ribbon", "card"), "skipped")
    assert calls == {}


async def test_a_skipped_step_counts_as_finished(app: Stepfast) -> None:
    """A join with another completed dependency begins without it, and an error names it."""
    dag = build(app, {"pack": give})
    dag.declare(give, name="gift", when=never)
    dag.declare(names("gift", "pack"), name="ship", after=["gift", "pack"])
    assert await outcome(app, dag) == {"pack": "pack", "ship": ["pack"]}
    dag.declare(lambda ctx: ctx.outputs["gift"], name="thank", after=["gift", "pack"], retries=0)
    await failure(await drained(app, dag), "step 'gift' has no output: it was skipped")


async def test_a_join_waits_for_a_condition_that_is_not_decided_yet(app: Stepfast) -> None:
    gate, dag = Gate(), build(app, {"sure": give})
    dag.declare(give, name="maybe", when=passing(gate, False))
    dag.declare(names("maybe", "sure"), name="join", after=["maybe", "sure"])
    run = await app.start(dag)
    async with app.worker():
        await gate.reached()
        await step_is(run, "sure", "completed")
        assert (await how(run))["join"] == "waiting"
        gate.open()
        assert (await run.result())["join"] == ["sure"]


# -- joins ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"join": "any"}, {"at_least": 1}], ids=["any", "at least 1"])
async def test_a_join_of_any_begins_with_the_first(app: Stepfast, options: dict[str, Any]) -> None:
    """The other is still at its gate; and its output is not there later either."""
    gate, first = Gate(), Gate()

    async def look(ctx: Any) -> list[str]:
        await first.passing()
        return list(ctx.outputs)

    dag = build(app, {"slow": passing(gate), "quick": give})
    dag.declare(look, name="race", after=["slow", "quick"], **options)
    run = await app.start(dag)
    async with app.worker():
        await gate.reached()
        await first.reached()
        gate.open()
        await step_is(run, "slow", "completed")
        first.open()
        assert (await run.result())["race"] == ["quick"]


async def test_outputs_are_pinned_when_a_step_is_released(app: Stepfast) -> None:
    """A new attempt, on another worker, sees what the first one saw."""
    late, held = Gate(), Gate()
    seen: list[list[str]] = []
    dag = build(app, {"slow": passing(late), "quick": give})

    @dag.step(after=["slow", "quick"], join="any")
    async def race(ctx: Any) -> None:
        seen.append(list(ctx.outputs))
        await held.passing()

    run = await app.start(dag)
    async with app.worker(shutdown_grace=0):
        await late.reached()
        await held.reached()
        late.open()
        await step_is(run, "slow", "completed")
    held.open()
    await app.drain()
    assert seen == [["quick"], ["quick"]]
    assert await run.status() == "completed"


async def test_a_run_ends_when_every_step_has_ended_also_those_no_step_waited_for(app: Stepfast) -> None:
    gate = Gate()
    dag = build(app, {"slow": passing(gate, "slow"), "quick": give})
    dag.declare(give, name="race", after=["slow", "quick"], join="any")
    run = await app.start(dag)
    async with app.worker():
        await gate.reached()
        await step_is(run, "race", "completed")
        assert await run.status() == "running"
        gate.open()
        assert await run.result() == {"slow": "slow", "quick": "quick", "race": "race"}


@ON_BOTH
async def test_a_join_of_any_is_done_once(app: Stepfast, calls: Calls) -> None:
    dag = build(app, dict.fromkeys("abcdef", give))
    dag.declare(lambda ctx: calls.hit("race"), name="race", after=list("abcdef"), join="any")
    assert (await outcome(app, dag))["race"] == 1
    assert calls == {"race": 1}


async def test_a_join_of_any_does_not_count_skipped_steps(app: Stepfast) -> None:
    gate = Gate()
    dag = build(app, {"late": passing(gate)})
    dag.declare(give, name="never", when=never)
    dag.declare(names("late", "never"), name="race", after=["late", "never"], join="any")
    run = await app.start(dag)
    async with app.worker():
        await gate.reached()
        await step_is(run, "never", "skipped")
        assert (await how(run))["race"] == "waiting"
        gate.open()
        assert (await run.result())["race"] == ["late"]


async def test_k_of_n_begin_with_the_kth(app: Stepfast) -> None:
    gates = {name: Gate() for name in ("one", "two", "three")}
    dag = build(app, {name: passing(gate) for name, gate in gates.items()})
    dag.declare(names(*gates), name="quorum", after=list(gates), at_least=2)
    run = await app.start(dag)
    async with app.worker():
        gates["three"].open()
        await step_is(run, "three", "completed")
        assert (await how(run))["quorum"] == "waiting"
        gates["one"].open()
        await step_is(run, "quorum", "completed")
        assert (await how(run))["two"] == "running"
        gates["two"].open()
        assert (await run.result())["quorum"] == ["one", "three"]


async def test_a_join_that_can_no_longer_be_met_is_skipped(app: Stepfast) -> None:
    """As soon as that is clear, with what depends on it."""
    gate = Gate()
    dag = build(app, {"c": passing(gate), "act < quorum": give})
    for name in ("a", "b"):
        dag.declare(give, name=name, when=never)
    dag.declare(give, name="quorum", after=["a", "b", "c"], at_least=2)
    run = await app.start(dag)
    async with app.worker():
        await gate.reached()
        await step_is(run, "act", "skipped")
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
    run = await drained(app, dag)
    assert await run.result() == {"tell": "tell"}
    assert await run.status() == "completed"
    assert await how(run) == {"pay": "failed", "ship": "skipped", "tell": "completed"}
    info = (await steps_of(run))["pay"]
    assert (info.detail, info.error and info.error.message, calls) == ("caught:tell", "no money", {"pay": 2})


@pytest.mark.parametrize(
    ("pay", "tell", "said", "states"),
    [
        (give, give, "", {"pay": "completed", "ship": "completed", "tell": "skipped"}),
        (no, give, "pay broke", {"pay": "failed", "ship": "skipped", "tell": "skipped"}),
    ],
    ids=["no error", "another error"],
)
async def test_the_step_for_an_error_is_skipped_without_that_error(
    app: Stepfast, pay: Any, tell: Any, said: str, states: dict[str, str]
) -> None:
    dag = build(app, {"ship < pay": give, "tell": tell})
    dag.declare(pay, name="pay", catch={ValueError: "tell"})
    run = await drained(app, dag)
    if said:
        await failure(run, said)
    assert await how(run) == states


async def test_the_step_for_an_error_may_fail_itself(app: Stepfast) -> None:
    dag = build(app, {"tell": no})
    dag.declare(no, name="pay", catch={NonRetryableError: "tell"})
    await failure(await drained(app, dag), "step 'tell' failed")


async def test_errors_of_several_types_lead_to_several_steps(app: Stepfast) -> None:
    """A base class catches its subclasses; the first that fits is taken; several can lead to one step."""
    errors: dict[str, Exception] = {
        "key": KeyError("k"), "index": IndexError("i"), "value": ValueError("v"), "os": OSError("o")
    }  # fmt: skip
    dag = build(app, dict.fromkeys(("by-key", "by-lookup", "by-tuple"), give))

    @dag.step(retries=0, catch={KeyError: "by-key", LookupError: "by-lookup", (ValueError, OSError): "by-tuple"})
    async def work(ctx: Any) -> None:
        raise errors[ctx.input]

    runs = {kind: await app.start(dag, kind) for kind in errors}
    await app.drain()
    assert {kind: list(await run.result()) for kind, run in runs.items()} == {
        "key": ["by-key"], "index": ["by-lookup"], "value": ["by-tuple"], "os": ["by-tuple"]
    }  # fmt: skip
    assert dag.graph.dag_steps["work"].catch == {
        "KeyError": "by-key", "LookupError": "by-lookup", "ValueError": "by-tuple", "OSError": "by-tuple"
    }  # fmt: skip


class Declined(ValueError):
    """A subclass of the application."""


@pytest.mark.parametrize(("kind", "raised"), [(ValueError, Declined), (ZeroDivisionError, ZeroDivisionError)])
async def test_the_error_of_a_checkpoint_is_caught_by_its_type(
    app: Stepfast, kind: type[Exception], raised: type[Exception]
) -> None:
    """The handler raises StepFailed, which has only the names of the classes of the error."""

    def fail() -> None:
        raise raised("no")

    dag = build(app, {"tell": give})
    dag.declare(lambda ctx: ctx.step("card", fail), name="work", retries=0, catch={kind: "tell"})
    assert await outcome(app, dag) == {"tell": "tell"}


async def test_a_timeout_can_be_caught(app: Stepfast) -> None:
    dag = build(app, {"later": give})
    dag.declare(passing(Gate()), name="slow", timeout=0.05, retries=0, catch={AttemptTimeout: "later"})
    assert await outcome(app, dag) == {"later": "later"}


async def test_the_step_for_an_error_can_be_named_by_its_function(app: Stepfast) -> None:
    dag = app.dag("dag")

    @dag.step(name="tell them")
    async def tell(ctx: Any) -> str:
        return "told"

    dag.declare(no, name="pay", catch={NonRetryableError: tell})
    assert await outcome(app, dag) == {"tell them": "told"}


@pytest.mark.parametrize("broken", [False, True])
async def test_the_step_for_an_error_may_come_after_others(app: Stepfast, broken: bool) -> None:
    """After the step itself, or after another one: in either case it is done once."""

    async def pay(ctx: Any) -> int:
        if broken:
            raise NonRetryableError("no")
        return 1

    dag = app.dag("dag")
    dag.declare(pay, name="pay", catch={NonRetryableError: "close"})
    dag.declare(names("pay"), name="close", after=["pay"])
    assert await outcome(app, dag) == ({"close": []} if broken else {"pay": 1, "close": ["pay"]})
    other = build(app, {"pack": give, "report < pack": lambda ctx: sorted(ctx.outputs)}, "other")
    other.declare(pay, name="pay", catch={NonRetryableError: "report"})
    assert (await outcome(app, other))["report"] == (["pack"] if broken else ["pack", "pay"])


async def test_two_ways_meet_again_after_a_caught_error(app: Stepfast) -> None:
    dag = build(app, {"invoice": give, "ship < card invoice": names("card", "invoice")})

    @dag.step(catch={NonRetryableError: "invoice"})
    async def card(ctx: Any) -> int:
        if ctx.input == "bad card":
            raise NonRetryableError("declined")
        return 1

    runs = [await app.start(dag, "bad card"), await app.start(dag, "good card")]
    await app.drain()
    assert [(await run.result())["ship"] for run in runs] == [["invoice"], ["card"]]


async def test_what_a_caught_step_recorded_is_undone_before_the_step_for_its_error(app: Stepfast) -> None:
    log: list[str] = []
    dag = build(app, {"tell": lambda ctx: log.append("tell")})

    @dag.step(catch={NonRetryableError: "tell"})
    async def book(ctx: Any) -> None:
        await ctx.options(compensate=lambda output: log.append("undo")).step("reserve", lambda: log.append("reserve"))
        raise NonRetryableError("full")

    assert await outcome(app, dag) == {"tell": None}
    assert log == ["reserve", "undo", "tell"]


async def test_a_catch_that_is_new_in_the_code_does_not_count_for_runs_of_the_old_graph(make_app: MakeApp) -> None:
    old, new = make_app(), make_app()
    run = await old.start(build(old, {"pay": no}))
    dag = build(new, {"tell": give})
    dag.declare(no, name="pay", catch={NonRetryableError: "tell"})
    await new.drain()
    assert await run.status() == "failed"


@WAITS
async def test_conditions_joins_and_catches_together(app: Stepfast) -> None:
    dag = build(app, {"root": give, "repair": give, "done < root": give})
    dag.declare(no, name="broken", after=["root"], catch={NonRetryableError: "repair"})
    dag.declare(give, name="skipped", after=["root"], when=never)
    steps = ["broken", "skipped", "repair", "done"]
    dag.declare(names("root", *steps), name="end", after=steps, at_least=2)
    assert (await outcome(app, dag))["end"] == ["root", "repair", "done"]
