"""Statistics: ``app.stats`` counts runs and failures, and finds slow steps."""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from .engine.options import Seconds
from .errors import ConfigurationError
from .model.backoff import seconds
from .runtime import Connected
from .store.answers import Failures, Sample, Took

_RUNS = 20_000
"""Newest runs that are read for what has ended."""
_COUNTS = 10_000
"""Unfinished runs are counted up to this, and so many of the newest failures are read."""
_STEPS = 50_000
"""Calls of steps that are read."""
_SLOWEST = 20
"""Steps that are returned."""
_PATIENCE = 20.0
"""Seconds for all queries together."""


@dataclass(frozen=True, slots=True)
class RunStats:
    """Runs of a workflow and a queue in one status."""

    workflow: str
    queue: str
    status: str
    count: int
    oldest: float | None
    """Seconds since the oldest of them was started; None for those that have ended."""


@dataclass(frozen=True, slots=True)
class FailureStats:
    """Runs of a workflow that failed alike."""

    workflow: str
    reason: str | None
    step: str | None
    """The step whose failure ended them, if it was one."""
    error_type: str | None
    """The class of the error; None if only the codec could read it."""
    count: int
    per_hour: float
    last: float
    """Seconds since the last of them."""
    first: float = 0.0
    """Seconds since the first of them, within the span."""
    newest: str = ""
    """The run of them that was started last."""


@dataclass(frozen=True, slots=True)
class StepStats:
    """How long a step took, of calls that completed."""

    workflow: str
    step: str
    count: int
    p50: float
    p95: float
    longest: float


@dataclass(frozen=True, slots=True)
class Stats:
    """What has happened within a span of time."""

    since: float
    """The span, in seconds."""
    runs: list[RunStats]
    """Those that are unfinished, whenever they were started; others if they ended within the span."""
    failures: list[FailureStats]
    """The most frequent first."""
    steps: list[StepStats]
    """The slowest by their p95, first."""
    looked_at: int
    """How many runs were read, from the newest back, for what has ended and for steps."""
    reaches: float | None
    """How far back they go, in seconds."""

    @property
    def complete(self) -> bool:
        """Whether the runs that were read cover the span; if not, there were more, and counts of ends are too low."""
        return self.looked_at < _RUNS or (self.reaches or 0.0) >= self.since


class StatsVerbs:
    """The statistics of the application."""

    _connect: Callable[[], Awaitable[Connected]]

    async def stats(self, since: Seconds = 3600) -> Stats:
        """What has happened within the last hour, or another span: runs by workflow, queue and status, failures by the
        class of the error, and the slowest steps. The queries are bounded: of very many runs, the newest are read."""
        span = seconds(since, "since")
        if span <= 0:
            raise ConfigurationError(f"since must be more than 0 seconds, as in since=3600, not {since!r}")
        store = (await self._connect()).store
        try:
            async with asyncio.timeout(_PATIENCE):
                sample = await store.statistics(int(span * 1000), _RUNS, _COUNTS, _STEPS)
        except TimeoutError:
            raise TimeoutError(
                f"the database needed more than {_PATIENCE:g} s for the statistics; try a shorter span"
            ) from None
        return _stats(span, sample)


def _stats(span: float, sample: Sample) -> Stats:
    runs = [
        RunStats(
            row.workflow, row.queue, row.status, row.number, None if row.oldest_ms is None else row.oldest_ms / 1000
        )
        for row in (*sample.unfinished, *sample.ended)
    ]
    return Stats(
        span,
        sorted(runs, key=lambda row: (row.workflow, row.queue, row.status)),
        failure_stats(span, sample.failures),
        _slowest(sample.steps),
        sample.looked_at,
        None if sample.reach_ms is None else sample.reach_ms / 1000,
    )


def failure_stats(span: float, rows: Sequence[Failures]) -> list[FailureStats]:
    """Return the failures of a span, the most frequent first."""
    found = [
        FailureStats(
            row.workflow, row.reason, row.step, row.error_type, row.number, row.number * 3600 / span,
            max(0, row.last_ms) / 1000, max(0, row.first_ms) / 1000, row.newest,
        )
        for row in rows
    ]  # fmt: skip
    return sorted(found, key=lambda row: (-row.count, row.workflow, row.error_type or ""))


def _rank(ordered: Sequence[float], percent: int) -> float:
    """Return the smallest of the values that so many percent do not exceed (nearest rank)."""
    return ordered[math.ceil(len(ordered) * percent / 100) - 1]


def _slowest(calls: Sequence[Took]) -> list[StepStats]:
    taken: dict[tuple[str, str], list[float]] = defaultdict(list)
    for call in calls:
        taken[call.workflow, call.step].append(max(0, call.ms) / 1000)
    found = []
    for (workflow, step), spans in taken.items():
        spans.sort()
        found.append(StepStats(workflow, step, len(spans), _rank(spans, 50), _rank(spans, 95), spans[-1]))
    found.sort(key=lambda row: (-row.p95, row.workflow, row.step))
    return found[:_SLOWEST]
