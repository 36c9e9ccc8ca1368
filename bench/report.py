"""Shows the figures: per scenario what each engine reached, and how many times better Stepfast did."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.checkouts import Checkout
from bench.engines import ENGINES
from bench.goals import GOALS
from bench.meter import server_cpu_left_out
from bench.pairs import Pairs
from bench.runner import Outcome
from bench.scenarios.base import Figure

PACKAGES = ("stepfast", "dbos", "absurd-sdk", "pgqueuer", "procrastinate", "asyncpg")
BASES = ("stepfast", "stepfast_sqlite", "stepfast_mariadb")
PAIR_FIGURES = {
    "client": ("client CPU per workflow", "µs"),
    "server": ("server CPU per workflow", "µs"),
    "rate": ("workflows", "/s"),
}


def medians(outcome: Outcome) -> dict[str, dict[str, float]]:
    """Per engine and figure the median of its takes."""
    return {
        engine: {key: median(take[key] for take in takes) for key in takes[0]}
        for engine, takes in outcome.takes.items()
    }


def show(console: Console, outcome: Outcome) -> None:
    """One scenario."""
    values = medians(outcome)
    console.print(f"\n[bold]{outcome.scenario.title}[/bold]", highlight=False)
    for title in dict.fromkeys(figure.table for figure in outcome.scenario.figures.values()):
        figures = {
            key: figure
            for key, figure in outcome.scenario.figures.items()
            if figure.table == title and any(key in of_engine for of_engine in values.values())
        }
        if figures:
            console.print(_table(outcome, values, title, figures))
    of_servers = any(key.startswith("server") for key in outcome.scenario.figures)
    if values and of_servers and (reason := server_cpu_left_out()):
        console.print(f"  server CPU is left out: {reason}", highlight=False)
    for engine, why in outcome.failures.items():
        console.print(f"  [yellow]{ENGINES[engine].title}: {why}[/yellow]", highlight=False)


def _table(outcome: Outcome, values: dict[str, dict[str, float]], title: str, figures: dict[str, Figure]) -> Table:
    base = next((name for name in BASES if name in values), None)
    table = Table(title=title or None, title_justify="left")
    table.add_column("engine")
    for figure in figures.values():
        table.add_column(figure.title, justify="right")
        if base and len(values) > 1:
            table.add_column("Stepfast", justify="right", style="cyan")
    for engine, of_engine in values.items():
        cells = []
        for key, figure in figures.items():
            cells.append(_cell(outcome, engine, key, figure))
            if base and len(values) > 1:
                cells.append(_better(of_engine.get(key), values[base].get(key), figure, engine == base))
        table.add_row(ENGINES[engine].title, *cells)
    return table


def _cell(outcome: Outcome, engine: str, key: str, figure: Figure) -> str:
    takes = [take[key] for take in outcome.takes[engine] if key in take]
    if not takes:
        return "–"
    text = f"{_number(median(takes))} {figure.unit}".rstrip()
    if len(takes) > 1:
        text += f" ({_number(min(takes))}–{_number(max(takes))})"
    return text


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.3g}"


def _better(value: float | None, base: float | None, figure: Figure, is_base: bool) -> str:
    """How many times better the base is than this."""
    if is_base or not value or not base:
        return ""
    ratio = base / value if figure.more_is_better else value / base
    return f"×{ratio:.3g}" if ratio < 100 else f"×{ratio:.0f}"


def show_pairs(console: Console, done: dict[str, Pairs], copies: dict[str, Checkout]) -> None:
    """What two checkouts cost, and whether they differ by more than one differs from itself."""
    console.print(f"\nA: {copies['A'].label}, B: {copies['B'].label}; medians, spreads from lowest to highest")
    for pairs in done.values():
        table = Table(title=f"{pairs.scenario.title}, {len(pairs.takes)} pairs", title_justify="left")
        table.add_column("figure")
        for column in ("A", "B", "B/A", "spread of B/A", "A/A spread"):
            table.add_column(column, justify="right")
        table.add_column("verdict")
        for found in pairs.comparisons():
            title, unit = PAIR_FIGURES[found.figure]
            table.add_row(
                title,
                *(f"{_number(median(takes))} {unit}" for takes in (found.a, found.b)),
                f"{found.ratio:.3f}",
                f"{min(found.ratios):.3f}–{max(found.ratios):.3f}",
                "–".join(f"{limit:.3f}" for limit in found.control),
                found.verdict,
            )
        console.print(table)
        for why in pairs.failures:
            console.print(f"  [yellow]{why}[/yellow]", highlight=False)
    if reason := server_cpu_left_out():
        console.print(f"server CPU is left out: {reason}", highlight=False)


def show_goals(console: Console, outcomes: list[Outcome]) -> None:
    """What was aimed for, and what was reached."""
    values = {outcome.scenario.name: medians(outcome) for outcome in outcomes}
    table = Table()
    for column in ("goal", "wanted", "reached", ""):
        table.add_column(column, justify="left" if column in ("goal", "") else "right")
    for goal in GOALS:
        reached = goal.reached(values)
        if reached is not None:
            verdict = "[green]yes[/green]" if goal.holds(reached) else "[red]no[/red]"
            table.add_row(goal.title, goal.wanted, _number(reached), verdict)
    if table.row_count:
        console.print("\n[bold]goals[/bold]")
        console.print(table)


def machine(postgres: str) -> str:
    """What the figures were taken on."""
    versions = ", ".join(f"{name} {_version(name)}" for name in PACKAGES if _version(name))
    return (
        f"{os.cpu_count()} × {_processor()}, {_memory()}, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, Postgres {postgres} (fsync on)\n{versions}"
    )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _memory() -> str:
    return f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GB"


def as_json(outcomes: list[Outcome], postgres: str, quick: bool) -> dict[str, Any]:
    """Everything, for a machine to read."""
    return {
        "machine": machine(postgres),
        "quick": quick,
        "scenarios": {
            outcome.scenario.name: {"takes": outcome.takes, "failures": outcome.failures} for outcome in outcomes
        },
    }
