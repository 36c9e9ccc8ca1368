"""Stepfast on Postgres, with metrics."""

from __future__ import annotations

from bench.engines.stepfast import StepfastEngine
from stepfast.telemetry import Metrics, Observer


class StepfastObserved(StepfastEngine):
    """The same, with an observer that counts all that happens."""

    def observers(self) -> list[Observer]:
        return [Metrics()]
