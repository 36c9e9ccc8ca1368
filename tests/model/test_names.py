"""Names, ids, statuses and reasons."""

from __future__ import annotations

import multiprocessing
import pathlib
import re
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.queues import SimpleQueue
from typing import Any

import pytest

from stepfast import ConfigurationError, Context, Settings, Stepfast, compatibility, step
from stepfast.model import status
from stepfast.model.ids import is_id, new_id
from stepfast.model.names import check_name, check_namespace, check_signal


@pytest.mark.parametrize(
    "name", ["a", "order-fulfilment", "Über.Größe/1", "a b", "x" * 200, "名前", "'; DROP TABLE x; --"]
)
def test_any_readable_name_will_do(name: str) -> None:
    assert check_name(name, "the name", 200) == name


@pytest.mark.parametrize(
    ("name", "why"),
    [("", "empty"), ("x" * 201, "201"), ("a\0", "NUL"), ("\ud800", "surrogate"), (5, "string"), (None, "string")],
    ids=repr,
)
def test_what_no_database_keeps_is_refused_by_name(name: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=f"the name.*{why}"):
        check_name(name, "the name", 200)


@pytest.mark.parametrize("name", ["approved", "paid: order 7", "a;b"])
def test_the_name_of_a_signal_may_hold_anything_but_a_comma(name: str) -> None:
    assert check_signal(name, 200) == name
    with pytest.raises(ConfigurationError, match="comma"):
        check_signal(f"{name}, time", 200)


@pytest.mark.parametrize("name", ["stepfast", "_x", "Prod_2", "pgx", "x" * 48])
def test_a_namespace_is_a_plain_identifier(name: str) -> None:
    assert check_namespace(name) == name


@pytest.mark.parametrize("name", ["", "2x", "a-b", "a b", 'a"', "é", "x" * 49, "a\n", "pg_x", None], ids=repr)
def test_anything_else_is_no_namespace(name: Any) -> None:
    with pytest.raises(ConfigurationError, match="namespace"):
        check_namespace(name)


@pytest.mark.parametrize("name", ["a,b", " a", "a ", ","])
def test_a_queue_that_the_command_line_could_not_name_is_refused(name: str) -> None:
    app = Stepfast("sqlite://")
    with pytest.raises(ConfigurationError, match="--queues"):
        app.task(queue=name)
    with pytest.raises(ConfigurationError, match="--queues"):
        app.dag("d", queue=name)


async def test_the_limit_of_names_is_kept_wherever_one_comes_in() -> None:
    """Names of workflows, dags, queues, steps, signals, keys and tags, by the application's own limit."""
    long = "x" * 11

    async def step_with_a_long_name() -> None: ...

    declared = step(name=long)(step_with_a_long_name)
    async with Stepfast("sqlite://", settings=Settings(max_name=10)) as app:

        @app.workflow(name="steps", max_attempts=1)
        async def steps(ctx: Context) -> None:
            await ctx.step(step_with_a_long_name)

        @app.workflow(name="declared", max_attempts=1)
        async def uses_a_declared_step(ctx: Context) -> None:
            await ctx.step(declared)

        dag = app.dag("d")
        dag.approval("ok")
        for declare in (
            lambda: app.workflow(name=long)(steps.function),
            lambda: app.workflow(name="x", queue=long)(steps.function),
            lambda: app.dag(long),
            lambda: app.dag("y", queue=long),
            lambda: dag.step(name=long)(lambda ctx: None),
            lambda: dag.approval(long),
        ):
            with pytest.raises(ConfigurationError, match="at most 10"):
                declare()
        for options in ({"queue": long}, {"key": long}, {"tags": [long]}):
            with pytest.raises(ConfigurationError, match="at most 10"):
                await app.start(steps, **options)
        for queues in ([long], ["a,b"]):
            with pytest.raises(ConfigurationError, match=r"at most 10|--queues"):
                await app.drain(queues=queues)
        run = await app.start(steps)
        with pytest.raises(ConfigurationError, match="at most 10"):
            await run.signal(long)
        other = await app.start(uses_a_declared_step)
        await app.drain()
        for each in (run, other):
            error = (await each.info()).error
            assert error is not None and "at most 10" in error.message


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("x" * 11, {}),
        ("charge", {"compensate": "x" * 11}),
        ("charge", {"group": "x" * 11}),
        ("charge", {"partition": "x" * 11}),
        ("charge", {"partition": "north"}),  # charge@north
    ],
)
async def test_the_limit_of_names_is_kept_by_remote_steps(name: str, options: dict[str, Any]) -> None:
    async with Stepfast("sqlite://", settings=Settings(max_name=10)) as app:

        @app.workflow(max_attempts=1)
        async def order(ctx: Context) -> None:
            await ctx.remote(name, **options)

        run = await app.start(order)
        await app.drain()
        error = (await run.info()).error
        assert error is not None and error.type.endswith("ConfigurationError") and "at most 10" in error.message
        with pytest.raises(ConfigurationError, match="at most 10"):
            app.dag("d").remote("step", handler=name, **options)


