"""Starting runs: with every option, by object and by name, one and many; and what is refused."""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stepfast import (
    AppClosed,
    ConfigurationError,
    Context,
    InvalidInput,
    QueueFull,
    RunNotFound,
    Stepfast,
    StepfastError,
    UnknownWorkflow,
)
from stepfast.engine.host import Clock
from stepfast.errors import DatabaseRefused
from stepfast.model.queue_config import Bound
from stepfast.model.records import NewRun, RunShape
from stepfast.starts import Bounds
from tests.engine.conftest import ON_BOTH, MakeApp
from tests.support.codecs import Salted
from tests.support.databases import in_transaction
from tests.support.engine import PATIENCE, Calls, drained, finished
from tests.support.workflows import task
from tests.worker.spying import HeldReply, wrap

pytestmark = pytest.mark.enough_on("sqlite")


@dataclass
class Order:
    id: str
    cents: int
    lines: list[str] | None = None


def declare(app: Stepfast) -> None:
    @app.workflow(queue="checkouts", deadline=3600)
    async def checkout(ctx: Context, order: Order) -> str:
        return order.id

    @app.task
    async def tick() -> str:
        return "tock"


async def test_a_start_stores_what_it_was_given(app: Stepfast) -> None:
    declare(app)
    at = datetime.now(UTC) + timedelta(hours=2)
    run = await app.start(
        "checkout", Order("o-1", 5), key="k", queue="vip", priority=7, at=at, expires_in=60, deadline=timedelta(days=2),
        max_attempts=9, timeout=12, tags=["a", "b", "a"],
    )  # fmt: skip
    info = await run.info()
    assert (info.id, info.workflow, info.queue, info.status, info.priority) == (run.id, "checkout", "vip", "queued", 7)
    assert info.input == {"id": "o-1", "cents": 5, "lines": None}
    assert (info.key, info.max_attempts, info.attempt, sorted(info.tags)) == ("k", 9, 0, ["a", "b"])
    assert info.due_at is not None and info.deadline is not None and info.expires_at is not None
    assert abs(info.due_at - at) < timedelta(milliseconds=2)
    assert info.deadline - info.created_at == timedelta(days=2)
    assert info.expires_at - info.due_at == timedelta(seconds=60)
    assert (info.ready, info.worker, info.started_at, info.output, info.error) == (False, None, None, None, None)


async def test_what_the_start_does_not_say_is_taken_from_the_declaration(app: Stepfast) -> None:
    declare(app)
    info = await (await app.start("checkout", Order("o-1", 5))).info()
    assert (info.queue, info.priority, info.key, info.tags, info.ready) == ("checkouts", 0, None, [], True)
    assert info.deadline is not None and info.deadline - info.created_at == timedelta(hours=1)
    assert (await (await app.start("tick")).info()).queue == "tick"


async def test_higher_priority_runs_first_then_the_oldest(app: Stepfast) -> None:
    order: list[str] = []

    @app.task
    async def mail(name: str) -> None:
        order.append(name)

    for name, priority in (("a", 0), ("b", 5), ("c", 0), ("d", 5), ("e", -3)):
        await app.start(mail, name, priority=priority)
    await app.drain(concurrency=1)
    assert order == ["b", "d", "a", "c", "e"]


async def test_nothing_runs_before_its_time(app: Stepfast, calls: Calls) -> None:

    @app.task
    async def mail(name: str) -> str:
        calls.hit(name)
        return name

    later = await app.start(mail, "later", delay=timedelta(hours=1))
    await app.start(mail, "at", at=datetime.now(UTC) + timedelta(hours=1))
    past = await app.start(mail, "past", at=datetime.now(UTC) - timedelta(hours=1))
    soon = await drained(app, mail, "soon", delay=0.05)
    assert calls == {"past": 1, "soon": 1}
    assert [await run.status() for run in (later, past, soon)] == ["queued", "completed", "completed"]
    info = await soon.info()
    assert info.started_at is not None and info.started_at - info.created_at >= timedelta(milliseconds=50)


# -- keys ----------------------------------------------------------------------------------------------------------


