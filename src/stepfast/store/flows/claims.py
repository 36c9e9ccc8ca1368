"""Claims: a worker takes runs, and the histories that come along.

What is chosen is locked, so that it is still so when it is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from ...model.ids import new_seed
from ...model.records import Claimed, Lane, StepRecord, Tries
from ...model.rows import DagOutputs
from ...model.transitions.claim import first_records
from ...settings import SUSPECT_LOSSES, Settings
from ..answers import NOTHING
from .base import Flow, Rows, ask, put


class Pick(NamedTuple):
    """A run that is to be taken, locked in this transaction."""

    place: int
    id: str
    row: Any
    """By what the row is found."""
    last_version: str
    version: str
    now_ms: int
    """When it was read."""


class LastTokens:
    """The token of each worker's last claim; the same again means that its reply may have been lost."""

    _MOST = 100
    """Workers of one application whose last claims are remembered."""

    def __init__(self) -> None:
        self._tokens: dict[str, int] = {}

    def is_repeated(self, worker: str, token: int) -> bool:
        """Whether it is the last one, asked again; from now on it is. An application may have had thousands of workers,
        one after the other: of workers that claimed long ago nothing is kept."""
        repeated = self._tokens.pop(worker, None) == token
        self._tokens[worker] = token
        if len(self._tokens) > self._MOST:
            del self._tokens[next(iter(self._tokens))]
        return repeated


def claim(
    worker: str, token: int, lanes: Sequence[tuple[Lane, int]], versions: Mapping[str, str], limit: int, again: bool,
    settings: Settings, remembered: Mapping[str, int], together: bool = False,
) -> Flow[list[Claimed]]:  # fmt: skip
    """Ready runs of these lanes, or (``again``) what the same token took before. Of each lane the first runs are read,
    which are locked; or all ``together`` are, and only what is taken is locked."""
    taken = (yield from claimed(worker, token)) if again else []
    if not taken:
        of_level = _first_together if together else _first_of_each
        picked = yield from _first(of_level, lanes, versions, limit, settings.claim_bytes)
        taken = yield from _take(worker, token, picked)
    return (yield from with_history(worker, taken, remembered, settings))


def claim_suspects(
    worker: str, token: int, versions: Mapping[str, str], queues: Sequence[str] | None, room: Sequence[int],
    again: bool, settings: Settings,
) -> Flow[list[Claimed]]:  # fmt: skip
    """A group of runs that workers have died with, or what the same token took before."""
    taken = (yield from claimed(worker, token)) if again else []
    if not taken:
        picked = yield from _first_suspects(versions, queues, room, settings.claim_bytes)
        taken = yield from _take(worker, token, picked)
    return (yield from with_history(worker, taken, NOTHING, settings))


def claimed(worker: str, token: int) -> Flow[list[Claimed]]:
    """What a token took: this one, or an earlier one whose reply was lost on the way."""
    return read_claimed((yield from ask("claimed", worker, token)))


def read_claimed(rows: Iterable[Any]) -> list[Claimed]:
    """Runs by the columns of the question of this name, in the order in which they are to be executed."""
    taken = [Claimed(*row) for row in rows]
    for run in taken:
        run.undoing, run.failing = bool(run.undoing), bool(run.failing)
    return in_order(taken)


def in_order(taken: list[Claimed]) -> list[Claimed]:
    """Runs in the order in which they are to be executed."""
    return sorted(taken, key=lambda run: (-run.priority, run.place))


# -- choosing ----------------------------------------------------------------------------------------------


Marked = Iterable[tuple[Lane, int]]
"""Lanes, each with the place from which it is read."""
_SPARE = 4
"""So many times as many runs are looked up as are wanted: other workers may be taking the first of them."""


def _first(
    of_level: Callable[[Marked, int], Flow[list[Any]]], lanes: Sequence[tuple[Lane, int]], versions: Mapping[str, str],
    limit: int, most_bytes: int,
) -> Flow[list[Pick]]:  # fmt: skip
    """The first runs over all lanes: by priority, then by age. No more of them than their inputs are worth taking at
    once; one is always taken."""
    picked: list[Pick] = []
    size, ordered = 0, sorted(lanes, key=lambda lane: -lane[0].priority)
    for _, level in groupby(ordered, key=lambda lane: lane[0].priority):
        rows = yield from of_level(level, limit)
        found = [
            (Pick(place, run_id, row, last, versions[workflow], now), size_)
            for place, run_id, row, last, size_, now, workflow in rows
        ]
        found.sort(key=lambda each: each[0].place)
        for pick, bytes_ in found[:limit]:
            if size >= most_bytes:
                return picked
            size += bytes_
            picked.append(pick)
        limit -= len(found)
        if limit <= 0:
            break
    return picked


