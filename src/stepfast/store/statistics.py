"""Statistics of the last hours, for people, by questions whose cost is bounded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol


class RunCount(NamedTuple):
    """Runs of a workflow in a queue that stand in a status."""

    workflow: str
    queue: str
    status: str
    number: int
    oldest_ms: int | None
    """Of unfinished ones: the age of the oldest."""


class Alike(NamedTuple):
    """What runs have in common that failed alike."""

    workflow: str
    reason: str | None
    step: str | None
    error_type: str | None


class Failures(NamedTuple):
    """Runs of a workflow that failed alike."""

    workflow: str
    reason: str | None
    step: str | None
    """The step whose failure ended them, if it was one."""
    error_type: str | None
    """The class of the error; None where it cannot be read without the codec."""
    number: int
    last_ms: int
    """How long ago the last of them ended."""
    first_ms: int = 0
    """How long ago the first did, within the span."""
    newest: str = ""
    """The run of them that was started last."""


class Took(NamedTuple):
    """How long one call of a step took."""

    workflow: str
    step: str
    ms: int


class Sample(NamedTuple):
    """What was found, and in how much."""

    ended: list[RunCount]
    unfinished: list[RunCount]
    failures: list[Failures]
    steps: list[Took]
    looked_at: int
    """Of how many runs, the newest ones, those were found that have ended."""
    reach_ms: int | None
    """How old the oldest of these is; None: there is none."""


class StatisticsStore(Protocol):
    """A database that can be asked what has happened lately."""

    async def statistics(self, since_ms: int, runs: int, counts: int, steps: int) -> Sample:
        """What happened within a span of time, among the newest ``runs``; unfinished ones counted up to ``counts`` of a
        kind, and up to ``steps`` calls of steps."""
        ...

    async def failures(self, since_ms: int, counts: int) -> list[Failures]:
        """What failed within a span of time, among the newest ``counts`` failed runs, and as many that were undone."""
        ...


class BaseStatistics:
    """Statistics as every database gives them: by the statements of its own."""

    async def _fetch(self, name: str, *arguments: Any) -> Sequence[Any]:
        raise NotImplementedError

    async def statistics(self, since_ms: int, runs: int, counts: int, steps: int) -> Sample:
        """What happened within a span of time."""
        (_, _, _, looked_at, reach), *ended = await self._fetch("stats_ended", runs, since_ms)
        return Sample(
            [RunCount(*row) for row in ended],
            [RunCount(*row) for row in await self._fetch("stats_open", counts)],
            await self.failures(since_ms, counts),
            [Took(*row) for row in await self._fetch("stats_steps", runs, since_ms, steps)],
            looked_at,
            reach,
        )

    async def failures(self, since_ms: int, counts: int) -> list[Failures]:
        """What failed within a span of time."""
        return [Failures(*row) for row in await self._fetch("stats_failures", counts, since_ms)]
