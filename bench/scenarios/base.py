"""What a scenario is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from bench.subject import Subject, cpu_key

Figures = dict[str, float]

POSTGRES_WORKFLOWS = ("stepfast", "dbos", "absurd", "raw_single", "raw_coalesced")
POSTGRES_JOBS = ("stepfast", "dbos", "absurd", "pgqueuer", "procrastinate", "raw_coalesced")
SQLITE_WORKFLOWS = ("stepfast_sqlite", "dbos_sqlite", "raw_sqlite")
MARIADB_WORKFLOWS = ("stepfast_mariadb", "raw_mariadb")


CPU = "CPU per run"


@dataclass(frozen=True)
class Figure:
    """One column: what it is called, its unit, whether more is better, and the table it is in."""

    title: str
    unit: str = "/s"
    more_is_better: bool = True
    table: str = ""
    """Empty: the first table of the scenario."""


def cpu_figures(level: str = "", title: str = "") -> dict[str, Figure]:
    """The columns of `Work.figures`."""
    comma = f"{title}, " if title else ""
    return {
        cpu_key(side, level): Figure(f"{comma}{side}", "µs", more_is_better=False, table=CPU)
        for side in ("client", "server")
    }


@dataclass(frozen=True)
class Scenario:
    """One measure: who takes part, what comes out, and how it is taken (in the engine's own process)."""

    name: str
    title: str
    figures: dict[str, Figure]
    engines: tuple[str, ...]
    measure: Callable[[Subject], Awaitable[Figures]]
    quick_engines: tuple[str, ...] | None = None
    databases: int = 1
    timeout: float = 600
    repeats: bool = True
    """Whether a full run takes it three times; long ones watch a course of time instead."""
    quick_timeout: float = 60
    in_quick: bool = True
    """Whether a quick run takes it when it is not asked for by name."""
