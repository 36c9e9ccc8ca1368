"""Definitions of dags: checked as a whole, kept with their version, given as data."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from stepfast import (
    Backoff,
    ConfigurationError,
    Context,
    GraphError,
    NonRetryableError,
    RunFailed,
    Stepfast,
    step,
)
from tests.engine.conftest import MakeApp
from tests.store.scene import Rows
from tests.support.dags import how, row_of, steps_of
from tests.support.engine import Calls

pytestmark = pytest.mark.enough_on("sqlite")


async def work(ctx: Any) -> str:
    return str(ctx.step_name)


@pytest.fixture
async def rows(app: Stepfast) -> AsyncIterator[Rows]:
    rows = Rows(await app.store(), app.namespace, app.url.text)
    yield rows
    await rows.close()


async def written(rows: Rows) -> int:
    """How many rows of runs and definitions there are."""
    return sum([len(await rows.fetch(f"SELECT 1 FROM [{table}]")) for table in ("runs", "definitions")])


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


async def test_a_step_after_itself_is_refused(app: Stepfast) -> None:
    dag = app.dag("dag")
    dag.declare(work, name="a", after=["a"])
    with pytest.raises(GraphError, match="step 'a' comes after itself"):
        dag.graph


async def test_a_circle_by_way_of_an_error_is_refused(app: Stepfast) -> None:
    dag = app.dag("dag")
    dag.declare(work, name="a")
    dag.declare(work, name="b", after=["a"], catch={ValueError: "a"})
    with pytest.raises(GraphError, match="circle"):
        dag.graph


async def test_a_dag_without_steps_is_refused(app: Stepfast) -> None:
    with pytest.raises(GraphError, match="it has no steps"):
        await app.start(app.dag("empty"))


async def test_a_dependency_that_is_a_function_nobody_declared_is_unknown(app: Stepfast) -> None:
    dag = app.dag("dag")
    dag.declare(work, name="a", after=[NonRetryableError])
    with pytest.raises(GraphError, match="comes after 'NonRetryableError', which does not exist"):
        dag.graph


async def test_a_bad_graph_is_refused_at_the_start_before_anything_is_written(app: Stepfast, rows: Rows) -> None:
    dag = app.dag("dag")
    dag.declare(work, name="a", after=["nowhere"])
    for start in (lambda: app.start(dag), lambda: app.start("dag"), lambda: app.start_many(dag, [1, 2])):
        with pytest.raises(GraphError):
            await start()
    assert await written(rows) == 0


async def test_a_bad_graph_stops_a_worker_from_starting(app: Stepfast, rows: Rows) -> None:
    dag = app.dag("dag")
    dag.declare(work, name="a", after=["nowhere"])

    @app.task
    async def fine() -> None: ...

    with pytest.raises(GraphError, match="nowhere"):
        async with app.worker():
            pytest.fail("it started")
    assert await written(rows) == 0
    assert await rows.fetch("SELECT 1 FROM [workers]") == []


async def test_a_graph_that_was_spoilt_later_stops_the_next_worker(app: Stepfast) -> None:
    dag = app.dag("dag")
    dag.declare(work, name="a")
    await app.drain()
    dag.declare(work, name="b", after=["nowhere"])
    with pytest.raises(GraphError, match="nowhere"):
        await app.drain()


async def test_a_step_that_is_added_later_belongs_to_runs_from_then_on(app: Stepfast) -> None:
    dag = app.dag("dag")
    dag.declare(work, name="a")
    first = await app.start(dag)
    dag.declare(work, name="b", after=["a"])
    second = await app.start(dag)
    await app.drain()
    assert (await first.result(), await second.result()) == ({"a": "a"}, {"a": "a", "b": "b"})


# -- what is refused at once -----------------------------------------------------------------------------------------


async def test_dependencies_as_one_string_are_refused(app: Stepfast) -> None:
    """It would be taken for a list of letters."""
    dag = app.dag("dag")
    with pytest.raises(ConfigurationError, match="after must be a list of steps, not the string 'ab'"):
        dag.step(after="ab")(work)
    with pytest.raises(ConfigurationError, match="after must be a list"):
        dag.approval("ok", after="ab")


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


async def test_the_words_say_which_step_of_which_dag(app: Stepfast) -> None:
    dag = app.dag("order")
    with pytest.raises(ConfigurationError, match=r"^step 'pay' of dag 'order': catch takes .* not 'ValueError'"):
        dag.declare(work, name="pay", catch={"ValueError": "x"})  # type: ignore[dict-item]
    with pytest.raises(ConfigurationError, match=r"^step 'ok' of dag 'order': after must be a list of steps, not None"):
        dag.approval("ok", after=None)  # type: ignore[arg-type]


async def test_conditions_and_undos_of_which_nothing_is_known_are_taken_at_their_word(app: Stepfast) -> None:
    """Some functions written in C do not say what they take; others take more than they need."""
    dag = app.dag("dag")
    dag.declare(work, name="a", when=bool, compensate=lambda ctx, loud=False: None)  # type: ignore[misc]
    run = await app.start(dag)
    await app.drain()
    assert await run.result() == {"a": "a"}


async def test_a_step_must_take_the_context_alone(app: Stepfast) -> None:
    dag = app.dag("dag")

    def two(ctx: Any, order: Any) -> None: ...

    def none() -> None: ...

    with pytest.raises(ConfigurationError, match=r"step 'two' of dag 'dag' must take the context alone.*ctx\.input"):
        dag.step(two)
    with pytest.raises(ConfigurationError, match="context"):
        dag.step(none)


async def test_a_step_must_be_a_function(app: Stepfast) -> None:
    with pytest.raises(ConfigurationError, match="must be a function"):
        app.dag("dag").declare("work", name="a")  # type: ignore[arg-type]


@pytest.mark.parametrize("called", ["app.start", "app.start_many", "run.signal"])
async def test_the_body_of_a_step_does_nothing_that_a_replay_would_repeat(
    app: Stepfast, calls: Calls, called: str
) -> None:
    @app.task
    async def other() -> None:
        calls.hit("other")

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

    run = await app.start(dag)
    await app.drain()
    said = f"ContextMisuse: {called} was called in the body of dag step 'dag/work', where every .* inside a ctx.step"
    with pytest.raises(RunFailed, match=said):
        await run.result()
    assert calls == {"work": 1}


async def test_a_step_starts_runs_by_its_context_or_in_a_step_of_its_own(app: Stepfast, calls: Calls) -> None:
    @app.task
    async def other() -> None:
        calls.hit("other")

    dag = app.dag("dag")

    @dag.step
    async def begin(ctx: Context) -> None:
        async def start() -> None:
            await app.start(other)

        await ctx.step(start)
        await ctx.start(other)

    run = await app.start(dag)
    await app.drain()
    assert await run.result() == {"begin": None}
    assert calls == {"other": 2}


async def test_a_function_declared_with_step_brings_its_options(app: Stepfast, calls: Calls) -> None:
    quick = Backoff(base=0.001, jitter=False)

    @step(retries=2, backoff=quick, timeout=30, compensate=lambda ctx: calls.hit("undo"))
    async def flaky(ctx: Any) -> int:
        if calls.hit("flaky") < 3:
            raise ValueError("again")
        return 7

    dag = app.dag("dag")
    dag.step(flaky)

    @dag.step(after=[flaky])
    async def last(ctx: Any) -> None:
        raise NonRetryableError("undo")

    dag_step = dag.graph.dag_steps["flaky"]
    assert (dag_step.retries, dag_step.timeout, dag.steps["flaky"].options.backoff) == (2, 30, quick)
    run = await app.start(dag)
    await app.drain()
    assert await how(run) == {"flaky": "completed", "last": "failed"}
    assert calls == {"flaky": 3, "undo": 1}


async def test_what_the_dag_says_of_a_step_goes_before_what_the_function_brings(app: Stepfast) -> None:
    def undo(ctx: Any) -> None: ...

    @step(name="named", retries=2, timeout=30, compensate=undo)
    async def flaky(ctx: Any) -> None: ...

    dag = app.dag("dag")
    dag.declare(flaky)
    dag.declare(flaky, name="other", retries=0, timeout=5, compensate=lambda ctx: None)
    own, other = dag.graph.dag_steps.values()
    assert (own.name, own.retries, own.timeout, own.undo) == ("named", 2, 30, "undo")
    assert (other.name, other.retries, other.timeout, other.undo) == ("other", 0, 5, "<lambda>")


async def test_a_worker_tells_of_a_dag_once_and_not_of_every_step(
    app: Stepfast, caplog: pytest.LogCaptureFixture
) -> None:
    dag = app.dag("dag")
    dag.declare(work, name="a")
    dag.declare(work, name="b")

    @app.task
    async def other() -> None: ...

    with caplog.at_level(logging.INFO, "stepfast"):
        await app.drain()
    [line] = [record.getMessage() for record in caplog.records if " started: " in record.getMessage()]
    assert line.endswith(" started: dag, other")


async def test_two_dags_of_one_name_are_refused(app: Stepfast) -> None:
    app.dag("dag")
    with pytest.raises(ConfigurationError, match="already a dag named 'dag'"):
        app.dag("dag")


async def test_a_declared_function_stays_a_function(app: Stepfast) -> None:
    dag = app.dag("dag")

    @dag.step(after=["b"])
    def a(ctx: Any) -> int:
        return 1

    @dag.step
    def b(ctx: Any) -> int:
        return 2

    assert (a(None), b(None)) == (1, 2)
    assert list(dag.steps) == ["a", "b"]


# -- what is stored --------------------------------------------------------------------------------------------------


async def test_a_definition_is_stored_once_however_often_it_is_declared(make_app: MakeApp) -> None:
    """By other processes too."""
    for _ in range(2):
        app = make_app()
        dag = app.dag("dag")
        dag.declare(work, name="a")
        dag.declare(work, name="b", after=["a"])
        await app.drain()
        await app.drain()
        run = await app.start(dag)
    rows = Rows(await app.store(), app.namespace, app.url.text)
    found = await rows.fetch("SELECT version FROM [definitions] WHERE name = 'dag'")
    await rows.close()
    assert found == [(dag.graph.version,)] == [((await run.info()).version,)]


async def test_the_version_is_that_of_the_graph_not_of_the_code(app: Stepfast, make_app: MakeApp) -> None:
    """A content hash."""
    one, same, other = app.dag("one"), make_app().dag("one"), make_app().dag("one")
    one.declare(work, name="a")
    same.declare(lambda ctx: 1, name="a")
    other.declare(work, name="a")
    other.declare(work, name="b")
    assert one.graph.version == same.graph.version != other.graph.version


async def test_both_versions_are_kept(make_app: MakeApp) -> None:
    for names in (["a"], ["a", "b"]):
        app = make_app()
        dag = app.dag("dag")
        for name in names:
            dag.declare(work, name=name)
        await app.drain()
    rows = Rows(await app.store(), app.namespace, app.url.text)
    assert len(await rows.fetch("SELECT 1 FROM [definitions] WHERE name = 'dag'")) == 2
    await rows.close()


async def test_a_dag_is_drawn_for_documents(app: Stepfast) -> None:
    dag = app.dag("dag")
    dag.declare(work, name="pay", catch={ValueError: "tell"})
    dag.declare(work, name="tell")
    dag.approval("ok", after=["pay"])
    dag.declare(work, name="ship", after=["ok", "pay"])
    assert dag.to_mermaid().splitlines() == [
        "flowchart TD",
        '    s0["pay"]',
        '    s1["tell"]',
        '    s2{{"ok"}}',
        '    s3["ship"]',
        "    s0 -. ValueError .-> s1",
        "    s0 --> s2",
        "    s2 --> s3",
        "    s0 --> s3",
    ]


async def test_a_drawing_says_how_many_a_step_waits_for(app: Stepfast) -> None:
    dag = app.dag("dag")
    for name in "abc":
        dag.declare(work, name=name)
    dag.declare(work, name="first", after=["a", "b"], join="any")
    dag.declare(work, name="most", after=["a", "b", "c"], at_least=2)
    drawn = dag.to_mermaid()
    assert '["first<br/>any of 2"]' in drawn
    assert '["most<br/>at least 2 of 3"]' in drawn
    assert '["a"]' in drawn


# -- graphs that come as data ------------------------------------------------------------------------------------------


SPEC = {
    "steps": {"reserve": {"retries": 2}, "charge": {"timeout": 10}, "ship": {}},
    "dag": {"charge": ["reserve"], "ship": ["charge"]},
}


async def test_a_graph_can_come_as_data(app: Stepfast) -> None:
    """Seed 004's shape."""
    log: list[str] = []

    def undo(ctx: Any) -> None:
        log.append(f"undo {ctx.step_name}")

    async def fail(ctx: Any) -> None:
        raise NonRetryableError("no")

    dag = app.dag_from_spec(
        "order", SPEC, {"reserve": {"run": work, "compensate": undo}, "charge": {"run": work}, "ship": fail}
    )
    run = await app.start(dag)
    await app.drain()
    assert log == ["undo reserve"]
    assert await run.status() == "compensated"
    assert await how(run) == {"reserve": "completed", "charge": "completed", "ship": "failed"}
    dag_steps = dag.graph.dag_steps
    assert (dag_steps["reserve"].retries, dag_steps["charge"].timeout, dag_steps["ship"].after) == (2, 10, ("charge",))


