"""What a scenario holds in its hands: one engine, its empty databases, and the ways to make it work."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import perf_counter_ns

from bench.engines import load
from bench.engines.base import Engine, Kind
from bench.meter import CpuMeter, known_figures
from bench.probe import PROBE
from bench.waiting import handled, until

LEAST = 40
"""A measurement of fewer runs than this says nothing."""


@dataclass
class Subject:
    """One engine in one process, for one measurement."""

    engine: str
    urls: list[str]
    quick: bool

    async def fresh(self, number: int = 0) -> Engine:
        """The engine on an empty database of its own, opened."""
        engine = load(self.engine)(self.urls[number])
        await engine.setup()
        await engine.open()
        return engine

    @property
    def meter_url(self) -> str | None:
        """Where the server's counters can be read, if there is a server."""
        return self.urls[0] if self.urls[0].startswith("postgresql") else None

    async def cpu_meter(self) -> CpuMeter:
        """What reads the CPU of this process and of the server, if there is one."""
        return await CpuMeter.beside(self.meter_url)


def amount(engine: Engine, kind: Kind, concurrency: int, seconds: float) -> int:
    """How many runs keep this engine busy for about so long, but at least twice around for all its slots."""
    pace = min(engine.pace[kind], 300 * concurrency)
    slots = 2 * concurrency if engine.pace[kind] > 1000 else 0
    return max(int(pace * seconds), slots, LEAST)


async def drain(engine: Engine, kind: Kind, count: int, concurrency: int, recorded: bool = True) -> float:
    """Start `count` runs, then work them off with one worker: the runs per second.

    The clock runs from the first handler's first moment until every run is recorded as finished (or, for
    tables in which looking takes long, until the last handler has ended).
    """
    work = await work_off(engine, kind, count, concurrency)
    return work.rate if recorded else count / ((PROBE.left[-1] - PROBE.entered[0]) / 1e9)


@dataclass(frozen=True)
class Work:
    """What it took to work off a number of runs: their rate, and microseconds of CPU for each."""

    rate: float
    client: float
    server: float | None

    @property
    def cpu(self) -> float:
        """Both together, as far as they are known."""
        return self.client + (self.server or 0)

    def figures(self, level: str = "") -> dict[str, float]:
        """The CPU as figures of a scenario; `level` tells several of one scenario apart."""
        return known_figures(**{cpu_key("client", level): self.client, cpu_key("server", level): self.server})


def cpu_key(side: str, level: str = "") -> str:
    """The name of a figure of CPU."""
    return f"{side}-{level}" if level else side


async def work_off(
    engine: Engine,
    kind: Kind,
    count: int,
    concurrency: int,
    meter: CpuMeter | None = None,
    idle: Callable[[], Awaitable[bool]] | None = None,
) -> Work:
    """Start `count` runs, then work them off with one worker.

    The starting is left out. CPU is taken from before the worker opens until every run is recorded as finished, of
    this process and, with a meter that knows it, of the server.
    """
    PROBE.reset()
    await engine.start_many(kind, count)
    meter = meter or CpuMeter(None)
    before = meter.read()
    async with engine.worker(concurrency):
        await handled(count)
        await until(idle or engine.idle, "the last run to be recorded", pause=0)
        end = perf_counter_ns()
        used = meter.read().since(before)
    return Work(
        rate=count / ((end - PROBE.entered[0]) / 1e9),
        client=used.client_cpu / count * 1e6,
        server=None if used.server_cpu is None else used.server_cpu / count * 1e6,
    )


async def at_once() -> bool:
    """For `work_off`: the last handler's end is the end, on tables in which looking takes long."""
    return True


async def warm(engine: Engine, kind: Kind) -> None:
    """Let caches fill, statements be prepared and lazy imports happen."""
    await drain(engine, kind, 20, 10)


def percentile(values: list[int], share: float) -> float:
    """The value below which this share of the values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
