"""Dag runs on Postgres: what the end of a step means to the others of its dag run, and to the run itself.

Everything here happens under the lock of the dag run's row. Who only releases steps waits for nobody. When a dag run
begins to fail its open steps are waited for; so such a transaction holds no rows but those of these dag runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from msgspec import Struct, field

from ...model.cancelling import goes_on_first
from ...model.graph import Decision, Graph, Settled, summed
from ...model.records import Lane
from ...model.status import COMPLETED, REASON_CANCELLED, SKIPPED

_CAUGHT = "caught:"


class Why(NamedTuple):
    """Why a dag run fails, if not by a step of its own."""

    reason: str | None = None
    error: str | None = None


class Locked(NamedTuple):
    """Dag runs that are locked in this transaction."""

    failing: Mapping[str, bool]
    """Which these are, and whether they fail already."""
    now: int
    """The time by which their steps end: later than the end of any before."""
    free: frozenset[str] = frozenset()
    """Those of them that are in nobody's hands, and neither over nor being undone."""
    late: frozenset[str] = frozenset()
    """Those of them that are past their deadline."""
    paused: frozenset[str] = frozenset()
    """Those of them that an operator holds."""


class Effects(Struct):
    """What was put in line, and who has to hear of it."""

    lanes: set[Lane] = field(default_factory=set)
    ready: set[str] = field(default_factory=set)
    """Dag runs that are to be finished."""
    marked: dict[str, str] = field(default_factory=dict)
    """Steps that are to be cancelled by the worker that holds them."""
    told: bool = False
    """Whether children of cancelled steps are to be cancelled too."""


class _Blocked(Struct):
    """A step that waits for others, and what becomes of it."""

    id: str
    pending: int
    met: int
    decision: Decision | Literal["hold"] = "wait"


NONE_LOCKED = Locked({}, 0)


