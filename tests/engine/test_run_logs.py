"""Logs of runs: what their code logs is kept with them, bounded, once for each time that it is logged."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from stepfast import ConfigurationError, Context, DagContext, Settings, Stepfast, SyncContext, step
from stepfast.engine.run_log import HANDLER
from stepfast.run import Run
from stepfast.testing import Lab
from tests.engine.conftest import ON_BOTH, ON_SQLITE, MakeApp
from tests.support.engine import PATIENCE, Gate, drained, interrupt

log = logging.getLogger("shop.orders")
RELEASED = Settings(inline_wait=0)


@pytest.fixture(autouse=True)
def _enabled() -> Any:
    log.setLevel(logging.DEBUG)
    yield
    log.setLevel(logging.NOTSET)


async def lines(run: Run[Any]) -> list[tuple[str, str, str, str | None]]:
    return [(line.level, line.logger, line.message, line.step) for line in await run.logs()]


@step
async def charge(card: str) -> None:
    log.debug("not kept")
    log.info("charging %s", card)


@step
def print_label() -> None:
    try:
        raise ValueError("no paper")
    except ValueError:
        log.exception("not printed")


@ON_BOTH
async def test_what_the_code_of_a_run_logs_is_kept_once(make_app: MakeApp) -> None:
    """In steps, in their threads, and between them, though the code of the workflow is called again after each wait."""
    app = make_app(run_logs="INFO", settings=RELEASED)

    @app.workflow
    async def order(ctx: Context) -> None:
        ctx.log.info("a new %s", "order")
        await ctx.step(charge, "visa")
        await ctx.sleep(0.01)
        log.warning("late")
        await ctx.step(print_label)
        ctx.log.debug("not kept")

    run = await drained(app, order)
    log.warning("of no run")
    *found, (level, logger, text, name) = await lines(run)
    assert found == [
        ("INFO", "stepfast.run", "a new order", None),
        ("INFO", "shop.orders", "charging visa", "charge"),
        ("WARNING", "shop.orders", "late", None),
    ]
    assert (level, logger, name) == ("ERROR", "shop.orders", "print_label")
    assert text.startswith("not printed\nTraceback") and text.endswith("ValueError: no paper")
    assert [line.at for line in await run.logs()] == sorted(line.at for line in await run.logs())
    assert await run.streams() == []
    assert not HANDLER._users and HANDLER not in logging.getLogger().handlers


@ON_BOTH
async def test_lines_are_there_while_the_run_works_and_go_on_with_its_chain(make_app: MakeApp) -> None:
    app, gate = make_app(run_logs="INFO"), Gate()

    @app.workflow
    async def chat(ctx: Context, number: int) -> None:
        await ctx.step("say", lambda: log.info("number %d", number))
        if number == 1:
            ctx.continue_as(2)
        await ctx.step(gate.passing)

    async with app.worker():
        run = await app.start(chat, 1)
        told = run.follow_logs(timeout=PATIENCE)
        assert [(await anext(told)).message for _ in range(2)] == ["number 1", "number 2"]
        gate.open()
        assert [line async for line in told] == []
    assert [line.message for line in await run.logs()] == ["number 1", "number 2"]
    in_thread = await asyncio.to_thread(lambda: list(app.sync.get(run.id).follow_logs(timeout=PATIENCE)))
    assert [line.message for line in in_thread] == ["number 1", "number 2"]


@ON_SQLITE
async def test_a_step_that_is_called_again_logs_again(make_app: MakeApp) -> None:
    app, gate = make_app(run_logs=logging.INFO), Gate()

    @app.workflow
    async def order(ctx: Context) -> None:
        log.info("before")

        async def work() -> None:
            log.info("working")
            await gate.passing()

        await ctx.step("work", work)

    run = await app.start(order)
    await interrupt(app, gate)
    gate.open()
    await app.drain()
    assert [line[2] for line in await lines(run)] == ["before", "working", "before", "working"]


@ON_BOTH
async def test_the_first_lines_are_kept_and_the_others_counted(make_app: MakeApp) -> None:
    """A flood is counted without memory, over several claims of the run."""
    app = make_app(run_logs="INFO", settings=Settings(max_log_lines=5, inline_wait=0))

    @app.workflow
    def flood(ctx: SyncContext) -> None:
        def work() -> None:
            for number in range(1000):
                log.info("%d", number)

        ctx.step("work", work)
        ctx.sleep(0.01)
        ctx.step("more", work)

    run = await drained(app, flood)
    await run.result(timeout=PATIENCE)
    *kept, last = await lines(run)
    assert [line[2] for line in kept] == ["0", "1", "2", "3", "4"]
    assert last[:2] == ("WARNING", "stepfast") and "1995 more lines were dropped" in last[2]
    async for line in run.follow_logs(timeout=PATIENCE):
        last = (line.level, line.logger, line.message, line.step)
    assert "1995 more lines" in last[2]


@ON_SQLITE
async def test_nothing_is_kept_unless_it_is_asked_for(make_app: MakeApp, capsys: pytest.CaptureFixture[str]) -> None:
    app = make_app()

    @app.workflow
    async def order(ctx: Context) -> None:
        ctx.log.info("quiet")
        await ctx.step(charge, "visa")

    assert await (await drained(app, order)).logs() == []
    with pytest.raises(ConfigurationError, match="run_logs is a level"):
        make_app(run_logs="LOUD")
    with pytest.raises(ConfigurationError, match="must not begin with '~'"):
        await _sends_to_its_log(app)


async def _sends_to_its_log(app: Stepfast) -> None:
    seen: list[Exception] = []

    @app.task
    async def odd() -> None:
        from stepfast import stream

        try:
            stream("~logs")
        except ConfigurationError as error:
            seen.append(error)

    await drained(app, odd)
    raise seen[0]


@ON_SQLITE
async def test_a_line_is_bounded_and_a_codec_that_logs_ends_nothing(make_app: MakeApp) -> None:
    class Talking:
        def encode(self, data: bytes) -> bytes:
            log.warning("encoding")
            return data[::-1]

        def decode(self, data: bytes) -> bytes:
            return data[::-1]

    app = make_app(run_logs="INFO", codec=Talking())

    @app.task
    async def order() -> None:
        log.info("x" * 20_000)

    run = await drained(app, order)
    [(_, _, text, _)] = [line for line in await lines(run) if line[2].startswith("x")]
    assert len(text) < 9000 and text.endswith("… (20000 characters)")
    rows = (await (await app.store()).stream_pages([(run.id, "~logs", 0, 100)]))[run.id, "~logs"]
    assert all("message" not in (row.value or "") for row in rows)


def test_others_hear_what_they_would_hear_without_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Python's handler of last resort prints warnings where there is no other."""
    root = logging.getLogger()
    others, root.handlers = root.handlers, []
    HANDLER.begin("a worker")
    try:
        log.warning("to stderr")
        log.info("nowhere")
    finally:
        HANDLER.end("a worker")
        root.handlers = others
    assert capsys.readouterr().err == "to stderr\n"


@ON_SQLITE
async def test_a_lab_keeps_lines_too_and_those_of_a_dag_name_its_steps(make_app: MakeApp) -> None:
    app = make_app(run_logs="INFO")
    dag = app.dag("graph")

    @dag.step
    async def first(ctx: DagContext) -> None:
        log.info("one")
        await ctx.step("inner", lambda: ctx.log.info("two"))

    async with Lab(app) as lab:
        run = await lab.start(dag, None)
        await lab.settle()
        assert [line[2:] for line in await lines(run)] == [("one", "first"), ("two", "inner")]
    assert HANDLER not in logging.getLogger().handlers
