"""Declared graphs: steps and edges as plain values, what is wrong with them, what the end of a step means to others.

No I/O: a store asks here what becomes ready and what is skipped, and writes the answer in the transaction that settles
a step.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Literal, NamedTuple

import msgspec
from msgspec import Struct

from ..errors import GraphError

Decision = Literal["wait", "ready", "skip"]

STEP = "step"
APPROVAL = "approval"


class DagStep(Struct, frozen=True, omit_defaults=True):
    """A step of a declared graph."""

    name: str
    after: tuple[str, ...] = ()
    at_least: int | None = None
    """How many of its dependencies have to complete (skipped ones do not count); None: all have to be settled."""
    kind: str = STEP
    conditional: bool = False
    undo: str | None = None
    """The name of the function that undoes the step."""
    catch: dict[str, str] = {}
    """Error type → the step to go to instead of failing."""
    retries: int | None = None
    """None: the step is not called again; a remote one has its retries elsewhere."""
    timeout: float | None = None
    on_timeout: str | None = None
    """For an approval: fail, skip or approve."""


class Settled(NamedTuple):
    """The end of a step: of which run, which step, how, and by which graph the run goes."""

    dag_id: str
    dag_step: str
    outcome: str
    """How the step ended, in the words of ``Settled``."""
    graph: Graph


class DagStepState(NamedTuple):
    """How a step of a dag run came to its end."""

    status: str
    reason: str | None
    begun: bool
    """Whether a worker has ever taken it."""
    undone: bool
    """Whether what it did itself was undone."""

    @property
    def outcome(self) -> str:
        """How the step ended, in the words of ``Settled``."""
        return self.reason if self.reason is not None and self.reason.startswith("caught:") else self.status


class RetriedStep(NamedTuple):
    """A step that a retry of its run opens again."""

    ready: bool
    """Whether it is ready; else it waits for others."""
    pending: int
    met: int


def is_failure(outcome: str) -> bool:
    """Whether a step that ended so fails its run."""
    return outcome not in ("completed", "skipped") and not outcome.startswith("caught:")


class StoredGraph(NamedTuple):
    """What a row holds in place of a graph."""

    graph: Graph | None
    why: str | None = None
    """Why there is none, as the end of a sentence that begins with the graph."""


def read_graph(text: str | None) -> StoredGraph:
    """The graph that was stored as this text. A row may have none any more, and a hand may have damaged it: then it is
    no graph, for workers and for readers."""
    if text is None:
        return StoredGraph(None, "is not stored any more")
    try:
        graph = Graph.from_text(text)
        problems = graph.problems()
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        return StoredGraph(None, f"is damaged: {error}")
    return StoredGraph(None, f"is damaged: {problems[0]}") if problems else StoredGraph(graph)


class Graph:
    """The steps of a dag, checked. Equal graphs have the same version, wherever they were declared."""

    def __init__(self, dag_steps: Iterable[DagStep]) -> None:
        declared = list(dag_steps)
        self.dag_steps: dict[str, DagStep] = {dag_step.name: dag_step for dag_step in declared}
        self._twice = [name for name, count in Counter(dag_step.name for dag_step in declared).items() if count > 1]

    # -- as text -------------------------------------------------------------------------------------------------

    @cached_property
    def text(self) -> str:
        """The graph as it is stored."""
        return msgspec.json.encode(list(self.dag_steps.values())).decode()

    @cached_property
    def version(self) -> str:
        """A hash of what the graph holds."""
        return hashlib.blake2b(self.text.encode(), digest_size=8).hexdigest()

    @classmethod
    def from_text(cls, text: str) -> Graph:
        """The graph that was stored as this text."""
        return cls(msgspec.json.decode(text, type=list[DagStep]))

    # -- shape ---------------------------------------------------------------------------------------------------

    def dependencies(self, name: str) -> tuple[str, ...]:
        """What a step waits for: the steps it comes after, and those whose errors lead to it."""
        return (*self.dag_steps[name].after, *self._catchers.get(name, ()))

    @cached_property
    def _catchers(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for dag_step in self.dag_steps.values():
            for target in dict.fromkeys(dag_step.catch.values()):
                if target in self.dag_steps and dag_step.name not in self._after[target]:
                    found.setdefault(target, []).append(dag_step.name)
        return found

    @cached_property
    def _after(self) -> dict[str, frozenset[str]]:
        """The steps that each step comes after, for quick answers: there may be thousands before a join."""
        return {name: frozenset(dag_step.after) for name, dag_step in self.dag_steps.items()}

    @cached_property
    def dependents(self) -> dict[str, list[str]]:
        """Which steps wait for a step."""
        found: dict[str, list[str]] = {name: [] for name in self.dag_steps}
        for name in self.dag_steps:
            for before in self.dependencies(name):
                if before in found:
                    found[before].append(name)
        return found

    @cached_property
    def order(self) -> list[str]:
        """The steps, each after those it depends on; in the order of declaration where the graph leaves it open. Those
        that wait for each other in a circle are not among them."""
        left = {name: len(self._others(name)) for name in self.dag_steps}
        ready = deque(name for name, count in left.items() if count == 0)
        order: list[str] = []
        while ready:
            name = ready.popleft()
            order.append(name)
            for after in self.dependents[name]:
                left[after] -= 1
                if left[after] == 0:
                    ready.append(after)
        return order

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Step → its number in that order, counted from 1: the position that its undo is recorded at."""
        return {name: number for number, name in enumerate(self.order, 1)}

    def ancestors(self, name: str) -> set[str]:
        """Everything a step depends on, directly or not."""
        found: set[str] = set()
        look = deque(self.dependencies(name))
        while look:
            before = look.popleft()
            if before not in found:
                found.add(before)
                look.extend(self.dependencies(before))
        return found

    # -- what is wrong with it ---------------------------------------------------------------------------------

    def problems(self) -> list[str]:
        """Everything that is wrong, by name, all at once."""
        found = [f"there are two steps named {name!r}" for name in self._twice]
        found += [problem for dag_step in self.dag_steps.values() for problem in self._problems_of(dag_step)]
        if not self.dag_steps:
            found.append("it has no steps")
        cycle = self._cycle()
        if cycle is not None:
            found.append(f"the steps wait for each other in a circle: {' → '.join(cycle)}")
        return found

    def _problems_of(self, dag_step: DagStep) -> Iterable[str]:
        for before in dag_step.after:
            if before not in self.dag_steps:
                yield f"step {dag_step.name!r} comes after {before!r}, which does not exist"
            if before == dag_step.name:
                yield f"step {dag_step.name!r} comes after itself"
        if len(set(dag_step.after)) < len(dag_step.after):
            yield f"step {dag_step.name!r} names a dependency twice"
        for error, target in dag_step.catch.items():
            if target not in self.dag_steps:
                yield f"step {dag_step.name!r} catches {error} with step {target!r}, which does not exist"
            if target == dag_step.name:
                yield f"step {dag_step.name!r} catches {error} with itself"
        count = len(self.dependencies(dag_step.name))
        if dag_step.at_least is not None and count == 0:
            yield f"step {dag_step.name!r} says how many dependencies it waits for (join or at_least), but has none"
        elif dag_step.at_least is not None and not 1 <= dag_step.at_least <= count:
            said = f"at_least of step {dag_step.name!r} is {dag_step.at_least}"
            yield f"{said}, but the number of its dependencies is {count}"

    def _others(self, name: str) -> list[str]:
        """What a step waits for, but for what does not exist and for itself: these are problems of their own."""
        return [before for before in self.dependencies(name) if before in self.dag_steps and before != name]

    def _cycle(self) -> list[str] | None:
        """One circle among the steps, if there is any."""
        reached = set(self.order)
        left = [name for name in self.dag_steps if name not in reached]
        if not left:
            return None
        path: dict[str, int] = {left[0]: 0}
        last = left[0]
        while True:
            before = next(b for b in self._others(last) if b not in reached)
            if before in path:
                return [before, *reversed(list(path)[path[before] :])]
            path[before] = len(path)
            last = before

    def check(self, name: str) -> Graph:
        """Itself, or a GraphError that lists all problems."""
        problems = self.problems()
        if problems:
            raise GraphError(name, problems)
        return self

    # -- deciding --------------------------------------------------------------------------------------------------

    def effects(self, name: str, outcome: str) -> Iterable[tuple[str, int]]:
        """What the end of a step means to those that wait for it: (step, 1 if it counts as completed there)."""
        for after in self.dependents.get(name, ()):
            yield after, int(self._counts(name, outcome, after))

    def _counts(self, name: str, outcome: str, after: str) -> bool:
        """Whether a step that ended so counts as completed to one that waits for it."""
        caught = outcome.removeprefix("caught:") if outcome.startswith("caught:") else None
        by_error = name not in self._after[after]
        return after == caught if by_error or caught is not None else outcome == "completed"

    def decide(self, name: str, pending: int, met: int) -> Decision:
        """Whether a step that still waits for ``pending`` dependencies, and saw ``met`` of them complete, begins."""
        wanted = self.dag_steps[name].at_least
        if wanted is None:
            return "wait" if pending > 0 else "ready" if met > 0 else "skip"
        if met >= wanted:
            return "ready"
        return "skip" if met + pending < wanted else "wait"

    def reopened(self, stood: Mapping[str, DagStepState]) -> dict[str, RetriedStep] | None:
        """What a retry of an ended run opens again: the steps that failed or were cancelled, and those that never began
        because of it, counted again. What was completed, caught, or skipped for a reason of its own stays. None: what
        one of them did was undone, and so it cannot go on."""
        found: dict[str, RetriedStep] = {}
        for name in self.order:
            step, before = stood[name], self.dependencies(name)
            pending = sum(other in found for other in before)
            met = sum(self._counts(other, stood[other].outcome, name) for other in before if other not in found)
            if is_failure(step.outcome):
                if step.undone:
                    return None
                found[name] = RetriedStep(True, pending, met)
            elif step.status == "skipped" and not step.begun:
                goes = self.decide(name, pending, met) if before else "ready"
                if goes != "skip":
                    found[name] = RetriedStep(goes == "ready", pending, met)
        return found


