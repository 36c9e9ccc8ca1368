"""What Sentry is told, as its own client hands it to a transport."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from stepfast import Backoff, Context, DagContext, NonRetryableError, StepFailed
from stepfast.telemetry.sentry import SentryErrors
from tests.telemetry.conftest import MakeApp, drained

AT_ONCE = Backoff(base=0, jitter=False)


class Kept(Transport):
    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        self.events += [dict(item.payload.json) for item in envelope.items if item.type == "event"]  # type: ignore[arg-type]


@pytest.fixture
def sent() -> Iterator[list[dict[str, Any]]]:
    """What was sent to Sentry. Its integrations are left out: those of logging would leave crumbs of their own."""
    kept = Kept()
    with sentry_sdk.isolation_scope():
        sentry_sdk.init("http://key@localhost/1", transport=kept, default_integrations=False)
        yield kept.events
        sentry_sdk.get_client().close()
        sentry_sdk.get_global_scope().set_client(None)


def crumbs(event: dict[str, Any]) -> list[str]:
    return [crumb["message"] for crumb in event.get("breadcrumbs", {}).get("values", [])]


def raised(event: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = event["exception"]["values"][-1]
    return found


async def test_the_last_attempt_is_reported_and_those_before_are_crumbs(
    make_app: MakeApp, sent: list[dict[str, Any]]
) -> None:
    app = make_app(observers=[SentryErrors()])
    calls: list[int] = []

    @app.task(max_attempts=3, backoff=AT_ONCE, queue="fast")
    async def job() -> None:
        calls.append(1)
        raise LookupError(f"gone {len(calls)}")

    run = await drained(app, job)
    (event,) = sent
    assert (raised(event)["type"], raised(event)["value"]) == ("LookupError", "gone 3")
    assert raised(event)["mechanism"] == {"type": "stepfast", "handled": False}
    assert raised(event)["stacktrace"]["frames"][-1]["function"] == "job"
    assert event["tags"] == {"stepfast.workflow": "job", "stepfast.queue": "fast", "stepfast.reason": "code"}
    assert event["contexts"]["stepfast"] == {"run_id": run.id, "workflow": "job", "attempt": 3, "claim": 3}
    assert event["transaction"] == "job"
    assert crumbs(event) == [f"attempt {n} failed; next attempt in 0.0 s" for n in (1, 2)]


async def test_a_step_that_ends_its_run_is_reported_by_its_own_error(
    make_app: MakeApp, sent: list[dict[str, Any]]
) -> None:
    """The workflow is told of it by StepFailed, which is made from the record."""
    app = make_app(observers=[SentryErrors()])

    async def charge() -> None:
        raise ConnectionError("refused")

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> None:
        await ctx.options(retries=1, backoff=AT_ONCE).step(charge)

    await drained(app, order)
    (event,) = sent
    assert raised(event)["type"] == "ConnectionError"
    assert raised(event)["stacktrace"]["frames"][-1]["function"] == "charge"
    assert event["tags"]["stepfast.step"] == "charge"
    assert crumbs(event) == [
        "step 'charge': try 1 failed; next try in 0.0 s", "step 'charge': try 2 failed; no further try",
    ]  # fmt: skip


async def test_what_the_workflow_gets_over_is_not_reported(make_app: MakeApp, sent: list[dict[str, Any]]) -> None:
    app = make_app(observers=[SentryErrors()])
    calls: list[int] = []

    async def refuse() -> None:
        raise NonRetryableError("no")

    @app.task(max_attempts=2, backoff=AT_ONCE)
    async def shaky() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise LookupError("once")

    @app.workflow
    async def order(ctx: Context) -> str:
        try:
            await ctx.step(refuse)
        except StepFailed:
            return "without"
        return "with"

    await app.start(order)
    await drained(app, shaky)
    assert sent == []


async def test_runs_that_go_on_at_the_same_time_do_not_mix_what_they_tell(
    make_app: MakeApp, sent: list[dict[str, Any]]
) -> None:
    app = make_app(observers=[SentryErrors()])
    both = asyncio.Barrier(2)

    @app.task(max_attempts=1)
    async def job(name: str) -> None:
        sentry_sdk.set_tag("customer", name)
        sentry_sdk.add_breadcrumb(message=f"began {name}")
        await both.wait()
        raise ValueError(name)

    await app.start_many(job, ["ada", "bob"])
    await app.drain()
    assert {(raised(e)["value"], e["tags"]["customer"], tuple(crumbs(e))) for e in sent} == {
        ("ada", "ada", ("began ada",)), ("bob", "bob", ("began bob",)),
    }  # fmt: skip


async def test_a_dag_reports_the_step_that_it_failed_of_once(make_app: MakeApp, sent: list[dict[str, Any]]) -> None:
    app = make_app(observers=[SentryErrors()])
    fulfil = app.dag("fulfil")

    @fulfil.step(retries=0)
    async def pack(ctx: DagContext) -> None:
        raise ValueError("torn")

    await drained(app, fulfil)
    (event,) = sent
    assert (raised(event)["type"], event["tags"]["stepfast.step"]) == ("ValueError", "pack")


async def test_without_sentry_nothing_happens(make_app: MakeApp) -> None:
    app = make_app(observers=[SentryErrors()])

    @app.task(max_attempts=1)
    async def job() -> None:
        raise ValueError("x")

    run = await drained(app, job)
    assert (await run.info()).status == "failed"
