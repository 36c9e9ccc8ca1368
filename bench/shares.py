"""Ways of working beside each other in one process, as shares of the first: of its speed, and of its CPU.

A round takes the base, every other way, and the base once more, in an order that turns round. The two takes of the base
are the control: so far apart are takes of the same work here and now.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from statistics import median

from bench.scenarios.base import Figure, Figures
from bench.subject import Work

Way = Callable[[], Awaitable[Work]]
CPU = "CPU of client and server: without ÷ with"
CONTROL = "control"


async def shares(base: Way, others: Mapping[str, Way], rounds: int, control: str = CONTROL) -> Figures:
    """For each way its speed as a share of the base's, and how the base's CPU compares with its own; for the control
    how far apart the base was from itself: 1.05 is five percent, in one direction or the other."""
    ways = {"": base, **others, control: base}
    takes: dict[str, list[Work]] = {name: [] for name in ways}
    for number in range(rounds):
        names = list(ways)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            takes[name].append(await ways[name]())
    bases = takes.pop("")
    figures = Figures()
    for name, found in takes.items():
        told = apart if name == control else median
        figures[name] = told([take.rate / of_base.rate for take, of_base in zip(found, bases, strict=True)])
        figures[cost_key(name)] = told([of_base.cpu / take.cpu for take, of_base in zip(found, bases, strict=True)])
    return figures


def apart(ratios: list[float]) -> float:
    """The median distance from 1, whichever way round."""
    return median(max(ratio, 1 / ratio) for ratio in ratios)


def cost_key(name: str) -> str:
    """The name of the figure of CPU that belongs to one of speed."""
    return f"{name}-cpu"


def share_figures(titles: Mapping[str, str], control: str = CONTROL, said: str = "") -> dict[str, Figure]:
    """The columns of `shares`."""
    titles = {**titles, control: f"{said}the same twice, apart by"}
    speed = {name: Figure(title, "×", more_is_better=name != control) for name, title in titles.items()}
    costs = {
        cost_key(name): Figure(title, "×", more_is_better=name != control, table=CPU) for name, title in titles.items()
    }
    return speed | costs
