"""Starts that are put off while more of the same key come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from ...errors import DatabaseUnavailable
from ...model.ids import new_seed
from ...model.records import Lane, NewRun
from ...model.run_state import RunState
from ...model.transitions.start import Debounce, put_off
from .base import Flow, ask, change, put

_TRIES = 10
"""How often it is begun again, because the run of the key was claimed just when it was looked at."""


class Debounced(NamedTuple):
    """The run that a debounced start stands for."""

    run_id: str
    lane: Lane | None
    """The lane in which the run is ready; None: it waits."""


def start_debounced(run: NewRun, debounce: Debounce) -> Flow[Debounced]:
    """Put the run of the key off, with another input, under its lock; or make one, if there is none that waits. Whether
    a worker has claimed it is seen on its row. Two who make one at the same time: the second waits for the first, and
    puts its run off. (A start that is sent again, because its reply was lost, and meets a run that was claimed
    meanwhile, makes another: as it would if it had come a moment later.)"""
    for _ in range(_TRIES):
        found = yield from ask("lock_debounced", run.shape.workflow, run.key)
        if found:
            return (yield from _put_off(RunState(*found[0][2:]), found[0][0], found[0][1], run, debounce))
        if (yield from ask("start_debounced", *_row(run, debounce))):
            yield from put("tag_runs", [(tag, run.id) for tag in run.shape.tags])
            return Debounced(run.id, None)
        if (yield from ask("which_exist", [run.id])):
            return Debounced(run.id, None)  # by a call whose reply was lost
    raise DatabaseUnavailable(
        "workers claimed the runs of this debounced key at every try to change one; start it again"
    )


def leave_keys(runs: Sequence[RunState]) -> Flow[None]:
    """Runs that ended before anybody had claimed them are to be retried. Their keys were free since then, and others
    may wait under them: what is retried stands by itself, and no start gives it another input."""
    yield from put("leave_debounced", [(run.id,) for run in runs if not run.begun])


def _put_off(row: RunState, first_at: int, now: int, run: NewRun, debounce: Debounce) -> Flow[Debounced]:
    later = put_off(row, first_at, now, debounce, run.shape.expires_ms)
    yield from change([later])
    yield from put("change_input", [(row.id, run.input, run.shape.format)])
    return Debounced(row.id, later.lane if later.ready else None)


def _row(run: NewRun, debounce: Debounce) -> tuple[object, ...]:
    shape = run.shape
    wait = debounce.wait_ms if debounce.max_ms is None else min(debounce.wait_ms, debounce.max_ms)
    tags = msgspec.json.encode(shape.tags).decode() if shape.tags else None
    return (
        run.id, run.input, run.key, shape.workflow, shape.version, shape.queue, shape.priority, wait, shape.expires_ms,
        shape.deadline_ms, shape.max_attempts, shape.timeout_ms, tags, shape.concurrency_key, shape.format, new_seed(),
        run.trace,
    )  # fmt: skip
