"""Reading and writing where runs stand, as part of a flow."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from ...model.run_state import Standing, written
from ...model.stored import read_json
from ...model.transitions.operator import Traces
from .requests import Flow, ask, put


class LockedRuns(NamedTuple):
    """Runs as they stand, locked in this transaction, and the database's time."""

    runs: dict[str, Standing]
    now: int


def found(rows: Iterable[Any]) -> LockedRuns:
    """Rows of (time, standing)."""
    now, runs = 0, dict[str, Standing]()
    for row in rows:
        now = row[0]
        runs[row[1]] = Standing(*row[1:])
    return LockedRuns(runs, now)


def read(name: str, *arguments: Any) -> Flow[LockedRuns]:
    """The runs that a question names."""
    return found((yield from ask(name, *arguments)))


def lock_run(run_id: str) -> Flow[tuple[Standing | None, int]]:
    """One run, waited for."""
    runs, now = yield from read("lock_runs", [run_id])
    return runs.get(run_id), now


def lock_free(ids: Iterable[str]) -> Flow[LockedRuns]:
    """The runs, of those named, that nobody else holds locked; they are locked then."""
    wanted = sorted(ids)
    return (yield from read("lock_free", wanted)) if wanted else LockedRuns({}, 0)


def change(runs: Sequence[Standing]) -> Flow[None]:
    """Write what was decided."""
    yield from put("change", [written(run) for run in runs])


def traces_of(ids: Collection[str]) -> Flow[dict[str, Traces]]:
    """What other rows tell of runs that are about to be cancelled."""
    if not ids:
        return {}
    rows = yield from ask("traces", list(ids))
    return {row[0]: Traces(bool(row[1]), bool(row[2]), row[3], row[4]) for row in rows}


def forget_steps(addresses: Sequence[tuple[str, str, int]]) -> Flow[None]:
    """Records that the next attempt is to make anew; signals that they took go back into the mailbox."""
    yield from put("untake", addresses)
    yield from put("forget", addresses)


def forgotten(run: Standing) -> list[tuple[str, str, int]]:
    """The records that a retry of the run is to make anew."""
    addresses = read_json(run.forget, list[tuple[str, int]], [])
    return [(run.id, branch, position) for branch, position in addresses]
