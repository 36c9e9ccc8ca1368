"""Stepfast on Postgres, with traces."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from bench.engines.stepfast import StepfastEngine
from stepfast.telemetry import Observer
from stepfast.telemetry.otel import Tracing


class Nowhere(SpanExporter):
    """Takes spans and sends them nowhere: what an exporter costs is its own affair."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


class StepfastTraced(StepfastEngine):
    """The same, with a span of every claim and of every call of a step, all of them sampled."""

    def observers(self) -> list[Observer]:
        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(Nowhere()))
        return [Tracing(tracer_provider=provider)]
