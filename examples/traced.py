"""Traces of an order that waits: what OpenTelemetry sees of it, printed as trees.

The order is charged at the second try, waits for a word from the warehouse (no span is open meanwhile), and is shipped
by a child. Nothing is sent anywhere: the spans are kept in memory. In earnest an exporter sends them to a collector.

    pip install 'stepfast[otel]' opentelemetry-sdk
    python examples/traced.py
"""

from __future__ import annotations

import asyncio
import os

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from stepfast import Backoff, Context, Settings, Stepfast
from stepfast.telemetry.otel import Tracing

kept = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(kept))
trace.set_tracer_provider(provider)
tracer = trace.get_tracer("shop")

url = os.environ.get("STEPFAST_URL", "sqlite://")
app = Stepfast(url, observers=[Tracing()], settings=Settings(inline_wait=0))
calls: list[str] = []


async def charge(order: str) -> str:
    """The bank is not there at first. What the code itself traces is below the step."""
    calls.append(order)
    with tracer.start_as_current_span("POST bank/charges"):
        if len(calls) == 1:
            raise ConnectionError("no answer")
    return f"receipt {order}"


@app.task
async def ship(order: str) -> str:
    """A child: a run of its own."""
    return f"{order} is on its way"


@app.workflow
async def checkout(ctx: Context, order: str) -> str:
    """Charge, wait, ship."""
    await ctx.options(retries=2, backoff=Backoff(base=0)).step(charge, order)
    await ctx.wait_signal("packed")
    return await ctx.call(ship, order)


def print_trees(spans: list[ReadableSpan]) -> None:
    """Each trace, its spans below one another, and what they are linked to."""
    names = {span.context.span_id: span.name for span in spans if span.context}
    below: dict[int | None, list[ReadableSpan]] = {}
    for span in sorted(spans, key=lambda span: span.start_time or 0):
        below.setdefault(span.parent.span_id if span.parent else None, []).append(span)

    def show(span: ReadableSpan, depth: int) -> None:
        said = dict(span.attributes or {})
        outcome = f": {said['stepfast.outcome']!s}" if "stepfast.outcome" in said else ""
        wrong = " (error)" if not span.status.is_ok else ""
        linked = ", ".join(names[link.context.span_id] for link in span.links)
        print(f"{'  ' * depth}{span.name}{outcome}{wrong}{f'  -> linked to {linked}' if linked else ''}")
        for child in below.get(span.context.span_id if span.context else None, []):
            show(child, depth + 1)

    for root in below[None]:
        print("a trace:")
        show(root, 1)


async def main() -> None:
    """One order, from the request to the parcel."""
    async with app:
        with tracer.start_as_current_span("POST /orders"):
            run = await app.start(checkout, "o-1")
        await app.drain()
        with tracer.start_as_current_span("POST /warehouse/packed"):
            await run.signal("packed")
        await app.drain()
        print(await run.result())
    print_trees(list(kept.get_finished_spans()))


if __name__ == "__main__":
    asyncio.run(main())
