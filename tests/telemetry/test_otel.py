"""Traces, as an SDK with an exporter in memory gets them."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, Sampler, TraceIdRatioBased
from opentelemetry.trace import SpanContext, SpanKind, StatusCode

from stepfast import Backoff, ConfigurationError, Context, NonRetryableError, Run, Settings, Stepfast, SyncContext
from stepfast.telemetry.otel import LONGEST, SpanNames, Tracing
from tests.telemetry.conftest import MakeApp, drained

AT_ONCE = Backoff(base=0, jitter=False)


class Seen:
    """The spans that came out, and a tracer for the user's own."""

    def __init__(self, sampler: Sampler | None = None) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler) if sampler is not None else TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("tests")

    def tracing(self, **options: Any) -> Tracing:
        return Tracing(tracer_provider=self.provider, **options)

    @property
    def spans(self) -> list[ReadableSpan]:
        """All that have ended, in that order."""
        return list(self.exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        return sorted((s for s in self.spans if s.name == name), key=lambda s: s.start_time or 0)

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def app(make_app: MakeApp, seen: Seen) -> Stepfast:
    return make_app(observers=[seen.tracing()], settings=Settings(inline_wait=0))


def said(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def context_of(span: ReadableSpan) -> SpanContext:
    context = span.get_span_context()
    assert context is not None
    return context


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def id_of(span: ReadableSpan) -> int:
    return int(context_of(span).span_id)


def trace_of(span: ReadableSpan) -> int:
    return int(context_of(span).trace_id)


def links_of(span: ReadableSpan) -> dict[str, int]:
    """What a span has links to, by what they are."""
    return {str((link.attributes or {})["stepfast.link"]): link.context.span_id for link in span.links}


async def go_on(app: Stepfast, *runs: Run[Any], times: int = 1) -> None:
    """Let runs come to where they wait for the signal ``go``, and send it, so often; until they have ended.

    Sleeps are no good for that: on a busy machine they are over before the run has left its worker.
    """
    await app.drain()
    for _ in range(times):
        for run in runs:
            await run.signal("go")
        await app.drain()


async def current() -> int:
    return trace.get_current_span().get_span_context().span_id


# -- the shape of a trace ----------------------------------------------------------------------------------------------


async def test_a_task_is_a_span_below_the_start_and_that_below_the_callers(app: Stepfast, seen: Seen) -> None:
    @app.task(queue="fast")
    async def job(n: int) -> int:
        return n

    with seen.tracer.start_as_current_span("request") as request:
        run = await app.start(job, 7)
    await app.drain()
    start, claim = seen.one("start job"), seen.one("run job")
    assert parent_of(start) == request.get_span_context().span_id
    assert parent_of(claim) == id_of(start)
    assert trace_of(claim) == request.get_span_context().trace_id
    assert (start.kind, claim.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert said(start) == {
        "messaging.system": "stepfast", "messaging.operation.name": "start", "messaging.operation.type": "send",
        "messaging.destination.name": "fast", "messaging.message.id": run.id, "stepfast.run.id": run.id,
        "stepfast.workflow": "job",
    }  # fmt: skip
    attributes = said(claim)
    assert attributes.pop("stepfast.ready_seconds") >= 0
    who = (await run.info()).executed_by
    assert who is not None
    assert attributes == {
        "stepfast.worker.id": who.worker, "stepfast.worker.executor": who.host, "stepfast.worker.pid": who.pid,
        "messaging.system": "stepfast", "messaging.operation.name": "run", "messaging.operation.type": "process",
        "messaging.destination.name": "fast", "messaging.message.id": run.id, "stepfast.run.id": run.id,
        "stepfast.workflow": "job", "stepfast.kind": "task", "stepfast.attempt": 1, "stepfast.claim": 1,
        "stepfast.outcome": "completed",
    }  # fmt: skip
    assert claim.status.status_code is StatusCode.UNSET


async def test_a_workflow_has_a_trace_of_its_own_and_links_over_its_waits(url: str, seen: Seen) -> None:
    async with Stepfast(url, observers=[seen.tracing()], settings=Settings(inline_wait=0)) as app:

        @app.workflow
        async def order(ctx: Context) -> None:
            await ctx.step("charge", current)
            await ctx.wait_signal("go")
            await ctx.step("ship", current)
            await ctx.wait_signal("go")

        run = await app.start(order)
        await go_on(app, run, times=2)
        start, claims = seen.one("start order"), seen.named("run order")
        assert len(claims) == 3
        assert trace_of(claims[0]) != trace_of(start) and claims[0].parent is None
        assert {trace_of(claim) for claim in claims} == {trace_of(claims[0])}
        assert [links_of(claim) for claim in claims] == [
            {"start": id_of(start)}, {"claim": id_of(claims[0])}, {"claim": id_of(claims[1])},
        ]  # fmt: skip
        assert [parent_of(claim) for claim in claims[1:]] == [id_of(claims[0])] * 2
        assert [said(claim)["stepfast.outcome"] for claim in claims] == ["suspended", "suspended", "completed"]
        assert said(claims[0])["stepfast.waiting_for"] == "signal:go"
        assert said(claims[2])["stepfast.replayed"] == 4
        assert f"{trace_of(claims[0]):032x}" != run.id.replace("-", "")
        for name, above in (("step charge", claims[0]), ("step ship", claims[1])):
            step = seen.one(name)  # replay emits nothing: each was called once
            assert parent_of(step) == id_of(above)


async def test_no_span_is_open_while_a_run_waits(app: Stepfast, seen: Seen) -> None:
    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.wait_signal("approved")

    with seen.tracer.start_as_current_span("approval"):
        run = await app.start(order)
    await app.drain()
    assert [span.name for span in seen.spans] == ["start order", "approval", "run order"]
    with seen.tracer.start_as_current_span("click") as click:
        await run.signal("approved", {"secret": 1})
    await app.drain()
    signal, taken, claim = seen.one("signal approved"), seen.one("receive approved"), seen.named("run order")[1]
    assert parent_of(signal) == click.get_span_context().span_id
    assert links_of(taken) == {"signal": id_of(signal)}
    assert parent_of(taken) == id_of(claim)


@pytest.mark.parametrize(("parent", "same"), [("child", True), ("link", False)])
async def test_whether_runs_are_in_the_trace_of_their_start_is_a_choice(
    make_app: MakeApp, seen: Seen, parent: str, same: bool
) -> None:
    app = make_app(observers=[seen.tracing(parent=parent)], settings=Settings(inline_wait=0))

    @app.task
    async def job() -> None: ...

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.wait_signal("go")

    await app.start(job)
    await go_on(app, await app.start(order))
    for name in ("job", "order"):
        start, claim = seen.one(f"start {name}"), seen.named(f"run {name}")[0]
        assert (trace_of(start) == trace_of(claim)) is same
        assert links_of(claim) == ({} if same else {"start": id_of(start)})
    first, second = seen.named("run order")
    assert trace_of(first) == trace_of(second) and links_of(second) == {"claim": id_of(first)}


async def test_children_and_steps_of_dags_are_told_who_started_them(app: Stepfast, seen: Seen) -> None:
    fulfil = app.dag("fulfil")

    @fulfil.step
    async def pack(ctx: Context) -> int:
        return 1

    @app.task
    async def wrap() -> None: ...

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.call(wrap)

    await app.start(fulfil)
    await drained(app, order)
    step, dag, start = seen.one("run fulfil/pack"), seen.one("run fulfil"), seen.one("start fulfil")
    assert trace_of(step) == trace_of(dag) == trace_of(start)
    assert said(step)["stepfast.step.name"] == "pack"
    child, claims = seen.one("run wrap"), seen.named("run order")
    assert parent_of(child) == id_of(claims[0])
    assert said(child)["stepfast.parent.run.id"] == said(claims[0])["stepfast.run.id"]


async def test_one_start_of_many_is_one_span(app: Stepfast, seen: Seen) -> None:
    @app.task
    async def job(n: int) -> int:
        return n

    await app.start_many(job, [1, 2, 3])
    await app.drain()
    start = seen.one("start job")
    assert said(start)["messaging.batch.message_count"] == 3 and "messaging.message.id" not in said(start)
    assert [parent_of(claim) for claim in seen.named("run job")] == [id_of(start)] * 3


async def test_a_run_that_nobody_traced_has_a_trace_of_its_own(app: Stepfast, seen: Seen) -> None:
    """As one that was started from SQL, or by a schedule."""

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.wait_signal("go")

    plan = await app._planner.plan(await app._connect(), order, {})
    with seen.tracer.start_as_current_span("bystander") as bystander:
        run_id = await (await app._connect()).starter.start(plan.runs(app._clock.new_id(), None)[0])
        await go_on(app, app.get(run_id))
    first, second = seen.named("run order")
    assert first.parent is None and links_of(first) == {}
    assert trace_of(first) == trace_of(second) != bystander.get_span_context().trace_id


# -- errors ------------------------------------------------------------------------------------------------------------


async def test_failed_tries_are_errors_and_a_run_that_succeeds_is_none(app: Stepfast, seen: Seen) -> None:
    calls = []

    async def shaky() -> str:
        calls.append(1)
        if len(calls) < 3:
            raise ConnectionError("the secret is 1234")
        return "done"

    @app.workflow
    async def order(ctx: Context) -> str:
        return await ctx.options(retries=3, backoff=AT_ONCE).step(shaky)

    await drained(app, order)
    tries = seen.named("step shaky")
    assert [span.status.status_code for span in tries] == [StatusCode.ERROR, StatusCode.ERROR, StatusCode.UNSET]
    assert [said(span).get("error.type") for span in tries] == ["ConnectionError", "ConnectionError", None]
    assert [said(span)["stepfast.step.try"] for span in tries] == [1, 2, 3]
    assert {span.status.status_code for span in seen.named("run order")} == {StatusCode.UNSET}
    assert all(span.status.description is None and not span.events for span in seen.spans)


async def test_a_run_that_fails_is_an_error_and_so_is_an_attempt_before(app: Stepfast, seen: Seen) -> None:
    @app.task(max_attempts=2, backoff=AT_ONCE)
    async def job() -> None:
        raise LookupError("gone")

    await drained(app, job)
    claims = seen.named("run job")
    assert [said(claim)["stepfast.outcome"] for claim in claims] == ["retried", "failed"]
    assert {claim.status.status_code for claim in claims} == {StatusCode.ERROR}
    assert {said(claim)["error.type"] for claim in claims} == {"LookupError"}


@pytest.mark.enough_on("sqlite")
async def test_a_failed_run_that_is_retried_goes_on_in_its_trace(url: str, seen: Seen) -> None:
    async with Stepfast(url, observers=[seen.tracing()]) as app:
        calls: list[int] = []

        @app.workflow(max_attempts=1)
        async def order(ctx: Context) -> None:
            calls.append(1)
            if len(calls) == 1:
                raise LookupError("gone")

        run = await drained(app, order)
        await run.retry()
        await app.drain()
        failed, retried = seen.named("run order")
        assert [said(claim)["stepfast.outcome"] for claim in (failed, retried)] == ["failed", "completed"]
        assert trace_of(failed) == trace_of(retried) and links_of(retried) == {"claim": id_of(failed)}


async def test_a_cancelled_run_is_no_error(app: Stepfast, seen: Seen) -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        begun.set()
        await cancelled.wait()

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.step(hold)
        await ctx.step(hold)

    run = await app.start(order)
    async with app.worker():
        await asyncio.wait_for(begun.wait(), 30)
        await run.cancel()
        cancelled.set()
        with pytest.raises(Exception, match="cancelled"):
            await run.result(timeout=30)
    claim = seen.one("run order")
    assert said(claim)["stepfast.outcome"] == "cancelled" and claim.status.status_code is StatusCode.UNSET
    assert said(seen.one("step hold"))["stepfast.outcome"] == "completed"


async def test_a_start_that_is_refused_is_an_error(app: Stepfast, seen: Seen) -> None:
    @app.task
    async def job() -> None: ...

    run = await drained(app, job)
    with pytest.raises(Exception, match="completed"):
        await run.signal("late")
    signal = seen.one("signal late")
    assert (signal.status.status_code, said(signal)["error.type"]) == (StatusCode.ERROR, "InvalidState")


# -- what the user's own code sees -------------------------------------------------------------------------------------


async def test_the_span_of_a_step_is_current_in_its_function_wherever_it_runs(app: Stepfast, seen: Seen) -> None:
    found: dict[str, int] = {}

    def note(where: str) -> None:
        found[where] = trace.get_current_span().get_span_context().span_id

    async def soon() -> None:
        note("step soon")
        with seen.tracer.start_as_current_span("inner"):
            await asyncio.sleep(0)

    def in_thread() -> None:
        note("step in_thread")

    @app.workflow
    async def order(ctx: Context) -> None:
        note("run order")
        await ctx.step(soon)
        await ctx.gather(ctx.step("a", lambda: note("step a")), ctx.step("b", lambda: note("step b")))
        await ctx.step(in_thread)
        note("again")

    @app.workflow
    def plain(ctx: SyncContext) -> None:
        note("run plain")
        ctx.options(timeout=30).step("c", lambda: note("step c"))

    await app.start(order)
    await drained(app, plain)
    assert found.pop("again") == found["run order"]
    assert len(found) == 7
    for name, span_id in found.items():
        assert span_id == id_of(seen.one(name)), name
    inner = seen.one("inner")
    assert parent_of(inner) == found["step soon"]
    assert parent_of(seen.one("step c")) == found["run plain"]


async def test_steps_belong_to_a_span_that_the_workflow_itself_has_begun(app: Stepfast, seen: Seen) -> None:
    @app.workflow
    async def order(ctx: Context) -> None:
        with seen.tracer.start_as_current_span("part"):
            await ctx.step("one", current)
        await ctx.step("two", current)

    await drained(app, order)
    one, two, part = seen.one("step one"), seen.one("step two"), seen.one("part")
    assert parent_of(one) == id_of(part)
    assert parent_of(two) == id_of(seen.one("run order"))


async def test_nothing_is_said_of_contexts_that_do_not_fit(
    app: Stepfast, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    """OpenTelemetry logs an error when a context is given back elsewhere than it was taken."""

    async def slow() -> None:
        await asyncio.sleep(60)

    @app.workflow(timeout=0.5, max_attempts=1)
    async def late(ctx: Context) -> None:
        await ctx.gather(ctx.step("x", slow), ctx.step("y", slow))

    @app.workflow
    async def own(ctx: Context) -> int:
        try:
            async with asyncio.timeout(0.05):
                await ctx.step("z", slow)
        except TimeoutError:
            return await ctx.step("after", current)
        raise AssertionError

    await app.start(late)
    run = await app.start(own)
    with caplog.at_level(logging.WARNING, "opentelemetry"):
        await app.drain()
    assert await run.result() == id_of(seen.one("step after"))
    assert [record for record in caplog.records if record.name.startswith("opentelemetry")] == []
    assert said(seen.one("step z"))["stepfast.outcome"] == "cancelled"
    assert {said(seen.one(f"step {name}"))["stepfast.outcome"] for name in "xy"} == {"abandoned"}


# -- what is not there -------------------------------------------------------------------------------------------------


async def test_payloads_keys_tags_and_messages_never_appear(app: Stepfast, seen: Seen) -> None:
    secret = "silent-4711"

    async def tell(text: str) -> str:
        return text

    async def fail(text: str) -> None:
        raise NonRetryableError(text)

    @app.workflow
    async def order(ctx: Context, text: str) -> str:
        await ctx.step(tell, text)
        ctx.set("value", text)
        await ctx.wait_signal("go")
        await ctx.step(fail, text)
        return text

    run = await drained(app, order, secret, key=secret, tags=[secret])
    await run.signal("go", secret)
    await app.drain()
    assert (await run.info()).status == "failed"
    assert len(seen.spans) == 7
    everything = json.dumps([json.loads(span.to_json()) for span in seen.spans])
    assert secret not in everything and "silent" not in everything


async def test_a_sampler_is_obeyed_from_the_start_to_the_last_claim(make_app: MakeApp) -> None:
    seen = Seen(ParentBased(ALWAYS_OFF))
    app = make_app(observers=[seen.tracing()], settings=Settings(inline_wait=0))

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.step(current)
        await ctx.wait_signal("go")

    @app.task
    async def job() -> None: ...

    await app.start(job)
    await go_on(app, await app.start(order))
    assert seen.spans == []


async def test_what_a_sampler_takes_it_takes_whole(make_app: MakeApp) -> None:
    seen = Seen(ParentBased(TraceIdRatioBased(0.5)))
    app = make_app(observers=[seen.tracing()], settings=Settings(inline_wait=0))

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.wait_signal("go")
        await ctx.step("work", current)

    await go_on(app, *await app.start_many(order, [None] * 24))
    taken: dict[str, list[str]] = {}
    for span in seen.spans:
        if span.name in ("run order", "step work"):
            taken.setdefault(said(span)["stepfast.run.id"], []).append(span.name)
    assert 1 <= len(taken) <= 23  # two in 2**24 fail by chance
    assert all(names == ["run order", "step work", "run order"] for names in taken.values())


async def test_without_an_sdk_nothing_is_sent_along(make_app: MakeApp) -> None:
    app = make_app(observers=[Tracing(tracer_provider=trace.NoOpTracerProvider())])

    @app.task
    async def job() -> None: ...

    plans = []
    insert = (starter := (await app._connect()).starter).start
    starter.start = lambda run: (plans.append(run), insert(run))[1]  # type: ignore[method-assign, func-returns-value]
    await drained(app, job)
    assert [run.trace for run in plans] == [None]


def test_names_that_are_made_at_run_time_do_not_become_names_of_spans_without_end() -> None:
    names = SpanNames(3)
    assert [names.of("step", f"tool {n}") for n in range(4)] == ["step tool 0", "step tool 1", "step tool 2", "step"]
    assert names.of("step", "tool 1") == "step tool 1"
    assert len(SpanNames().of("step", "x" * 500)) == len("step ") + LONGEST


def test_a_parent_that_there_is_not_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'auto', 'child', 'link'"):
        Tracing(parent="root")