def summed(settled: Iterable[Settled]) -> dict[tuple[str, str], tuple[int, int]]:
    """(dag, step) → (how many dependencies were settled, how many of them completed), summed over a batch: two finished
    dependencies of one step in one statement would otherwise be subtracted once."""
    sums: dict[tuple[str, str], tuple[int, int]] = {}
    for dag_id, dag_step, outcome, graph in settled:
        for after, met in graph.effects(dag_step, outcome):
            count, completed = sums.get((dag_id, after), (0, 0))
            sums[dag_id, after] = (count + 1, completed + met)
    return sums


def mermaid(graph: Graph, states: Mapping[str, str] | None = None) -> str:
    """The graph in Mermaid's words, for documents."""
    ids = {name: f"s{number}" for number, name in enumerate(graph.dag_steps)}
    lines = ["flowchart TD"]
    for name, dag_step in graph.dag_steps.items():
        parts = [name.replace('"', "'"), *_join(graph, dag_step)]
        label = "<br/>".join([*parts, states[name]] if states and name in states else parts)
        left, right = ("{{", "}}") if dag_step.kind == APPROVAL else ("[", "]")
        lines.append(f'    {ids[name]}{left}"{label}"{right}')
    for name, dag_step in graph.dag_steps.items():
        lines += [f"    {ids[before]} --> {ids[name]}" for before in dag_step.after if before in ids]
        lines += [
            f"    {ids[name]} -. {error} .-> {ids[target]}" for error, target in dag_step.catch.items() if target in ids
        ]
    return "\n".join(lines)


def _join(graph: Graph, dag_step: DagStep) -> list[str]:
    """How many of its dependencies have to complete, if that is said."""
    if dag_step.at_least is None:
        return []
    number = "any" if dag_step.at_least == 1 else f"at least {dag_step.at_least}"
    return [f"{number} of {len(graph.dependencies(dag_step.name))}"]
