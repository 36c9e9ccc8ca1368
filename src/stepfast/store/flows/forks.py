"""Forks and rewinds: a run is executed again from one of its steps, as a new run or as it is."""

from __future__ import annotations

from ...errors import InvalidState
from ...model import status
from ...model.forks import Lean, Point, check_fork, depth, forked_seed, kept, mark_of, rewound_seed
from ...model.records import Lane, NewRun
from ...model.run_state import RunState
from ...model.transitions.operator import retry
from . import questions
from .base import Flow, ask, change, forget_steps, lock_run, put
from .operating import take_names, taken_names
from .starts import insert_runs, leave_keys


def fork(source: str, point: Point, new: NewRun) -> Flow[bool]:
    """Start a run with the records of another up to a step, in one transaction that holds the row of that. False: there
    is no such run. The id of the new run is made by the client, so that a repeated call finds it there."""
    run, _ = yield from lock_run(source)
    if run is None:
        return False
    if (yield from ask("which_exist", [new.id])):
        return True
    records = yield from _records(source)
    stay = kept(records, point, source)
    check_fork(stay, bool(run.undoing), source)
    [(seed,)] = yield from ask("seed", source)
    [(began,)] = yield from ask("began_at", source, point.branch, point.position)
    yield from insert_runs([new])
    mark = mark_of(depth(seed) + 1)
    yield from put("copy_steps", [(source, new.id, each.branch, each.position, mark) for each in stay])
    yield from put("copy_values", [(source, new.id, began)])
    yield from put("set_seed", [(new.id, forked_seed(seed, source), 1)])
    return True


def rewind(run_id: str, point: Point) -> Flow[Lane | None]:
    """Queue a run that has ended again, without the records from a step on; where it is ready. None: there is none."""
    run, now = yield from lock_run(run_id)
    if run is None:
        return None
    _check_rewind(run)
    for holder, name in (yield from taken_names([run])).values():
        raise InvalidState(f"run {run_id} cannot be rewound: run {holder} has its name {name!r} by now")
    records = yield from _records(run_id)
    stay = {each[:2] for each in kept(records, point, run_id)}
    gone = [each for each in records if each[:2] not in stay]
    [(seed,)] = yield from ask("seed", run_id)
    yield from leave_keys([run])
    yield from take_names([run])
    yield from change([retry(run, now)])
    yield from forget_steps([(run_id, each.branch, each.position) for each in gone])
    dropped = [each.callback for each in gone if each.callback is not None]
    yield from put("drop_callbacks", [(callback,) for callback in dropped])
    yield from put("take_mail", [(run_id, callback) for callback in dropped])
    yield from put("remove_progress", [(run_id,)])
    yield from put("set_seed", [(run_id, rewound_seed(seed), 0)])
    yield from put("tell_again", [(run_id,)])
    yield from questions.give_up([run_id])
    return run.lane


def _check_rewind(run: RunState) -> None:
    if not run.ended:
        raise InvalidState(
            f"run {run.id} is {run.status}; only a run that has ended can be rewound. Cancel it first, or fork it"
        )
    if run.undoing:
        raise InvalidState(
            f"run {run.id} was undone and cannot continue from its records; retry(from_start=True) starts a new run"
        )
    if run.reason == status.REASON_CONTINUED:
        raise InvalidState(f"run {run.id} has continued as another, which can be rewound")


def _records(run_id: str) -> Flow[list[Lean]]:
    return [Lean(*row) for row in (yield from ask("lean_steps", run_id))]
