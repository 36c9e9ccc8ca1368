"""What Stepfast aims for, as ratios of figures taken in the same run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Values = dict[str, dict[str, dict[str, float]]]  # scenario → engine → figure


@dataclass(frozen=True)
class Goal:
    """One aim: a figure computed from the results, and its limit."""

    title: str
    limit: float
    figure: Callable[[Values], float]
    at_least: bool = True

    @property
    def wanted(self) -> str:
        """The limit, for people."""
        return f"{'≥' if self.at_least else '≤'} {self.limit:g}"

    def reached(self, values: Values) -> float | None:
        """The figure, or None where something it needs was not measured."""
        try:
            return self.figure(values)
        except (KeyError, ZeroDivisionError):
            return None

    def holds(self, reached: float) -> bool:
        """Whether it is reached."""
        return reached >= self.limit if self.at_least else reached <= self.limit


def _over(scenario: str, figure: str, other: str, ours: str = "stepfast") -> Callable[[Values], float]:
    return lambda values: values[scenario][ours][figure] / values[scenario][other][figure]


def _cpu_over(scenario: str, side: str, other: str, ours: str = "stepfast") -> Callable[[Values], float]:
    return _over(scenario, f"{side}-c500" if scenario == "steps" else side, other, ours)


def _plain(scenario: str, figure: str, ours: str = "stepfast") -> Callable[[Values], float]:
    return lambda values: values[scenario][ours][figure]


GOALS = (
    Goal("5-step workflows, 500 at once ÷ DBOS", 100, _over("steps", "c500", "dbos")),
    Goal("5-step workflows, 500 at once ÷ Absurd", 20, _over("steps", "c500", "absurd")),
    Goal("5-step workflows, 500 at once ÷ raw SQL coalesced", 0.5, _over("steps", "c500", "raw_coalesced")),
    Goal("its CPU, client ÷ raw SQL coalesced", 2.05, _cpu_over("steps", "client", "raw_coalesced"), at_least=False),
    Goal("its CPU, Postgres ÷ raw SQL coalesced", 1.9, _cpu_over("steps", "server", "raw_coalesced"), at_least=False),
    Goal("plain steps ÷ async ones, 500 at once", 0.66, _over("plain", "c500", "stepfast", "stepfast_plain")),
    Goal("CPU without metrics ÷ with, 5 steps", 0.97, _plain("observed", "steps-cpu", "stepfast_observed")),
    Goal("CPU without metrics ÷ with, noop tasks", 0.95, _plain("observed", "noop-cpu", "stepfast_observed")),
    Goal("CPU without a limit ÷ with one that does not bind", 0.7, _plain("limited", "limited-cpu")),
    Goal("the same with keys", 0.6, _plain("limited", "keys-cpu")),
    Goal("an unlimited queue beside a blocked one, its CPU", 0.95, _plain("limited", "beside-cpu")),
    Goal("items of streams ÷ DBOS", 50, _over("streams", "rate", "dbos")),
    Goal("from send to reader p99, ms", 50, _plain("streams", "p99"), at_least=False),
    Goal("noop tasks ÷ PgQueuer", 1, _over("noop", "rate", "pgqueuer")),
    Goal("noop tasks ÷ raw SQL coalesced", 0.6, _over("noop", "rate", "raw_coalesced")),
    Goal("start → handler p50 ÷ PgQueuer's", 1, _over("latency", "p50", "pgqueuer"), at_least=False),
    Goal("start → handler p99, ms", 15, _plain("latency", "p99"), at_least=False),
    Goal(
        "one run alone ÷ raw SQL one statement per step (time of the steps)",
        1.5,
        _over("alone", "steps", "raw_single"),
        at_least=False,
    ),
    Goal("single starts, 100 callers ÷ DBOS", 10, _over("starts", "single", "dbos")),
    Goal("bulk starts, per second", 50_000, _plain("starts", "bulk")),
    Goal("CPU on empty tables ÷ with 200 000 finished runs, 5 steps", 0.95, _plain("history", "steps-200k-cpu")),
    Goal("CPU on empty tables ÷ with 200 000 finished runs, noop", 0.95, _plain("history", "noop-200k-cpu")),
    Goal("CPU on empty tables ÷ with 2 000 000 finished runs, 5 steps", 0.95, _plain("history", "steps-2M-cpu")),
    Goal("CPU on empty tables ÷ with 2 000 000 finished runs, noop", 0.95, _plain("history", "noop-2M-cpu")),
    Goal("noop while 2 000 000 old runs are removed ÷ while they stay", 0.9, _plain("pruning", "noop")),
    Goal("5 steps while 2 000 000 old runs are removed ÷ while they stay", 0.9, _plain("pruning", "steps")),
    Goal("ten tabs of the console, queries per second", 5, _plain("console", "queries"), at_least=False),
    Goal("noop beside ten tabs of the console ÷ alone", 0.98, _plain("console", "noop")),
    Goal("two worker processes ÷ one (where cores allow)", 1.3, _plain("two_workers", "gain")),
    Goal("memory with 1 000 running runs, MB", 150, _plain("memory", "running"), at_least=False),
    Goal("memory that waiting runs add, MB", 5, _plain("memory", "waiting"), at_least=False),
    Goal("rows of remote steps served ÷ Node worker", 1, _over("remote", "served", "node_worker")),
    Goal("SQLite, 500 at once ÷ raw SQLite", 0.5, _over("sqlite", "c500", "raw_sqlite", "stepfast_sqlite")),
    Goal("SQLite, 500 at once ÷ DBOS on SQLite", 50, _over("sqlite", "c500", "dbos_sqlite", "stepfast_sqlite")),
    Goal("MariaDB, 500 at once ÷ raw MariaDB", 0.5, _over("mariadb", "c500", "raw_mariadb", "stepfast_mariadb")),
    Goal("idle worker, transactions per second", 2, _plain("idle", "transactions"), at_least=False),
    Goal("idle worker, % of a core", 1, _plain("idle", "client"), at_least=False),
)
