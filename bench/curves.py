"""Curves beside raw SQL: `python -m bench --curves FOLDER`. How speed and cost change with one quantity.

Every point is taken in a process of its own on an empty database, the engines in turns. The folder gets `curves.json`
with every take, and a picture of each curve (`charts.py`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

from bench.charts import Axes, Line, chart
from bench.probe import PROBE
from bench.report import machine
from bench.runner import ChildFailed, measure_in_child
from bench.scenarios.base import Figures
from bench.servers import Servers
from bench.subject import Subject, Work, amount, at_once, percentile, warm, work_off
from bench.waiting import handled

ENGINES = {"stepfast": "Stepfast", "raw_coalesced": "raw SQL"}
COST = {"client": "client", "server": "Postgres"}
LATENCY = {"p50": "p50", "p99": "p99"}
STEPS_OF_A_POINT = 15_000
TASKS_OF_A_POINT = 10_000
LONGEST = 3600.0
"""Seconds for one point: filling the tables takes most of it."""


@dataclass(frozen=True)
class Curve:
    """How something changes with one quantity."""

    title: str
    quantity: str
    unit: str
    points: tuple[int, ...]
    more: tuple[int, ...]
    """What a full run adds."""
    lines: dict[str, str]
    """The figures that are drawn, with what they are called."""
    take: Callable[[Subject, int], Awaitable[Figures]]
    from_zero: bool = True
    """Whether the upright axis is even and begins at zero; else both are logarithmic."""


async def _at_once(subject: Subject, number: int) -> Figures:
    engine = await subject.fresh()
    await warm(engine, "steps")
    count = amount(engine, "steps", number, 0.5)
    work = await work_off(engine, "steps", count, number, await subject.cpu_meter())
    await engine.close()
    return {"rate": work.rate, **work.figures()}


async def _steps(subject: Subject, number: int) -> Figures:
    PROBE.steps = number
    return _each(await _worked(subject, max(50, STEPS_OF_A_POINT // number)), number)


async def _payload(subject: Subject, number: int) -> Figures:
    PROBE.payload = "x" * number
    return _each(await _worked(subject, 2_000 if number <= 10_000 else 300), PROBE.steps)


async def _worked(subject: Subject, count: int) -> Work:
    engine = await subject.fresh()
    await warm(engine, "steps")
    work = await work_off(engine, "steps", count, min(count, 100), await subject.cpu_meter())
    await engine.close()
    return work


def _each(work: Work, steps: int) -> Figures:
    return {"rate": work.rate * steps, **{name: value / steps for name, value in work.figures().items()}}


async def _queued(subject: Subject, number: int) -> Figures:
    engine = await subject.fresh()
    await warm(engine, "noop")
    await engine.start_many("noop", number)
    PROBE.reset()
    meter = await subject.cpu_meter()
    before = meter.read()
    async with engine.worker(500):
        await handled(min(number, TASKS_OF_A_POINT))
        used, count = meter.read().since(before), len(PROBE.left)
    await engine.close()
    server = None if used.server_cpu is None else used.server_cpu / count * 1e6
    return {"rate": count / used.seconds, **Work(0, used.client_cpu / count * 1e6, server).figures()}


async def _kept(subject: Subject, number: int) -> Figures:
    engine = await subject.fresh()
    if number:
        await engine.seed(number)
    await warm(engine, "steps")
    work = await work_off(engine, "steps", 4_000, 500, await subject.cpu_meter(), at_once)
    await engine.close()
    return {"rate": work.rate, **work.figures()}


async def _clients(subject: Subject, number: int) -> Figures:
    """Each client starts a workflow, waits for its result, and starts the next."""
    engine = await subject.fresh()
    await warm(engine, "steps")
    took: list[int] = []

    async def client(rounds: int) -> None:
        for _ in range(rounds):
            began = perf_counter()
            await engine.finish(await engine.start("steps", 0))
            took.append(int((perf_counter() - began) * 1e6))

    async with engine.worker(200):
        await asyncio.gather(*(client(3) for _ in range(number)))
        took.clear()
        await asyncio.gather(*(client(max(10, 200 // number)) for _ in range(number)))
    await engine.close()
    return {"p50": percentile(took, 0.5) / 1000, "p99": percentile(took, 0.99) / 1000}


CURVES = {
    "at-once": Curve(
        "5-step workflows by the number at once", "workflows at once", "workflows/s",
        (1, 3, 10, 30, 100, 300, 500, 1000, 2000), (), {"rate": ""}, _at_once, from_zero=False,
    ),
    "at-once-cost": Curve(
        "What a 5-step workflow costs", "workflows at once", "µs of CPU",
        (10, 30, 100, 300, 500, 1000, 2000), (), COST, _at_once,
    ),
    "steps": Curve(
        "What a step costs, by the steps of a workflow", "steps", "µs of CPU a step",
        (1, 3, 10, 30, 100, 300, 1000), (), COST, _steps,
    ),
    "payload": Curve(
        "What a step costs, by its argument and result", "bytes each", "µs of CPU a step",
        (100, 1_000, 10_000, 100_000), (), COST, _payload, from_zero=False,
    ),
    "queued": Curve(
        "What a task costs, by the tasks in the queue", "queued tasks", "µs of CPU a task",
        (10_000, 30_000, 100_000), (300_000, 1_000_000), COST, _queued,
    ),
    "kept": Curve(
        "What a 5-step workflow costs, by finished runs kept", "finished runs", "µs of CPU",
        (1_000, 10_000, 100_000), (1_000_000, 10_000_000), COST, _kept,
    ),
    "clients": Curve(
        "From the start of a 5-step workflow to its result", "clients, one workflow each", "ms",
        (1, 3, 10, 30, 100), (), LATENCY, _clients, from_zero=False,
    ),
}  # fmt: skip

Takes = dict[str, dict[str, list[Figures]]]
"""Engine → point → takes."""


async def take_point(curve: str, engine: str, url: str, point: int) -> Figures:
    """One take of one point, in a process of its own."""
    return await CURVES[curve].take(Subject(engine, [url], quick=False), point)


def measure(folder: Path, full: bool, names: Iterable[str], repeats: int, say: Callable[[str], None]) -> None:
    """Take the curves and draw them."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "curves.json"
    known = json.loads(file.read_text()) if file.exists() else {"curves": {}}
    with Servers() as servers:
        known["machine"] = machine(servers.version())
        for name in names or CURVES:
            known["curves"][name] = _take(servers, name, full, repeats, say)
            file.write_text(json.dumps(known, indent=1) + "\n")
            (folder / f"{name}.svg").write_text(draw(CURVES[name], known["curves"][name]))


