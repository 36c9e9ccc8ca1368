"""Definitions of dags: checked as a whole, kept with their version, given as data."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from stepfast import ConfigurationError, Context, GraphError, NonRetryableError, Stepfast, step
from tests.engine.conftest import ON_SQLITE, MakeApp
from tests.support.dags import QUICK, Saga, build, how, steps_of
from tests.support.dags import give as work
from tests.support.engine import Calls, drained, failure, outcome
from tests.support.waiting import rows_of

pytestmark = ON_SQLITE


async def rows_in(app: Stepfast, *tables: str) -> int:
    """How many rows there are in these tables."""
    async with rows_of(app) as rows:
        return sum([len(await rows.fetch(f"SELECT 1 FROM [{table}]")) for table in tables])


# -- what is wrong -------------------------------------------------------------------------------------------------


async def test_all_problems_are_reported_together_and_by_name(app: Stepfast) -> None:
    dag = app.dag("dag")
    dag.declare(work, name="a", after=["nowhere"])
    dag.declare(work, name="b", after=["c"])
    dag.declare(work, name="c", after=["b"])
    dag.declare(work, name="d", after=["a", "a"])
    dag.declare(work, name="a", after=["nowhere"])
    dag.declare(work, name="e", after=["a"], at_least=2)
    dag.declare(work, name="f", join="any")
    dag.declare(work, name="g", catch={ValueError: "gone"})
    with pytest.raises(GraphError) as caught:
        await app.start(dag)
    assert sorted(caught.value.problems) == sorted([
        "there are two steps named 'a'",
        "step 'a' comes after 'nowhere', which does not exist",
        "step 'd' names a dependency twice",
        "at_least of step 'e' is 2, but the number of its dependencies is 1",
        "step 'f' says how many dependencies it waits for (join or at_least), but has none",
        "step 'g' catches ValueError with step 'gone', which does not exist",
        "the steps wait for each other in a circle: b → c → b",
    ])  # fmt: skip
    for problem in caught.value.problems:
        assert problem in str(caught.value)
    assert "'dag'" in str(caught.value)


@pytest.mark.parametrize(
    ("edges", "path"),
    [
        ({"a": ["c"], "b": ["a"], "c": ["b"]}, {"a → b → c → a", "b → c → a → b", "c → a → b → c"}),
        ({"root": [], "a": ["root", "b"], "b": ["a"], "leaf": ["b"]}, {"a → b → a", "b → a → b"}),
    ],
)
async def test_a_circle_is_refused_with_its_path(app: Stepfast, edges: dict[str, list[str]], path: set[str]) -> None:
    dag = app.dag("dag")
    for name, after in edges.items():
        dag.declare(work, name=name, after=after)
    with pytest.raises(GraphError) as caught:
        dag.graph
    [problem] = caught.value.problems
    assert problem.removeprefix("the steps wait for each other in a circle: ") in path


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        ([("a", {"after": ["a"]})], "step 'a' comes after itself"),
        ([("a", {}), ("b", {"after": ["a"], "catch": {ValueError: "a"}})], "circle"),
        ([("a", {"after": [NonRetryableError]})], "comes after 'NonRetryableError', which does not exist"),
        ([], "it has no steps"),
    ],
    ids=["after itself", "circle by way of an error", "undeclared function", "empty"],
)
async def test_a_graph_that_cannot_be_executed_is_refused(
    app: Stepfast, steps: list[tuple[str, dict[str, Any]]], problem: str
) -> None:
    dag = app.dag("dag")
    for name, options in steps:
        dag.declare(work, name=name, **options)
    with pytest.raises(GraphError, match=problem):
        await app.start(dag)


async def test_a_bad_graph_is_refused_before_anything_is_written(app: Stepfast) -> None:
    """Neither a start nor a worker begins."""
    dag = build(app, {"a < nowhere": work})
    app.task(name="fine")(lambda: None)
    for begin in (lambda: app.start(dag), lambda: app.start("dag"), lambda: app.start_many(dag, [1, 2]), app.drain):
        with pytest.raises(GraphError, match="nowhere"):
            await begin()
    with pytest.raises(GraphError, match="nowhere"):
        async with app.worker():
            pytest.fail("it started")
    assert await rows_in(app, "runs", "definitions", "workers") == 0


async def test_a_step_that_is_added_later_belongs_to_runs_from_then_on(app: Stepfast) -> None:
    """And one that cannot be executed stops the next worker."""
    dag = build(app, {"a": work})
    first = await app.start(dag)
    dag.declare(work, name="b", after=["a"])
    second = await drained(app, dag)
    assert (await first.result(), await second.result()) == ({"a": "a"}, {"a": "a", "b": "b"})
    dag.declare(work, name="c", after=["nowhere"])
    with pytest.raises(GraphError, match="nowhere"):
        await app.drain()


# -- what is refused at once -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"join": "some"}, 'join must be "all" or "any"'),
        ({"join": "any", "at_least": 2}, "not both"),
        ({"at_least": "2"}, "at_least must be a whole number"),
        ({"at_least": True}, "at_least must be a whole number"),
        ({"at_least": 0}, "at_least must be a whole number"),
        ({"retries": -1}, "retries"),
        ({"retries": 1.5}, "retries"),
        ({"timeout": -1}, "timeout"),
        ({"backoff": 3}, "backoff"),
        ({"when": True}, "when must be a function"),
        ({"compensate": "undo"}, "compensate must be a function"),
        ({"when": lambda: True}, r"when must be a function of the context alone; <lambda> takes \(\)"),
        ({"compensate": lambda ctx, output: None}, "compensate must be a function of the context alone"),
        ({"compensate": step(lambda output, ctx: None)}, "compensate must be a function of the context alone"),
        ({"after": "ab"}, "after must be a list of steps, not the string 'ab'"),
        ({"after": None}, "after must be a list of steps, not None"),
        ({"after": 3}, "after must be a list of steps, not 3"),
        ({"after": ["x", 3]}, "after takes names of steps, or their functions, not 3"),
        ({"catch": {"ValueError": "x"}}, "catch takes classes of Exception, or tuples of them, not 'ValueError'"),
        ({"catch": {ValueError("x"): "x"}}, r"catch takes classes of Exception, .* not ValueError\('x'\)"),
        ({"catch": {int: "x"}}, "catch takes classes of Exception, .* not <class 'int'>"),
        ({"catch": {KeyboardInterrupt: "x"}}, "catch takes classes of Exception, .*KeyboardInterrupt"),
        ({"catch": {(ValueError, "OSError"): "x"}}, "catch takes classes of Exception, .*'OSError'"),
        ({"catch": {(): "x"}}, r"catch takes classes of Exception, .* not \(\)"),
        ({"catch": {(ValueError, OSError): "x", OSError: "y"}}, "catch has OSError twice"),
        ({"catch": {ValueError: None}}, "catch of ValueError takes names of steps, or their functions, not None"),
        ({"catch": [ValueError]}, "catch must map exception classes to steps"),
        ({"name": ""}, "name"),
    ],
)
async def test_options_that_make_no_sense_are_refused_where_they_stand(
    app: Stepfast, options: dict[str, Any], said: str
) -> None:
    dag = app.dag("dag")
    with pytest.raises(ConfigurationError, match=said):
        dag.declare(work, **{"name": "a", "after": ["x", "y"], **options})
    assert dag.steps == {}


async def test_a_refusal_names_the_step_and_the_dag(app: Stepfast) -> None:
    dag = app.dag("order")
    with pytest.raises(ConfigurationError, match=r"^step 'pay' of dag 'order': catch takes .* not 'ValueError'"):
        dag.declare(work, name="pay", catch={"ValueError": "x"})  # type: ignore[dict-item]
    for after, said in ((None, "None"), ("ab", "the string 'ab'")):
        with pytest.raises(ConfigurationError, match=rf"^step 'ok' of dag 'order': after must be a list of .* {said}"):
            dag.approval("ok", after=after)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"step 'two' of dag 'order' must take the context alone.*ctx\.input"):
        dag.declare(lambda ctx, order: None, name="two")
    with pytest.raises(ConfigurationError, match="context"):
        dag.declare(lambda: None, name="none")
    with pytest.raises(ConfigurationError, match="must be a function"):
        dag.declare("work", name="a")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="already a dag named 'order'"):
        app.dag("order")


async def test_conditions_and_undos_without_a_signature_are_accepted(app: Stepfast) -> None:
    """Some functions written in C have none; others take more than they need."""
    dag = app.dag("dag")
    dag.declare(work, name="a", when=bool, compensate=lambda ctx, loud=False: None)  # type: ignore[misc]
    assert await outcome(app, dag) == {"a": "a"}


@pytest.mark.parametrize("called", ["app.start", "app.start_many", "run.signal"])
async def test_the_body_of_a_step_must_not_do_what_a_replay_would_repeat(
    app: Stepfast, calls: Calls, called: str
) -> None:
    other = app.task(name="other")(lambda: calls.hit("other"))
    dag = app.dag("dag")

    @dag.step(retries=3)
    async def work(ctx: Any) -> None:
        calls.hit("work")
        if called == "app.start":
            await app.start(other)
        elif called == "app.start_many":
            await app.start_many(other, [None])
        else:
            await app.get(ctx.run_id).signal("work")

    said = f"ContextMisuse: {called} was called in the body of dag step 'dag/work', where every .* inside a ctx.step"
    await failure(await drained(app, dag), said)
    assert calls == {"work": 1}


async def test_a_step_starts_runs_by_its_context_or_in_a_step_of_its_own(app: Stepfast, calls: Calls) -> None:
    other = app.task(name="other")(lambda: calls.hit("other"))

    async def begin(ctx: Context) -> None:
        async def start() -> None:
            await app.start(other)

        await ctx.step(start)
        await ctx.start(other)

    assert await outcome(app, build(app, {"begin": begin})) == {"begin": None}
    assert calls == {"other": 2}


async def test_a_function_declared_with_step_has_its_options(app: Stepfast, calls: Calls, saga: Saga) -> None:
    @step(retries=2, backoff=QUICK, timeout=30, compensate=lambda ctx: calls.hit("undo"))
    async def flaky(ctx: Any) -> int:
        if calls.hit("flaky") < 3:
            raise ValueError("again")
        return 7

    dag = app.dag("dag")
    dag.step(flaky)
    saga.declare(dag, "last! < flaky")
    dag_step = dag.graph.dag_steps["flaky"]
    assert (dag_step.retries, dag_step.timeout, dag.steps["flaky"].options.backoff) == (2, 30, QUICK)
    assert await how(await drained(app, dag)) == {"flaky": "completed", "last": "failed"}
    assert calls == {"flaky": 3, "undo": 1}


async def test_options_of_the_dag_go_before_those_of_the_function(app: Stepfast) -> None:
    def undo(ctx: Any) -> None: ...

    @step(name="named", retries=2, timeout=30, compensate=undo)
    async def flaky(ctx: Any) -> None: ...

    dag = app.dag("dag")
    dag.declare(flaky)
    dag.declare(flaky, name="other", retries=0, timeout=5, compensate=lambda ctx: None)
    own, other = dag.graph.dag_steps.values()
    assert (own.name, own.retries, own.timeout, own.undo) == ("named", 2, 30, "undo")
    assert (other.name, other.retries, other.timeout, other.undo) == ("other", 0, 5, "<lambda>")


async def test_a_worker_logs_a_dag_once_and_not_every_step(app: Stepfast, caplog: pytest.LogCaptureFixture) -> None:
    build(app, {"a": work, "b": work})
    app.task(name="other")(lambda: None)
    with caplog.at_level(logging.INFO, "stepfast"):
        await app.drain()
    [line] = [record.getMessage() for record in caplog.records if " started: " in record.getMessage()]
    assert line.endswith(" started: dag, other")


async def test_a_declared_function_stays_a_function(app: Stepfast) -> None:
    dag = app.dag("dag")

    @dag.step(after=["b"])
    def a(ctx: Any) -> int:
        return 1

    @dag.step
    def b(ctx: Any) -> int:
        return 2

    assert (a(None), b(None), list(dag.steps)) == (1, 2, ["a", "b"])


async def test_a_workflow_with_the_name_of_a_step_is_refused(app: Stepfast) -> None:
    build(app, {"a": work})
    app.task(name="dag/a")(lambda: None)
    with pytest.raises(ConfigurationError, match="'dag/a'"):
        await app.drain()


# -- what is stored --------------------------------------------------------------------------------------------------


async def test_each_version_of_a_definition_is_stored_once(make_app: MakeApp) -> None:
    """However often it is declared, and by how many processes."""
    for _ in range(2):
        app = make_app()
        dag = build(app, {"a": work, "b < a": work})
        await app.drain()
        run = await drained(app, dag)
    async with rows_of(app) as rows:
        found = "SELECT version FROM [definitions] WHERE name = 'dag'"
        assert await rows.fetch(found) == [(dag.graph.version,)] == [((await run.info()).version,)]
        other = make_app()
        build(other, {"a": work})
        await other.drain()
        assert len(await rows.fetch(found)) == 2


async def test_the_version_is_a_hash_of_the_graph_not_of_the_code(make_app: MakeApp) -> None:
    one, same = (build(make_app(), {"a": function}) for function in (work, lambda ctx: 1))
    other = build(make_app(), {"a": work, "b": work})
    assert one.graph.version == same.graph.version != other.graph.version


async def test_a_dag_is_drawn_for_documents(app: Stepfast) -> None:
    """With the number of steps that a join waits for, where it is not all of them."""
    dag = app.dag("dag")
    dag.declare(work, name="pay", catch={ValueError: "tell"})
    dag.declare(work, name="tell")
    dag.approval("ok", after=["pay"])
    dag.declare(work, name="ship", after=["ok", "pay"])
    dag.declare(work, name="first", after=["pay", "ok"], join="any")
    dag.declare(work, name="most", after=["pay", "ok", "ship"], at_least=2)
    assert dag.to_mermaid().splitlines() == [
        "flowchart TD",
        '    s0["pay"]', '    s1["tell"]', '    s2{{"ok"}}', '    s3["ship"]',
        '    s4["first<br/>any of 2"]', '    s5["most<br/>at least 2 of 3"]',
        "    s0 -. ValueError .-> s1",
        "    s0 --> s2", "    s2 --> s3", "    s0 --> s3", "    s0 --> s4", "    s2 --> s4",
        "    s0 --> s5", "    s2 --> s5", "    s3 --> s5",
    ]  # fmt: skip


# -- graphs that come as data ------------------------------------------------------------------------------------------


async def test_a_graph_can_come_as_data(app: Stepfast, saga: Saga) -> None:
    spec = {
        "steps": {"reserve": {"retries": 2}, "charge": {"timeout": 10}, "ship": {}},
        "dag": {"charge": ["reserve"], "ship": ["charge"]},
    }
    handlers = {"reserve": {"run": work, "compensate": saga.undo}, "charge": {"run": work}, "ship": saga.fail}
    dag = app.dag_from_spec("order", spec, handlers)
    run = await drained(app, dag)
    assert saga.undone == ["reserve"]
    assert await run.status() == "compensated"
    assert await how(run) == {"reserve": "completed", "charge": "completed", "ship": "failed"}
    dag_steps = dag.graph.dag_steps
    assert (dag_steps["reserve"].retries, dag_steps["charge"].timeout, dag_steps["ship"].after) == (2, 10, ("charge",))


async def test_steps_that_are_not_in_the_edges_begin_at_once(app: Stepfast) -> None:
    dag = app.dag_from_spec("dag", {"steps": {"a": {}, "b": {}}, "dag": {}}, {"a": work, "b": work})
    assert await outcome(app, dag) == {"a": "a", "b": "b"}


async def test_the_number_of_retries_goes_by_other_names_too(app: Stepfast) -> None:
    steps: dict[str, dict[str, int]] = {"a": {"max_retries": 1}, "b": {"maxRetries": 2}, "c": {}}
    dag = app.dag_from_spec("dag", {"steps": steps}, dict.fromkeys(steps, work))
    run = await app.start(dag)
    assert [dag.graph.dag_steps[name].retries for name in "abc"] == [1, 2, app.settings.dag_retries]
    assert list(await steps_of(run)) == ["a", "b", "c"]


async def test_what_is_wrong_with_data_is_reported_together(app: Stepfast) -> None:
    """A mismatch of steps, graph and handlers is refused at definition time."""
    spec = {
        "steps": {"a": {"retry": 3}, "b": {}, "c": 7, "d": {}},
        "dag": {"b": ["nowhere"], "x": ["a"], "d": "ab"},
    }
    handlers = {"a": work, "c": work, "extra": work, "d": {"compensate": work}}
    with pytest.raises(GraphError) as caught:
        app.dag_from_spec("order", spec, handlers)
    assert sorted(caught.value.problems) == sorted([
        "step 'b' has no handler",
        "step 'd' has no handler",
        "there is a handler for 'extra', which is not among the steps",
        "the dag names 'x', which is not among the steps",
        "the options of step 'c' must be a mapping",
        "step 'a' has an unknown option 'retry'",
        "step 'b' comes after 'nowhere', which does not exist",
        "the dependencies of step 'd' must be a list, not 'ab'",
    ])  # fmt: skip
    assert "order" not in app.workflows


async def test_options_in_data_that_make_no_sense_are_reported_by_name(app: Stepfast) -> None:
    spec = {"steps": {"a": {"retries": -1}, "b": {"timeout": "soon"}, "c": {}}}
    with pytest.raises(GraphError) as caught:
        app.dag_from_spec("dag", spec, {"a": work, "b": work, "c": "work"})
    assert [problem.split(":")[0] for problem in caught.value.problems] == ["step 'a'", "step 'b'", "step 'c'"]


@pytest.mark.parametrize(
    ("spec", "handlers", "said"),
    [
        ({"steps": {"a": {}, "b": {}}, "dag": {"a": ["b"], "b": ["a"]}}, {"a": work, "b": work}, "a → b → a|b → a → b"),
        *[
            (spec, {"a": work}, '"steps" and "dag"')
            for spec in ({}, {"steps": ["a"]}, {"steps": {"a": {}}, "dag": ["a"]})
        ],
        *[
            (spec, {"a": work}, 'a specification is a mapping with "steps" and "dag", not ')
            for spec in (None, "a", ["a"])
        ],
        *[
            ({"steps": {"a": {}}}, handlers, "the handlers must be a mapping of step names to functions, not ")
            for handlers in (None, [work])
        ],
    ],
)
async def test_data_of_another_shape_is_refused(app: Stepfast, spec: Any, handlers: Any, said: str) -> None:
    with pytest.raises(GraphError, match=said):
        app.dag_from_spec("dag", spec, handlers)


async def test_wrong_parts_in_data_are_reported_by_the_name_of_their_step(app: Stepfast) -> None:
    handlers = {"a": work, "b": {"run": work, "compensate": lambda: None}, "c": {"run": work, "when": lambda: True}}
    with pytest.raises(GraphError) as caught:
        app.dag_from_spec("dag", {"steps": {"a": {}, "b": {}, "c": {}}, "dag": {"a": [3]}}, handlers)
    assert caught.value.problems == [
        "step 'a': after takes names of steps, or their functions, not 3",
        "step 'b': compensate must be a function of the context alone; <lambda> takes ()",
        "step 'c': when must be a function of the context alone; <lambda> takes ()",
    ]