async def test_the_limit_of_names_may_be_raised() -> None:
    """What is declared before there is an application has no limit of its own."""
    long = "x" * 300
    async with Stepfast("sqlite://", settings=Settings(max_name=300)) as app:

        @app.workflow(name=long, queue=long)
        async def order(ctx: Context) -> int:
            return await ctx.step(step(name=long)(lambda: 5))

        run = await app.start(order)
        await app.drain()
        assert await run.result() == 5
        assert [each.name for each in await run.steps()] == [long]
        app.dag("d").step(name=long)(lambda ctx: None)


# -- ids


def test_ids_are_uuids_of_version_seven() -> None:
    for _ in range(100):
        text = new_id()
        value = uuid.UUID(text)
        assert (str(value), value.version, value.variant) == (text, 7, uuid.RFC_4122)
        assert abs((value.int >> 80) / 1000 - time.time()) < 60


def test_later_ids_sort_after_earlier_ones() -> None:
    made = [new_id() for _ in range(20_000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_ids_never_go_back_with_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    before = new_id()
    past = time.time_ns() - 3_600_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: past)
    after = [new_id() for _ in range(10)]
    assert [before, *after] == sorted([before, *after])


def test_threads_make_distinct_ids() -> None:
    with ThreadPoolExecutor(8) as pool:
        made = [i for batch in pool.map(lambda _: [new_id() for _ in range(2000)], range(8)) for i in batch]
    assert len(set(made)) == len(made)


def _make(queue: SimpleQueue[list[str]]) -> None:
    queue.put([new_id() for _ in range(200)])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forking with threads about: that is the point
def test_forked_children_make_distinct_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if all make them at the same instant."""
    frozen = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: frozen)
    context = multiprocessing.get_context("fork")
    queue: SimpleQueue[list[str]] = context.SimpleQueue()
    children = [context.Process(target=_make, args=(queue,)) for _ in range(3)]
    for child in children:
        child.start()
    made = [i for _ in children for i in queue.get()] + [new_id() for _ in range(200)]
    for child in children:
        child.join()
    assert len(set(made)) == 800


@pytest.mark.parametrize(
    ("text", "ok"),
    [
        ("0197a1b2-0000-7000-8000-000000000000", True),
        ("0197A1B2-0000-7000-8000-000000000000", False),
        ("0197a1b2000070008000000000000000", False),
        ("0197a1b2-0000-7000-8000-00000000000", False),
        ("0197a1b2-0000-7000-8000-000000000000\n", False),
        ("", False),
    ],
    ids=repr,
)
def test_only_our_own_spelling_is_an_id(text: str, ok: bool) -> None:
    assert is_id(text) is ok


# -- statuses and reasons, as the reference has them


PAGE = pathlib.Path(__file__).parents[2] / "docs" / "reference" / "statuses.md"


def test_reasons_are_identifiers() -> None:
    assert status.REASONS == (
        "code", "timeout", "deadline", "expired", "workers_lost", "non_determinism", "cancelled", "undo_failed",
        "invalid_input",
        "continued",
    )  # fmt: skip
    assert all(reason.isidentifier() for reason in status.REASONS)


def test_every_word_that_is_stored_or_shown_is_an_identifier() -> None:
    """Whoever filters by one, in a shell or in SQL, types it without quotes."""
    words = [value for name, value in vars(status).items() if name.isupper() and isinstance(value, str)]
    words += [compatibility.FITS, compatibility.DIVERGES, compatibility.TOO_LONG, compatibility.UNKNOWN]
    assert {"undo_failed", "dag_step", "too_long"} <= set(words)
    assert [word for word in words if not word.isidentifier()] == []


def test_every_reason_is_in_the_reference() -> None:
    table = PAGE.read_text().partition("## Why a run ended")[2].partition("## A step")[0]
    listed = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert sorted(listed) == sorted(status.REASONS)