async def test_steps_that_are_not_in_the_edges_wait_for_nobody(app: Stepfast) -> None:
    """A step missing from the graph hung the run."""
    dag = app.dag_from_spec("dag", {"steps": {"a": {}, "b": {}}, "dag": {}}, {"a": work, "b": work})
    run = await app.start(dag)
    await app.drain()
    assert await run.result() == {"a": "a", "b": "b"}


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


async def test_a_circle_in_data_is_reported_with_its_path(app: Stepfast) -> None:
    spec = {"steps": {"a": {}, "b": {}}, "dag": {"a": ["b"], "b": ["a"]}}
    with pytest.raises(GraphError, match=r"a → b → a|b → a → b"):
        app.dag_from_spec("dag", spec, {"a": work, "b": work})


@pytest.mark.parametrize("spec", [{}, {"steps": ["a"]}, {"steps": {"a": {}}, "dag": ["a"]}])
async def test_data_of_another_shape_is_refused(app: Stepfast, spec: dict[str, Any]) -> None:
    with pytest.raises(GraphError, match='"steps" and "dag"'):
        app.dag_from_spec("dag", spec, {"a": work})


@pytest.mark.parametrize("spec", [None, "steps", ["a"]])
async def test_data_that_is_no_mapping_is_refused(app: Stepfast, spec: Any) -> None:
    with pytest.raises(GraphError, match='a specification is a mapping with "steps" and "dag", not '):
        app.dag_from_spec("dag", spec, {"a": work})