@pytest.mark.enough_on("postgres", "sqlite")
async def test_the_same_key_is_the_same_run_never_a_second_one(app: Stepfast, calls: Calls) -> None:
    """Rule 35: also after it has ended; another workflow may use the same key."""

    @app.task
    async def mail(name: str) -> str:
        calls.hit(name)
        return name

    declare(app)
    first = await app.start(mail, "first", key="k")
    second = await drained(app, mail, "second", key="k")
    third = await app.start(mail, "third", key="k")
    other = await drained(app, "checkout", Order("o", 1), key="k")
    assert first.id == second.id == third.id != other.id
    assert await third.result() == "first"
    assert calls == {"first": 1}


@pytest.mark.enough_on("postgres", "sqlite")
async def test_many_starts_with_one_key_at_once_make_one_run(make_app: MakeApp) -> None:
    """Rule 35: from several processes too."""
    apps = [make_app(), make_app()]
    for app in apps:
        declare(app)
    runs = await asyncio.gather(*(apps[n % 2].start("checkout", Order(str(n), n), key="k") for n in range(20)))
    assert len({run.id for run in runs}) == 1
    assert len(await apps[0].runs()) == 1


async def test_start_many_gives_handles_in_the_order_of_the_inputs(app: Stepfast) -> None:
    declare(app)
    runs = await app.start_many("checkout", [Order(str(n), n) for n in range(50)], priority=3, tags=["batch"])
    await app.drain()
    assert [await run.result() for run in runs] == [str(n) for n in range(50)]
    assert {info.priority for info in await app.runs(tag="batch")} == {3}
    assert await app.start_many("checkout", []) == []


@pytest.mark.enough_on("postgres", "sqlite")
async def test_start_many_is_all_or_none(app: Stepfast) -> None:
    declare(app)
    with pytest.raises(InvalidInput, match="cents"):
        await app.start_many("checkout", [Order("a", 1), {"id": "b"}, Order("c", 3)])
    assert await app.runs() == []


@pytest.mark.enough_on("postgres", "sqlite")
async def test_start_many_with_keys_finds_those_that_exist(app: Stepfast) -> None:
    """Rule 35."""
    declare(app)
    known = await app.start("checkout", Order("known", 0), key="b")
    orders = [Order(name, 1) for name in ("a", "b", "c", "a again")]
    runs = await app.start_many("checkout", orders, keys=["a", "b", "c", "a"])
    assert runs[1].id == known.id
    assert runs[0].id == runs[3].id
    await app.drain()
    assert [await run.result() for run in runs] == ["a", "known", "c", "a"]
    assert len(await app.runs()) == 3


@pytest.mark.enough_on("postgres", "sqlite")
async def test_of_one_key_that_is_given_twice_the_first_input_is_taken(app: Stepfast) -> None:
    """Rule 35: also among so many that a database sorts them in its own way."""
    declare(app)
    keys = [f"key {number % 25}" for number in range(100, 0, -1)]
    runs = await app.start_many("checkout", [Order(str(number), 1) for number in range(100)], keys=keys)
    await app.drain()
    first = {key: str(number) for number, key in reversed(list(enumerate(keys)))}
    assert [await run.result() for run in runs] == [first[key] for key in keys]


# -- by name, with and without the code ----------------------------------------------------------------------------


async def test_a_trigger_without_the_code_can_start_by_name(make_app: MakeApp) -> None:
    worker, trigger = make_app(), make_app()
    declare(worker)
    async with worker.worker(queues=["none"]):
        pass  # a worker that starts stores what it knows
    run = await trigger.start("checkout", {"id": "o-2", "cents": 5})
    info = await run.info()
    assert info.queue == "checkouts"
    assert info.deadline is not None and info.deadline - info.created_at == timedelta(hours=1)
    assert await finished(worker, run) == "o-2"


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"id": "o", "cents": "five"}, r"\$\.cents"),
        ({"id": "o"}, "cents"),
        ({"id": "o", "cents": 1, "lines": ["a", 2]}, r"\$\.lines\[1\]"),
        ("o", r"\$"),
        (None, r"\$"),
        ([], r"\$"),
    ],
    ids=str,
)
@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
async def test_an_input_by_name_without_the_code_is_checked_with_its_path(
    make_app: MakeApp, value: Any, problem: str, many: bool
) -> None:
    known, trigger = make_app(), make_app()
    declare(known)
    await known.start("checkout", Order("first", 1))  # a process with the code that starts a run stores it too
    with pytest.raises(InvalidInput, match=f"'checkout' does not fit: .*{problem}"):
        await (trigger.start_many("checkout", [value]) if many else trigger.start("checkout", value))
    assert len(await trigger.runs()) == 1