def _take(servers: Servers, name: str, full: bool, repeats: int, say: Callable[[str], None]) -> Takes:
    curve, takes = CURVES[name], Takes()
    points = curve.points + (curve.more if full else ())
    for number in range(repeats):
        for point in points:
            for engine in list(ENGINES)[:: -1 if number % 2 else 1]:
                url = servers.empty(engine)
                order = {"role": "curve", "curve": name, "engine": engine, "url": url, "point": point}
                try:
                    found = measure_in_child(json.dumps(order), LONGEST)
                except ChildFailed as error:
                    say(f"{name}, {point}: {engine} failed: {error}")
                else:
                    takes.setdefault(engine, {}).setdefault(str(point), []).append(found)
                    told = ", ".join(f"{figure} {value:.3g}" for figure, value in found.items())
                    say(f"{name}, {point}: {engine} {told}")
                finally:
                    servers.discard(url)
    return takes


def draw(curve: Curve, takes: Takes) -> str:
    """The picture of a curve: medians, with the spread of the takes."""
    lines = []
    for engine, points in takes.items():
        for number, (figure, called) in enumerate(curve.lines.items()):
            found = [
                (float(point), sorted(take[figure] for take in of_point))
                for point, of_point in points.items()
                if all(figure in take for take in of_point)
            ]
            spots = [(x, median(values), values[0], values[-1]) for x, values in found]
            lines.append(Line(f"{ENGINES[engine]} {called}".strip(), engine == "stepfast", bool(number), spots))
    return chart(curve.title, Axes(curve.quantity, curve.unit, curve.from_zero), lines)
