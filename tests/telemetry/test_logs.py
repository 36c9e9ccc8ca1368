"""Ids on lines that handlers and steps log: by a filter, and by a processor of structlog."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
import structlog
from opentelemetry.sdk.trace import TracerProvider

from stepfast import Context, Stepfast, SyncContext
from stepfast.log_context import NAMES, RunFilter, add_run_ids, run_ids
from stepfast.telemetry.otel import Tracing
from tests.telemetry.conftest import MakeApp, drained

logger = logging.getLogger("tests.shop")


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def ids(self) -> list[tuple[Any, ...]]:
        """What each has of the ids of a run."""
        return [
            tuple(getattr(r, n, None) for n in ("msg", "run_id", "workflow", "attempt", "step")) for r in self.records
        ]


@pytest.fixture
def lines() -> Any:
    """What the logger was told, behind the filter."""
    handler, before = Lines(), logger.level
    handler.addFilter(RunFilter())
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(before)


async def test_a_filter_adds_run_and_step_wherever_the_code_runs(app: Stepfast, lines: Lines) -> None:
    async def soon() -> None:
        logger.info("soon")
        await asyncio.create_task(later())

    async def later() -> None:
        logger.info("later")

    def in_thread() -> None:
        logger.info("thread")

    @app.workflow
    async def order(ctx: Context) -> None:
        logger.info("body")
        await ctx.step(soon)
        await ctx.step(in_thread)

    @app.workflow
    def plain(ctx: SyncContext) -> None:
        logger.info("plain")

    logger.info("before")
    first, second = await app.start(order), await app.start(plain)
    await app.drain()
    assert sorted(lines.ids(), key=str) == sorted(
        [
            ("before", None, None, None, None),
            ("body", first.id, "order", 1, None),
            ("soon", first.id, "order", 1, "soon"),
            ("later", first.id, "order", 1, "soon"),
            ("thread", first.id, "order", 1, "in_thread"),
            ("plain", second.id, "plain", 1, None),
        ],
        key=str,
    )
    assert not hasattr(lines.records[0], "run_id")


async def test_ids_of_the_trace_are_added_where_there_is_one(make_app: MakeApp, lines: Lines) -> None:
    provider = TracerProvider()
    app = make_app(observers=[Tracing(tracer_provider=provider)])

    @app.task
    async def job() -> None:
        logger.info("traced")

    await drained(app, job)
    (record,) = lines.records
    assert len(getattr(record, "trace_id")) == 32 and len(getattr(record, "span_id")) == 16  # noqa: B009
    with provider.get_tracer("tests").start_as_current_span("outside"):
        assert set(run_ids()) == {"trace_id", "span_id"}


def test_what_a_record_says_already_stays_and_what_is_missing_has_a_word() -> None:
    record = logging.makeLogRecord({"run_id": "r", "msg": "x"})
    assert RunFilter(missing="-").filter(record) is True
    assert [getattr(record, name) for name in NAMES] == ["r", *"------"]


async def test_structlog_has_a_processor(app: Stepfast) -> None:
    kept: list[dict[str, Any]] = []

    def keep(_: Any, __: str, event: Any) -> Any:
        kept.append(dict(event))
        raise structlog.DropEvent

    log = structlog.wrap_logger(None, processors=[structlog.contextvars.merge_contextvars, add_run_ids, keep])

    @app.task
    async def job() -> None:
        log.info("said")
        with structlog.contextvars.bound_contextvars(workflow="mine"):
            log.info("bound")

    log.info("outside")
    run = await drained(app, job)
    who = (await run.info()).executed_by
    assert who is not None
    ids = {"run_id": run.id, "workflow": "job", "attempt": 1, "worker": who.worker}
    assert kept == [{"event": "outside"}, {"event": "said", **ids}, {"event": "bound", **ids, "workflow": "mine"}]