async def test_a_workflow_without_input_refuses_one_by_name_too(make_app: MakeApp) -> None:
    known, trigger = make_app(), make_app()
    declare(known)
    await known.start("tick")
    with pytest.raises(InvalidInput, match="'tick' takes no input"):
        await trigger.start("tick", 1)


async def test_an_unknown_name_is_refused_with_the_names_that_exist(make_app: MakeApp) -> None:
    known, trigger = make_app(), make_app()
    declare(known)
    await known.start("tick")
    task(trigger, "local", returns=None)
    with pytest.raises(UnknownWorkflow, match=r"'chekout'.*: local, tick") as caught:
        await trigger.start("chekout", {})
    assert caught.value.name == "chekout"
    with pytest.raises(UnknownWorkflow, match="none yet"):
        await make_app(namespace="empty").start("anything")
    assert len(await trigger.runs()) == 1


# -- bad options --------------------------------------------------------------------------------------------------

BAD = [
    {"key": ""}, {"key": "k" * 201}, {"key": 5}, {"key": "a\0b"}, {"key": "\ud800"},
    {"queue": ""}, {"queue": 5}, {"queue": "q" * 201}, {"queue": "a\0b"},
    {"priority": "high"}, {"priority": 1.5}, {"priority": None}, {"priority": True}, {"priority": 2**31},
    {"delay": -1}, {"delay": "5"}, {"delay": float("nan")}, {"delay": float("inf")}, {"delay": 1e300},
    {"delay": timedelta(days=-1)}, {"delay": timedelta.max},
    {"at": datetime(2030, 1, 1)}, {"at": "2030-01-01"}, {"at": 5}, {"at": datetime(2030, 1, 1, tzinfo=UTC), "delay": 1},
    {"expires_in": -1}, {"expires_in": "60"}, {"expires_in": 1e300}, {"expires_in": True},
    {"deadline": -1}, {"deadline": "soon"}, {"deadline": datetime(2030, 1, 1, tzinfo=UTC)}, {"deadline": 1e300},
    {"max_attempts": 0}, {"max_attempts": 1.5}, {"max_attempts": "3"}, {"max_attempts": 2**31},
    {"timeout": -1}, {"timeout": "1"}, {"timeout": float("inf")},
    {"tags": "abc"}, {"tags": [""]}, {"tags": [5]}, {"tags": ["t" * 201]}, {"tags": ["a\0"]}, {"tags": 5},
    {"tags": None},
]  # fmt: skip


@pytest.mark.parametrize("options", BAD, ids=[f"{n} {str(o)[:40]!r}" for n, o in enumerate(BAD)])
async def test_bad_options_are_refused_by_name_before_anything_is_written(options: dict[str, Any]) -> None:
    app = Stepfast("sqlite://")
    declare(app)
    name = next(iter(options)).removesuffix("_in").replace("tags", "tag")
    with pytest.raises(ConfigurationError, match=name):
        await app.start("tick", **options)
    if "key" not in options:
        with pytest.raises(ConfigurationError, match=name):
            await app.start_many("tick", [None], **options)
    assert await app.runs() == []
    await app.close()


async def test_bad_arguments_of_start_are_refused(app: Stepfast, make_app: MakeApp) -> None:
    declare(app)
    with pytest.raises(ConfigurationError, match="2 inputs and 1 keys"):
        await app.start_many("tick", [None, None], keys=["a"])
    with pytest.raises(ConfigurationError, match="a workflow or its name"):
        await app.start(declare)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="colour"):
        await app.start("tick", colour="red")  # type: ignore[call-overload]
    other = make_app()
    foreign = task(other, "foreign", returns=None)
    with pytest.raises(UnknownWorkflow, match="foreign"):
        await app.start(foreign)
    assert await app.runs() == []


@pytest.mark.parametrize("run_id", ["", "x", "12345678-1234-5678-1234-56781234567", None, 5], ids=repr)
def test_what_is_no_run_id_is_refused(run_id: Any) -> None:
    with pytest.raises(StepfastError, match="not a run id"):
        Stepfast("sqlite://").get(run_id)


