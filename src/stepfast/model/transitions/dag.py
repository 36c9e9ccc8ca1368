"""What the end of a dag step means to the steps after it, and to its dag run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from msgspec.structs import replace

from .. import status
from ..graph import Decision, Graph, Settled, is_failure, summed
from ..run_state import RunState, place_at
from ..stored import after, more

Name = tuple[str, str]
"""A dag run, and a step of it."""


class Why(NamedTuple):
    """Why a dag run fails, if not by a step of its own."""

    reason: str | None = None
    error: str | None = None


BY_A_STEP = Why()


def fallen(settled: Iterable[Settled]) -> set[str]:
    """The dag runs that fail by one of these ends."""
    return {end.dag_id for end in settled if is_failure(end.outcome)}


def settled_at(dag: RunState, now: int) -> int:
    """The time at which the next steps of a dag run end: later than any before. Who became ready by those does not see
    what comes of these."""
    return now if dag.ready_at is None else max(now, after(dag.ready_at, 1))


class Countdown:
    """What waits for steps that have ended, decided; who is skipped by that is settled, too, and so on.

    While there are ends that are not counted yet (``unfinished``) it says which standings it has to know (``missing``),
    is told (``learn``), and counts (``count``)."""

    def __init__(self, settled: Sequence[Settled]) -> None:
        self._graphs: dict[str, Graph] = {end.dag_id: end.graph for end in settled}
        self._known: dict[Name, RunState | None] = {}
        self._went: dict[Name, Decision] = {}
        self._sums = summed(settled)
        self.skipped: Counter[str] = Counter()
        """How many steps of each dag run will not be needed."""

    @property
    def unfinished(self) -> bool:
        """Whether there is another round."""
        return bool(self._sums)

    @property
    def missing(self) -> list[Name]:
        """Steps whose standing is needed for the next round."""
        return [name for name in self._sums if name not in self._known]

    def learn(self, names: Iterable[Name], found: Iterable[RunState]) -> None:
        """What was missing. Steps that wait no more began without the rest of their dependencies."""
        self._known.update(dict.fromkeys(names))
        for step in found:
            if step.blocked and step.dag_id is not None and step.dag_step is not None:
                self._known[step.dag_id, step.dag_step] = step

    def count(self) -> None:
        """Count the ends of one round."""
        skipped = []
        for (dag_id, dag_step), (count, met) in self._sums.items():
            step = self._known[dag_id, dag_step]
            if step is None or self._went.get((dag_id, dag_step), "wait") != "wait":
                continue
            step.pending, step.met = more(step.pending, -count), more(step.met, met)
            goes = self._went[dag_id, dag_step] = self._graphs[dag_id].decide(dag_step, step.pending, step.met)
            if goes == "skip":
                self.skipped[dag_id] += 1
                skipped.append(Settled(dag_id, dag_step, status.SKIPPED, self._graphs[dag_id]))
        self._sums = summed(skipped)

    def moved(self, dags: Mapping[str, RunState], now: int) -> list[RunState]:
        """The standings of all that were counted."""
        found = []
        for number, ((dag_id, dag_step), goes) in enumerate(self._went.items(), 1):
            step, dag = self._known[dag_id, dag_step], dags[dag_id]
            assert step is not None
            paused = goes == "ready" and dag.status == status.PAUSED
            found.append(let_step(step, "pause" if paused else goes, settled_at(dag, now), number))
        return found


def let_step(step: RunState, goes: Decision | Literal["pause"], now: int, number: int = 0) -> RunState:
    """A step for which dependencies were settled waits on, is ready, is paused with its run, or is not needed."""
    if goes == "wait":
        return step
    if goes == "skip":
        return replace(step, status=status.SKIPPED, waiting_for=None, visible_at=None, completed_at=now)
    return replace(
        step,
        status=status.QUEUED if goes == "ready" else status.PAUSED,
        paused_at=now if goes == "pause" else None,
        waiting_for=None,
        place=place_at(now, number) if goes == "ready" else None,
        visible_at=step.deadline_at,
        ready_at=now,
    )


def settle_dag(dag: RunState, settled: int, why: Why | None, now: int, number: int = 0) -> RunState:
    """Steps of a dag run are settled, and perhaps it begins to fail (``why``). After its last step the run is ready
    to be finished, unless an operator has paused it. Once it fails it is not paused any more, and its deadline has
    nothing left to do."""
    fails = why is not None and not dag.failing
    pending = more(dag.pending, -settled)
    finished = pending == 0 and (fails or (settled > 0 and dag.status != status.PAUSED))
    counted = replace(
        dag,
        pending=pending,
        ready_at=now if dag.ready_at is None else max(dag.ready_at, now),
        place=place_at(now, number) if finished and dag.place is None else dag.place,
    )
    if why is None or not fails:
        return counted
    return replace(
        counted,
        failing=True,
        status=status.RUNNING if dag.status == status.PAUSED else dag.status,
        reason=dag.reason if why.reason is None else why.reason,
        error=dag.error if why.error is None else why.error,
        held_due=None,
        paused_at=None,
        waiting_for=None,
        deadline_at=None,
        visible_at=None,
    )
