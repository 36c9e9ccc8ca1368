"""The application around the engine: workers in it, closing and reusing it, namespaces, the codec, the log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from stepfast import (
    Backoff,
    ConfigurationError,
    Context,
    DatabaseUnavailable,
    PayloadError,
    RunFailed,
    RunNotFound,
    SchemaError,
    Settings,
    Stepfast,
    SyncContext,
    UnknownWorkflow,
)
from tests.engine.conftest import MakeApp
from tests.support.codecs import Backwards
from tests.support.engine import PATIENCE, Calls, Gate, drained, eventually, failure, finished, outcome
from tests.support.waiting import rows_of
from tests.support.workflows import task

pytestmark = [pytest.mark.empty, pytest.mark.enough_on("sqlite")]

AT_ONCE = Backoff(base=0, jitter=False)
NOWHERE = "01977777-7777-7777-8777-777777777777"

# -- tasks and workers ---------------------------------------------------------------------------------------------


async def test_tasks_are_async_def_or_def(app: Stepfast) -> None:
    """The handler gets its input; a def runs in a thread."""
    import threading

    here = threading.get_ident()

    @app.task
    async def mail(name: str) -> list[Any]:
        return [name, threading.get_ident() == here]

    @app.task()
    def report(name: str) -> list[Any]:
        return [name, threading.get_ident() == here]

    runs = [await app.start(mail, "a"), await app.start(report, "b")]
    await app.drain()
    assert [await run.result() for run in runs] == [["a", True], ["b", False]]
    assert await runs[0].steps() == []


async def test_a_registered_function_called_directly_is_just_the_function(app: Stepfast) -> None:
    @app.task
    async def mail(name: str) -> str:
        """Send it."""
        return name

    assert await mail("a") == "a"
    assert (mail.name, mail.__doc__) == ("mail", "Send it.")


async def test_a_plain_def_workflow_runs_in_a_thread_with_its_context(app: Stepfast) -> None:
    """Rule 30: steps sync and async, context variables carried over."""
    import contextvars

    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")

    async def double(number: int) -> int:
        return number * 2

    def read() -> str:
        return variable.get()

    @app.workflow
    def order(ctx: SyncContext, number: int) -> list[Any]:
        variable.set("set by the workflow")
        return [ctx.step(double, number), ctx.step("triple", lambda: number * 3), read()]

    assert await outcome(app, order, 5) == [10, 15, "set by the workflow"]


async def test_a_worker_serves_only_the_queues_it_is_told(app: Stepfast) -> None:
    """Rule 32."""
    mail = task(app, "mail")
    vip, usual = await app.start(mail, "vip", queue="vip"), await app.start(mail, "usual")
    await app.drain(queues=["vip"])
    assert [await vip.status(), await usual.status()] == ["completed", "queued"]
    await app.drain()
    assert await usual.status() == "completed"
    with pytest.raises(ConfigurationError, match="list of names"):
        await app.drain(queues="vip")


async def test_stopping_waits_for_handlers_within_the_grace(app: Stepfast, calls: Calls) -> None:
    """What is running ends; nothing new is claimed."""
    gate = Gate()

    @app.task
    async def mail(number: int) -> int:
        await gate.passing()
        return calls.hit("mail")

    run = await app.start(mail, 1)
    worker = app.worker(shutdown_grace=PATIENCE)
    await worker.__aenter__()
    await gate.reached()
    stopping = asyncio.create_task(worker.__aexit__(None, None, None))
    waiting = await app.start(mail, 2)

    async def is_stopping() -> bool:
        return [w.state for w in await (await app.store()).workers()] == ["stopping"]

    await eventually(is_stopping)
    gate.open()
    await asyncio.wait_for(stopping, PATIENCE)
    assert await run.status() == "completed"
    assert await waiting.status() == "queued"
    assert await (await app.store()).workers() == []


async def test_drain_works_until_nothing_is_runnable(app: Stepfast) -> None:
    """Also what its runs start themselves; what is due within a moment too."""

    @app.task
    async def mail(number: int) -> None:
        if number:
            await app.start(mail, number - 1, delay=0.01 * (number % 2))

    await app.start(mail, 6)
    await app.drain()
    assert [info.status for info in await app.runs()] == ["completed"] * 7
    await app.drain()


# -- life ------------------------------------------------------------------------------------------------------------


async def test_a_closed_application_connects_anew(app: Stepfast) -> None:
    mail = task(app, "mail")
    run = await app.start(mail, "a")
    await app.close()
    await app.close()
    assert await finished(app, run) == "a"
    async with app:
        assert await (await app.start(mail, "b")).status() == "queued"


async def test_an_application_serves_several_event_loops_one_after_the_other(
    sqlite_url: str, postgres_url: str
) -> None:
    """asyncio.run twice, as scripts do."""
    for url in (sqlite_url, postgres_url):
        app = Stepfast(url)
        task(app, "mail")

        async def session(app: Stepfast, run_id: str | None) -> str:
            async with app:
                if run_id is None:
                    return (await app.start("mail", "a")).id
                await app.drain()
                return str(await app.get(run_id).result())

        run_id = await asyncio.to_thread(asyncio.run, session(app, None))
        assert await asyncio.to_thread(asyncio.run, session(app, run_id)) == "a"


async def test_tables_are_made_by_themselves_or_not_at_all(make_app: MakeApp) -> None:
    """Design: unless auto_migrate=False; migrate is idempotent and safe at once."""
    careful = make_app(auto_migrate=False)
    with pytest.raises(SchemaError, match="migrate"):
        await careful.runs()
    applied = await asyncio.gather(careful.migrate(), make_app().migrate(), make_app(auto_migrate=False).migrate())
    assert [len(names) > 0 for names in applied].count(True) == 1
    assert await careful.migrate() == []
    assert await careful.runs() == []


@pytest.mark.enough_on("postgres", "sqlite")
async def test_two_namespaces_in_one_database_do_not_meet(make_app: MakeApp, calls: Calls) -> None:
    """Not their runs, keys, definitions or workers."""
    one, other = make_app(namespace="one"), make_app(namespace="Other_2")

    @one.task
    async def mail(name: str) -> str:
        calls.hit(f"one {name}")
        return name

    run = await one.start(mail, "a", key="k")
    with pytest.raises(UnknownWorkflow, match="none yet"):
        await other.start("mail", "a")

    @other.task(name="mail")
    async def other_mail(name: str) -> str:
        calls.hit(f"other {name}")
        return name

    await other.drain()
    assert await run.status() == "queued"
    twin = await other.start(other_mail, "b", key="k")
    assert twin.id != run.id
    with pytest.raises(RunNotFound):
        await other.get(run.id).status()
    await one.drain()
    await other.drain()
    assert calls == {"one a": 1, "other b": 1}
    assert [info.input for info in await one.runs()] == ["a"]
    assert [info.input for info in await other.runs()] == ["b"]


@pytest.mark.parametrize(
    "namespace", [
        "", "1a", "a b", 'a"b', "a;drop", "ä", "x" * 49, "a.b", 5, "pg_x", "PG_x", "information_schema", "sqlite",
        "sqlite_x", "SQLite_x",
    ],
    ids=repr,
)  # fmt: skip
def test_a_namespace_that_is_no_plain_name_is_refused(namespace: Any) -> None:
    with pytest.raises(ConfigurationError, match="namespace"):
        Stepfast("sqlite://", namespace=namespace)


async def test_a_database_in_memory_works_with_both_faces() -> None:
    """SQLite in memory, for tests."""
    app = Stepfast("sqlite://")

    @app.workflow
    async def order(ctx: Context, name: str) -> str:
        return await ctx.step("say", lambda: f"hello {name}")

    run = await app.start(order, "Ann")
    other = await asyncio.to_thread(lambda: app.sync.start(order, "Bob"))
    async with app.worker():
        assert await run.result(timeout=PATIENCE) == "hello Ann"
        assert await asyncio.to_thread(other.result, PATIENCE) == "hello Bob"
    await app.close()


async def test_a_database_that_cannot_be_reached_is_told_in_one_sentence_without_the_password() -> None:
    app = Stepfast("postgresql://user:hunter2@127.0.0.1:1/nowhere")
    mail = task(app, "mail", returns=None)
    for question in (app.runs, app.migrate, app.drain, lambda: app.start(mail), app.get(NOWHERE).status):
        with pytest.raises(DatabaseUnavailable) as caught:
            await question()
        assert "hunter2" not in str(caught.value) and "\n" not in str(caught.value)
        assert "127.0.0.1:1" in str(caught.value)


def test_the_url_and_the_namespace_come_from_the_environment_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STEPFAST_URL", raising=False)
    assert Stepfast().url.text == "sqlite:///stepfast.db"
    monkeypatch.setenv("STEPFAST_URL", "postgresql://host/db")
    monkeypatch.setenv("STEPFAST_NAMESPACE", "other")
    assert (Stepfast().url.kind, Stepfast().namespace) == ("postgres", "other")
    given = Stepfast("sqlite:///mine.db", namespace="mine")
    assert (given.url.path, given.namespace) == ("mine.db", "mine")


# -- codec -------------------------------------------------------------------------------------------------------------


class Failing(Backwards):
    """Fails, when it is told to."""

    broken = False

    def encode(self, data: bytes, /) -> bytes:
        if self.broken:
            raise ConnectionError("the key server is away; it was told top-secret")
        return super().encode(data)


async def test_every_stored_payload_passes_through_the_codec(make_app: MakeApp) -> None:
    """Design: inputs, results, arguments, errors, progress; read back plain with the same codec only."""
    app = make_app(codec=Backwards())
    tried: list[int] = []

    @app.workflow(max_attempts=2)
    async def order(ctx: Context, secret: str) -> str:
        async def flaky(value: str) -> str:
            ctx.progress("hidden?", {"secret": value})
            tried.append(1)
            if len(tried) == 1:
                raise ValueError(f"no {value}")
            return value

        return await ctx.options(retries=1, backoff=AT_ONCE).step(flaky, secret)

    run = await drained(app, order, "top-secret")
    assert await run.result() == "top-secret"
    assert (await run.info()).input == "top-secret"
    failed, done = await run.activity()
    assert failed.error is not None
    assert (failed.error.message, done.parameters, done.result) == (
        "no top-secret",
        {"value": "top-secret"},
        "top-secret",
    )
    async with rows_of(app) as rows:
        dump = repr(await rows.dump())
    assert run.id in dump
    assert "secret" not in dump
    with pytest.raises(PayloadError, match="codec"):
        await make_app().get(run.id).info()


async def test_what_was_stored_before_the_codec_stays_readable(make_app: MakeApp) -> None:
    plain, coded = make_app(), make_app(codec=Backwards())
    for app in (plain, coded):
        task(app, "mail")
    run = await plain.start("mail", "a")
    await coded.drain()
    assert await coded.get(run.id).result() == "a"
    assert (await coded.get(run.id).info()).input == "a"


@pytest.mark.parametrize("where", ["step", "result", "error"])
async def test_a_codec_that_fails_costs_an_attempt_and_leaks_nothing(make_app: MakeApp, where: str) -> None:
    """An error that cannot be encoded must not wedge the run, nor be stored in the clear."""
    codec = Failing()
    app = make_app(codec=codec)

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> str:
        codec.broken = True
        if where == "step":
            await ctx.step("work", lambda: "top-secret")
        if where == "error":
            raise ValueError("top-secret")
        return "top-secret"

    run = await drained(app, order)
    codec.broken = False
    info = await run.info()
    assert info.status == "failed"
    assert info.error is not None and "secret" not in repr(info) + info.error.message


# -- log --------------------------------------------------------------------------------------------------------------


class Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def collector() -> Iterator[tuple[logging.Logger, Collector]]:
    logger, handler = logging.getLogger("tests.application"), Collector()
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    yield logger, handler
    logger.removeHandler(handler)


async def test_the_log_names_runs_and_holds_no_payloads(
    make_app: MakeApp, collector: tuple[logging.Logger, Collector]
) -> None:
    """Run ids on every record about a run; no input, result or argument, and on request no message of an error."""
    logger, handler = collector
    app = make_app(logger=logger, settings=Settings(log_errors=False))

    @app.workflow(max_attempts=2, backoff=AT_ONCE)
    async def order(ctx: Context, secret: str) -> str:
        await ctx.step("work", lambda value: value, secret)
        raise ValueError(f"failed with {secret}")

    run = await app.start(order, "top-secret")
    async with app.worker():
        await eventually(lambda: any("attempt 1 failed" in r.getMessage() for r in handler.records))
        await failure(run)
    formatter = logging.Formatter("%(message)s")
    texts = [formatter.format(record) for record in handler.records]
    assert not [text for text in texts if "secret" in text]
    about = [record for record in handler.records if "order)" in record.getMessage()]
    assert len(about) >= 2
    assert all(run.id in record.getMessage() for record in about)


async def test_without_a_logger_nothing_is_written(app: Stepfast, capfd: pytest.CaptureFixture[str]) -> None:
    """Design: silent unless configured."""
    mail = task(app, "mail", error=ValueError("loud"), max_attempts=1)
    run = await drained(app, mail)
    assert await run.status() == "failed"
    assert capfd.readouterr() == ("", "")


# -- without an event loop ---------------------------------------------------------------------------------------


def test_the_same_verbs_without_an_event_loop(url: str) -> None:
    """Issue face: app.sync."""
    app = Stepfast(url)

    @app.workflow
    def order(ctx: SyncContext, name: str) -> str:
        if name == "bad":
            raise ValueError("bad order")
        return ctx.step("say", lambda: f"hello {name}")

    assert len(app.sync.migrate()) > 0
    run = app.sync.start(order, "Ann", key="k", tags=["t"])
    assert app.sync.start(order, "Bob", key="k").id == run.id
    others = app.sync.start_many("order", ["a", "b"], keys=["1", "2"])
    bad = app.sync.start(order, "bad", max_attempts=1)
    assert run.status() == "queued"
    with pytest.raises(TimeoutError):
        run.result(timeout=0.01)
    app.sync.drain()
    assert [handle.result() for handle in [run, *others]] == ["hello Ann", "hello a", "hello b"]
    assert app.sync.get(run.id).result(timeout=5) == "hello Ann"
    with pytest.raises(RunFailed, match="bad order"):
        bad.result()
    assert [info.id for info in app.sync.runs(tag="t")] == [run.id]
    assert (run.info().status, [s.name for s in run.steps()], len(run.activity())) == ("completed", ["say"], 1)
    bad.retry()
    assert bad.status() == "queued"
    app.sync.close()
    assert app.sync.get(run.id).status() == "completed"
    app.sync.close()