@pytest.mark.parametrize("way", ["start", "start_many", "connection"])
async def test_a_key_used_again_for_another_input_is_told_in_the_log(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    app = make_app()
    mail = task(app, "mail", returns=None)

    async def start(value: dict[str, int]) -> str:
        if way == "start":
            return (await app.start(mail, value, key="k-1")).id
        if way == "start_many":
            return (await app.start_many(mail, [{"z": 9}, value], keys=["k-0", "k-1"]))[1].id
        return await start_within(app, mail, value)

    await app.migrate()
    first = await start({"a": 1, "b": 2})
    assert await start({"b": 2, "a": 1}) == first
    assert not caplog.records
    assert await start({"a": 1, "b": 3}) == first
    [said] = caplog.records
    assert "'k-1'" in said.getMessage() and "another input" in said.getMessage() and "3" not in said.getMessage()


async def start_within(app: Stepfast, workflow: Any, value: Any) -> str:
    """Started within a transaction of the caller's."""
    if app.url.kind == "sqlite":
        connection = sqlite3.connect(app.url.path or "", isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
            run = await app.start(workflow, value, key="k-1", connection=connection)
            connection.execute("COMMIT")
        finally:
            connection.close()
        return run.id
    async with in_transaction(app.url.text) as connection:
        return (await app.start(workflow, value, key="k-1", connection=connection)).id


async def test_with_a_codec_that_seals_anew_the_same_input_is_the_same(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(codec=Salted())
    mail = task(app, "mail", returns=None)
    for value in ("a", "a"):
        await app.start(mail, value, key="k-1")
    assert not caplog.records
    await app.start(mail, "b", key="k-1")
    assert len(caplog.records) == 1


async def test_closing_while_a_refused_batch_is_sent_one_by_one_leaves_no_caller_waiting(app: Stepfast) -> None:
    declare(app)
    await app.start("tick")
    store, sent = await app.store(), asyncio.Event()

    async def refuse_many(call: Any, runs: Any, *rest: Any) -> Any:
        if len(runs) > 1:
            raise DatabaseRefused("one of them")
        sent.set()
        await asyncio.Event().wait()

    wrap(store, "start", refuse_many)
    starts = asyncio.gather(*(app.start("tick") for _ in range(3)), return_exceptions=True)
    async with asyncio.timeout(PATIENCE):
        await sent.wait()
        await app.close()
        assert [type(told) for told in await starts] == [AppClosed] * 3


# -- a text that is not the id of a run names no run: a handler gets for it what it gets for a run that w


@pytest.mark.parametrize("text", ["garbage", "", "7", "0197a1b2-0000-7000-8000-00000000000", "x" * 5000])
async def test_a_text_that_is_no_id_names_no_run(app: Stepfast, text: str) -> None:
    with pytest.raises(RunNotFound, match="that is not a run id") as told:
        app.get(text)
    assert len(str(told.value)) < 200
    with pytest.raises(RunNotFound):
        await app.signal(text, "go")
    for call in (app.sync.get, lambda text: app.sync.signal(text, "go")):
        with pytest.raises(RunNotFound):
            await asyncio.to_thread(call, text)


async def test_what_is_no_text_is_a_mistake_of_the_caller(app: Stepfast) -> None:
    with pytest.raises(ConfigurationError, match="is not a run id"):
        app.get(7)  # type: ignore[arg-type]


# -- a run is found by the key that it was started with


@ON_BOTH
async def test_a_run_is_found_by_its_key(make_app: MakeApp) -> None:
    app, elsewhere = make_app(), make_app()

    @app.task
    async def greet(name: str) -> tuple[str, int]:
        return name, 1

    other = task(app, "other", returns=None)
    run = await app.start(greet, "ada", key="k-1")
    await app.start(other, "eve", key="k-2")
    found = await app.find(greet, key="k-1")
    assert found.id == run.id
    assert await finished(app, found) == ("ada", 1)
    assert await (await app.find("greet", key="k-1")).result() == ("ada", 1)
    assert await (await elsewhere.find("greet", key="k-1")).result() == ["ada", 1]
    assert await asyncio.to_thread(lambda: app.sync.find(greet, key="k-1").result()) == ("ada", 1)
    with pytest.raises(RunNotFound, match="there is no run of workflow 'greet' with the key 'k-2'"):
        await app.find(greet, key="k-2")
    await run.delete()
    with pytest.raises(RunNotFound):
        await app.find(greet, key="k-1")


@ON_BOTH
async def test_a_run_that_waits_for_more_starts_is_found_until_it_begins(app: Stepfast) -> None:
    """Then its key is free for the next."""
    index = task(app, "index")
    run = await app.start(index, "a", key="k", debounce=60)
    assert (await app.find(index, key="k")).id == run.id
    await run.reschedule(delay=0)
    assert await finished(app, run) == "a"
    with pytest.raises(RunNotFound):
        await app.find(index, key="k")


@ON_BOTH
async def test_what_is_no_workflow_or_key_is_refused(app: Stepfast) -> None:
    with pytest.raises(ConfigurationError, match="takes a workflow or its name"):
        await app.find(print, key="k")  # type: ignore[call-overload]
    with pytest.raises(ConfigurationError, match="the key"):
        await app.find("w", key="")


# -- `max_ready`: a start beyond it is refused, and nothing is started


@pytest.fixture
def mail(app: Stepfast) -> Any:
    app.queue("mail", max_ready=3)
    return task(app, "mail")


async def ready(app: Stepfast) -> int:
    return {info.name: info.ready for info in await app.queues()}.get("mail", 0)


@ON_BOTH
async def test_a_start_beyond_it_is_refused(app: Stepfast, mail: Any) -> None:
    for number in range(3):
        await app.start(mail, number)
    with pytest.raises(QueueFull, match="queue 'mail' has 3 ready runs and takes at most 3"):
        await app.start(mail, 3)
    assert await ready(app) == 3
    later = await app.start(mail, 4, delay=60)
    assert await later.status() == "queued"
    await app.drain()
    assert await (await app.start(mail, 5)).status() == "queued"


@ON_BOTH
async def test_many_are_started_all_or_none(app: Stepfast, mail: Any) -> None:
    await app.start(mail, 0)
    with pytest.raises(QueueFull, match="3 more would be too many"):
        await app.start_many(mail, [1, 2, 3])
    assert await ready(app) == 1
    assert len(await app.start_many(mail, [1, 2])) == 2


@ON_BOTH
async def test_the_start_of_a_key_that_is_taken_is_never_too_much(app: Stepfast, mail: Any) -> None:
    first = await app.start(mail, 0, key="a")
    await app.start_many(mail, [1, 2])
    assert (await app.start(mail, 0, key="a")).id == first.id
    with pytest.raises(QueueFull):
        await app.start(mail, 0, key="b")


@ON_BOTH
async def test_starts_at_once_from_several_processes_stay_within_it(
    app: Stepfast, mail: Any, make_app: MakeApp
) -> None:
    await app.set_limits("mail", max_ready=6)
    await app.start(mail, 0)  # from now on the other, which lacks the code, knows the workflow
    other = make_app()
    starts = [each.start("mail", n) for n in range(6) for each in (app, other)]
    done = await asyncio.gather(*starts, return_exceptions=True)
    assert sum(isinstance(each, QueueFull) for each in done) == 7
    assert await ready(app) == 6


@ON_BOTH
async def test_children_are_never_refused(app: Stepfast, mail: Any) -> None:
    @app.workflow
    async def parent(ctx: Context) -> int:
        number: int = await ctx.call(mail, 7)
        return number

    run = await app.start(parent)
    await app.start_many(mail, [1, 2, 3])
    assert await finished(app, run) == 7


@ON_BOTH
async def test_a_dag_counts_the_steps_that_begin(app: Stepfast) -> None:
    app.queue("graph", max_ready=1)
    graph = app.dag("graph")

    @graph.step
    async def first(ctx: Any) -> None: ...

    @graph.step(after=["first"])
    async def second(ctx: Any) -> None: ...

    await app.start(graph)
    with pytest.raises(QueueFull):
        await app.start(graph)
    assert len(await app.runs(workflow="graph")) == 1


@ON_BOTH
@pytest.mark.parametrize("overtaken", [False, True], ids=["it is the last", "a younger one has overtaken it"])
async def test_the_answer_to_a_question_older_than_what_was_said_is_not_taken_for_the_last_word(
    app: Stepfast, mail: Any, overtaken: bool
) -> None:
    await app.start(mail, 0)
    store = await app.store()
    held, bounds = HeldReply(store, "queue_bounds"), Bounds(store, Clock())
    older = asyncio.create_task(bounds.learn())
    assert await held.done() == {"mail": 3}
    await app.set_limits("mail", max_ready=2)
    bounds.forget()
    if overtaken:
        await bounds.learn()
    held.release()
    await older
    if not overtaken:
        assert not bounds.known
        await bounds.learn()
    assert bounds.known
    most = bounds.of([NewRun("run", RunShape("mail", "1", "mail"), "null")])
    await asyncio.gather(*bounds.drop())
    assert most == Bound("mail", 2)