def _first_of_each(lanes: Marked, limit: int) -> Flow[list[Any]]:
    found = []
    for (queue, workflow, priority), mark in lanes:
        rows = yield from ask("ready", queue, workflow, priority, mark, limit)
        found += [(*row, workflow) for row in rows]
    return found


def _first_together(lanes: Marked, limit: int) -> Flow[list[Any]]:
    rows = yield from ask("front", Rows((*lane, mark) for lane, mark in lanes), _SPARE * limit)
    first = Rows((run_id,) for _, run_id in sorted(rows)[: _SPARE * limit])
    return (yield from ask("ready_of", first, limit)) if first else []


def _first_suspects(
    versions: Mapping[str, str], queues: Sequence[str] | None, room: Sequence[int], most_bytes: int
) -> Flow[list[Pick]]:
    """Those with the fewest losses, as many as there is room for."""
    served = None if queues is None else list(queues)
    rows = yield from ask("suspects", list(versions), served, max(room))
    picked: list[Pick] = []
    size = 0
    for losses, workflow, place, run_id, row, last, bytes_, now in rows:
        limit = room[min(rows[0][0] - SUSPECT_LOSSES, len(room) - 1)]
        if losses > rows[0][0] or len(picked) == limit or size >= most_bytes:
            break
        size += bytes_
        picked.append(Pick(place, run_id, row, last, versions[workflow], now))
    return picked


# -- taking ------------------------------------------------------------------------------------------------


def _take(worker: str, token: int, picked: list[Pick]) -> Flow[list[Claimed]]:
    if not picked:
        return []
    rows = [(pick.row, worker, token, pick.version, picked[0].now_ms) for pick in picked]
    yield from put("log_claims", rows)
    yield from put("take", rows)
    before = {pick.id: pick for pick in picked}
    taken = yield from claimed(worker, token)
    for run in taken:
        if run.id in before:
            run.place, run.last_version = before[run.id].place, before[run.id].last_version
    return in_order(taken)


# -- history -----------------------------------------------------------------------------------------------


def with_history(
    worker: str, runs: list[Claimed], remembered: Mapping[str, int], settings: Settings
) -> Flow[list[Claimed]]:
    """Runs with their first records and the failed tries of their present attempts; one that is claimed for the first
    time has none. Which runs the worker remembers is asked once: it may forget them while this waits, and nothing else
    tells an unread history from an empty one."""
    yield from give_seeds(worker, runs)
    replayed = {run.id: run for run in runs if run.claim > 1}
    if not replayed:
        return runs
    wanted = [run.id for run in replayed.values() if remembered.get(run.id) != run.claim - 1]
    for run in replayed.values():
        run.complete = run.id in wanted
    yield from _bring_records(replayed, wanted, settings.history_records, settings.history_bytes)
    attempts = Rows((run.id, run.attempt) for run in replayed.values())
    for run_id, branch, position, failures, due_at in (yield from ask("history_tries", attempts)):
        replayed[str(run_id)].tries[branch, position] = Tries(failures, due_at or 0)
    return runs


def _bring_records(runs: Mapping[str, Claimed], wanted: Sequence[str], most: int, most_bytes: int) -> Flow[None]:
    if not wanted:
        return
    rows = yield from ask("history", Rows((run_id,) for run_id in wanted), most + 1, most_bytes)
    for run_id, its in groupby(rows, itemgetter(0)):
        run = runs[str(run_id)]
        run.records, run.complete = first_records((StepRecord(*row[1:]) for row in its), most, most_bytes)


def give_seeds(worker: str, runs: Sequence[Claimed]) -> Flow[None]:
    """Runs that were started by SQL on a server without a strong source of chance have no secret yet."""
    bare = {run.id: run for run in runs if not run.seed}
    if bare:
        yield from put("give_seeds", [(run_id, new_seed(), worker) for run_id in bare])
        for run_id, seed in (yield from ask("seeds", list(bare))):
            bare[str(run_id)].seed = seed


def dag_outputs(wanted: Sequence[tuple[str, int]]) -> Flow[dict[str, DagOutputs]]:
    """The inputs of dag runs, and the outputs of their steps that were completed at a time or after. Read by workers
    when they execute a step."""
    since: dict[str, int] = {}
    for dag_id, time in wanted:
        since[dag_id] = min(time, since.get(dag_id, time))
    if not since:
        return {}
    rows = yield from ask("dag_inputs", list(since))
    found = {str(row[0]): DagOutputs(row[1], row[2], []) for row in rows}
    for row in (yield from ask("dag_outputs", Rows(since.items()))):
        if str(row[0]) in found:
            found[str(row[0])].outputs.append((row[1], row[2], row[3], row[4]))
    return found