@pytest.mark.parametrize("handlers", [None, [work]])
async def test_handlers_that_are_no_mapping_are_refused(app: Stepfast, handlers: Any) -> None:
    with pytest.raises(GraphError, match="the handlers must be a mapping of step names to functions, not "):
        app.dag_from_spec("dag", {"steps": {"a": {}}}, handlers)


async def test_wrong_parts_in_data_are_reported_by_the_name_of_their_step(app: Stepfast) -> None:
    handlers = {"a": work, "b": {"run": work, "compensate": lambda: None}, "c": {"run": work, "when": lambda: True}}
    with pytest.raises(GraphError) as caught:
        app.dag_from_spec("dag", {"steps": {"a": {}, "b": {}, "c": {}}, "dag": {"a": [3]}}, handlers)
    assert caught.value.problems == [
        "step 'a': after takes names of steps, or their functions, not 3",
        "step 'b': compensate must be a function of the context alone; <lambda> takes ()",
        "step 'c': when must be a function of the context alone; <lambda> takes ()",
    ]


async def test_a_workflow_with_the_name_of_a_step_is_refused(app: Stepfast) -> None:
    app.dag("dag").declare(work, name="a")

    @app.task(name="dag/a")
    async def other() -> None: ...

    with pytest.raises(ConfigurationError, match="'dag/a'"):
        await app.drain()


async def test_the_log_of_a_dag_run_is_that_of_its_steps(app: Stepfast) -> None:
    dag = app.dag("dag")

    async def checked(ctx: Any) -> int:
        return int(await ctx.step("count", lambda: 1))

    dag.declare(checked, name="a")
    dag.declare(checked, name="b", after=["a"])
    run = await app.start(dag)
    await app.drain()
    assert [(call.branch, call.name) for call in await run.activity()] == [("a", "count"), ("b", "count")]


async def test_values_that_a_step_sets_are_kept_with_the_step(app: Stepfast) -> None:
    dag = app.dag("dag")

    @dag.step
    async def count(ctx: Any) -> None:
        await ctx.set("seen", 3)

    run = await app.start(dag)
    await app.drain()
    assert await app.get(await row_of(run, "count")).get("seen") == 3