class Dags:
    """Works on a connection, in a transaction, that it is given."""

    def __init__(self, statements: dict[str, str]) -> None:
        self._sql = statements

    async def lock(self, connection: Any, dag_ids: Iterable[str]) -> Locked:
        """Those that nobody else holds."""
        rows = await connection.fetch(self._sql["lock_dags"], sorted(dag_ids))
        now = max((max(row["now_ms"], (row["released_at"] or 0) + 1) for row in rows), default=0)
        return Locked(
            {str(row["id"]): row["failing"] for row in rows},
            now,
            frozenset(str(row["id"]) for row in rows if row["free"]),
            frozenset(str(row["id"]) for row in rows if row["late"]),
            frozenset(str(row["id"]) for row in rows if row["paused"]),
        )

    async def locked_out(self, connection: Any, dag_ids: Collection[str], locked: Locked) -> set[str]:
        """Those that somebody else holds: not locked, but there."""
        missing = [dag_id for dag_id in dag_ids if dag_id not in locked.failing]
        if not missing:
            return set()
        return {str(row["id"]) for row in await connection.fetch(self._sql["which_exist"], missing)}

    async def settle(self, connection: Any, settled: Sequence[Settled], locked: Locked) -> Effects:
        """Steps were just moved to their ends: count them, and release what waited for them, or let the run fail."""
        settled = [step for step in settled if step.dag_id in locked.failing]
        ended = Counter(step.dag_id for step in settled)
        fails = {step.dag_id: Why() for step in settled if is_fatal(step.outcome)}
        effects = Effects()
        going = [step for step in settled if step.dag_id not in fails and not locked.failing[step.dag_id]]
        blocked = await self._count_down(connection, going, ended)
        if blocked:
            await self._release(connection, blocked, locked, effects)
        await self.close(connection, fails, ended, locked, effects)
        return effects

    async def fail(self, connection: Any, locked: Locked, dag_ids: Iterable[str], why: Why) -> Effects:
        """Let runs fail that are in nobody's hands: whoever finishes them undoes what is to be undone."""
        effects = Effects()
        await self.close(connection, dict.fromkeys(dag_ids, why), Counter(), locked, effects)
        return effects

    async def close(
        self, connection: Any, fails: Mapping[str, Why], ended: Counter[str], locked: Locked, effects: Effects
    ) -> None:
        """Count what has ended; let runs fail, and with them their open steps. Where nothing is left the run stands in
        line."""
        begin = {dag_id: why for dag_id, why in fails.items() if not locked.failing[dag_id]}
        if begin:
            await self._end_open(connection, list(begin), ended, locked.now, effects)
        dags = list({**ended, **begin})
        if not dags:
            return
        whys = [begin.get(dag_id, Why()) for dag_id in dags]
        rows = await connection.fetch(
            self._sql["settle_dags"],
            dags,
            [ended[dag_id] for dag_id in dags],
            [dag_id in begin for dag_id in dags],
            [why.reason for why in whys],
            [why.error for why in whys],
            locked.now,
        )
        effects.ready |= {str(row["id"]) for row in rows if row["ready"]}
        effects.lanes |= {_lane(row) for row in rows if row["ready"]}

    # -- steps that wait for others ----------------------------------------------------------------------------

    async def _count_down(
        self, connection: Any, settled: Sequence[Settled], ended: Counter[str]
    ) -> dict[tuple[str, str], _Blocked]:
        """What waited for these, decided; who is skipped is settled by that, and so on. Nothing is written yet: under
        the lock of the dag run nobody else changes these counts."""
        graphs: dict[str, Graph] = {step.dag_id: step.graph for step in settled}
        known: dict[tuple[str, str], _Blocked | None] = {}
        while sums := summed(settled):
            await self._read_blocked(connection, [place for place in sums if place not in known], known)
            settled = []
            for (dag_id, node), (count, met) in sums.items():
                step = known[dag_id, node]
                if step is None or step.decision != "wait":
                    continue
                step.pending, step.met = step.pending - count, step.met + met
                step.decision = graphs[dag_id].decide(node, step.pending, step.met)
                if step.decision == "skip":
                    ended[dag_id] += 1
                    settled.append(Settled(dag_id, node, SKIPPED, graphs[dag_id]))
        return {place: step for place, step in known.items() if step is not None}

    async def _read_blocked(
        self, connection: Any, places: list[tuple[str, str]], known: dict[tuple[str, str], _Blocked | None]
    ) -> None:
        known.update(dict.fromkeys(places))
        if places:
            for row in await connection.fetch(self._sql["dependents"], *map(list, zip(*places, strict=True))):
                step = _Blocked(row["id"], row["pending"], row["met"])
                known[str(row["dag_id"]), row["node"]] = step

    async def _release(
        self, connection: Any, blocked: Mapping[tuple[str, str], _Blocked], locked: Locked, effects: Effects
    ) -> None:
        steps = blocked.values()
        for (dag_id, _), step in blocked.items():
            if step.decision == "ready" and dag_id in locked.paused:
                step.decision = "hold"
        rows = await connection.fetch(
            self._sql["release_steps"],
            [step.id for step in steps],
            [step.pending for step in steps],
            [step.met for step in steps],
            [step.decision for step in steps],
            locked.now,
        )
        effects.lanes |= {_lane(row) for row in rows if row["ready"]}

    # -- runs that begin to fail -------------------------------------------------------------------------------

    async def _end_open(
        self, connection: Any, dag_ids: list[str], ended: Counter[str], now: int, effects: Effects
    ) -> None:
        ids = await self.lock_open(connection, dag_ids)
        about = await connection.fetch(self._sql["about_to_cancel"], ids)
        first = [row["id"] for row in about if goes_on_first(row["losses"], row["status"], row["waiting_for"])]
        rows = await connection.fetch(self._sql["end_open_steps"], ids, now, first)
        effects.marked |= {str(row["id"]): str(row["worker"]) for row in rows if row["worker"] is not None}
        effects.lanes |= {_lane(row) for row in rows if row["first"]}
        free = [row for row in rows if row["worker"] is None and not row["first"]]
        ended.update(str(row["dag_id"]) for row in free if not row["undoing"])
        effects.lanes |= {_lane(row) for row in free if row["undoing"]}
        cancelled = [row["id"] for row in free if row["reason"] == REASON_CANCELLED]
        if cancelled:
            effects.told = bool(await connection.fetch(self._sql["tell_children"], cancelled))

    async def lock_open(self, connection: Any, dag_ids: list[str]) -> list[Any]:
        """The steps of dag runs, locked in this transaction, that are not settled; waited for."""
        return [row[1] for row in await connection.fetch(self._sql["lock_open_steps"], dag_ids)]


def is_fatal(outcome: str) -> bool:
    """Whether a step that ends like this fails its dag run."""
    return outcome not in (COMPLETED, SKIPPED) and not outcome.startswith(_CAUGHT)


def _lane(row: Any) -> Lane:
    return Lane(row["queue"], row["workflow"], row["priority"])
