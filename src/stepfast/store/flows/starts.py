"""Starts: many rows of few shapes, all or none; and starts that are put off while more of the same key come.

The first state of a run is decided in ``model/transitions/start.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from ...errors import DatabaseUnavailable
from ...model.ids import new_seed
from ...model.queue_config import Bound
from ...model.records import Lane, NewRun, RunShape
from ...model.run_state import RunState, sooner
from ...model.transitions.start import Beginning, Debounce, begin, begin_alone, put_off
from .base import Flow, Rows, Start, ask, change, put

Row = tuple[Any, ...]
_TRIES = 10
"""How often a start is begun again, because the run that had its key was removed, or claimed, just then."""


def start(runs: Sequence[NewRun]) -> Flow[list[str]]:
    """Insert runs; their ids, or for a key already taken the id of the run that has it."""
    for _ in range(_TRIES):
        all_new = yield from insert_runs(runs)
        ids = [run.id for run in runs] if all_new else (yield from _owners(runs))
        if ids is not None:
            return ids
    raise DatabaseUnavailable(
        "other runs took the key of this start and gave it up again, at every try; start it again"
    )


def start_bounded(runs: Sequence[NewRun], bound: Bound) -> Flow[list[str]]:
    """Insert runs, all or none, and none if too many would be ready."""
    return (yield from bounded(lambda: start(runs), runs, bound))


def bounded(inserted: Callable[[], Flow[list[str]]], runs: Sequence[NewRun], bound: Bound) -> Flow[list[str]]:
    """Count what is ready in a queue before and after runs are inserted."""
    yield from ask("lock_queue", bound.queue)
    [(before,)] = yield from ask("count_ready", bound.queue, bound.beyond(len(runs)))
    ids = yield from inserted()
    [(after,)] = yield from ask("count_ready", bound.queue, bound.beyond(len(runs)))
    bound.check(before, after)
    return ids


def insert_runs(runs: Sequence[NewRun]) -> Flow[bool]:
    """The rows of runs, in the transaction of a flow; whether all of them are new. A database may insert them in a way
    of its own (``Start``)."""
    answer: bool | None = yield Start(runs)
    return (yield from insert(runs)) if answer is None else answer


def insert(runs: Sequence[NewRun], seed: str | None = None) -> Flow[bool]:
    """The rows of runs; whether all of them are new. A run whose id is taken is there already, one whose key or name is
    taken is not inserted. Both are taken in their order, so that two starts never wait for each other in a circle."""
    [(now,)] = yield from ask("now")
    ordered = sorted(runs, key=_by_key) if len(runs) > 1 and any(run.key or run.unique for run in runs) else runs
    if any(run.parent or run.origin or run.graph or run.trace or run.unique for run in runs):
        started = yield from _insert_linked(ordered, now, seed or new_seed())
    else:
        started = yield from put("start", list(_rows(ordered, now, seed or new_seed())))
    yield from put("start_tags", [(run.id, tag) for run in runs if run.dag_step is None for tag in run.shape.tags])
    yield from put("start_attributes", [(run.id, *each) for run in runs for each in run.attributes])
    return started == len(runs)


def _by_key(run: NewRun) -> tuple[str, str]:
    name = run.key if run.unique is None else run.unique.name
    return name or "", run.shape.workflow


def _owners(runs: Sequence[NewRun]) -> Flow[list[str] | None]:
    """Which runs have the keys; of those that others have also what these were started with. None: a key was free again
    when this was read."""
    keyed = [run for run in runs if run.key is not None]
    wanted = Rows((run.shape.workflow, run.key, run.id) for run in keyed)
    owners = {row[0]: str(row[1]) for row in (yield from ask("by_keys", wanted))} if wanted else {}
    if len(owners) < len(keyed):
        return None
    others = [run for run in keyed if owners[run.id] != run.id]
    if others:
        rows = yield from ask("earlier", sorted({owners[run.id] for run in others}))
        inputs = {str(row[0]): (row[1], row[2]) for row in rows}
        for run in others:
            run.earlier = inputs.get(owners[run.id])
    return [owners.get(run.id, run.id) for run in runs]


# -- runs that belong to nothing ---------------------------------------------------------------------------


def _rows(runs: Sequence[NewRun], now: int, seed: str) -> Iterator[Row]:
    """What runs of one shape have in common is worked out once per stretch of them."""
    shape, common, ready = None, (), False
    for n, run in enumerate(runs, 1):
        if run.shape is not shape:
            shape, stands = run.shape, begin_alone(run.shape, now)
            common, ready = _common(shape, stands, now, seed), stands.ready
        yield run.id, run.input, run.key, now * 1000 + n if ready else None, *common


def _common(shape: RunShape, stands: Beginning, now: int, seed: str) -> Row:
    return (
        shape.workflow, shape.version, shape.queue, shape.priority, stands.visible_at, shape.max_attempts,
        shape.timeout_ms, shape.deadline_ms, stands.deadline_at, stands.expires_at, _tags(shape), shape.concurrency_key,
        shape.format, seed, now,
    )  # fmt: skip


def _tags(shape: RunShape) -> str | None:
    return msgspec.json.encode(shape.tags).decode() if shape.tags else None


# -- runs that belong to others, as children or steps, or to a trace ---------------------------------------


def _insert_linked(runs: Sequence[NewRun], now: int, seed: str) -> Flow[int]:
    """Insert runs, steps of dag runs last; how many rows. A dag run whose key is taken is not there, and so has no
    steps."""
    rows = list(zip(runs, _linked_rows(runs, now, seed), strict=True))
    others = [(run, row) for run, row in rows if run.dag_step is None]
    started = yield from put("start_linked", [row for _, row in others])
    steps = [(run.dag_step.dag_id, row) for run, row in rows if run.dag_step is not None]
    if steps and started < len(others):
        there = {str(row[0]) for row in (yield from ask("which_exist", [run.id for run, _ in others]))}
        steps = [(dag_id, row) for dag_id, row in steps if dag_id in there]
    graphs = [(run.id, run.graph_text) for run, _ in others if run.graph_text is not None]
    yield from put("start_graphs", graphs)
    return started + (yield from put("start_linked", [row for _, row in steps]))


def _linked_rows(runs: Sequence[NewRun], now: int, seed: str) -> Iterator[Row]:
    """What runs of one kind have in common is worked out once."""
    known: dict[Any, tuple[Beginning, Row]] = {}
    for number, run in enumerate(runs, 1):
        waits = run.unique is not None and run.unique.waits
        kind = (run.shape, bool(run.steps), waits, None if run.dag_step is None else bool(run.dag_step.pending))
        if (common := known.get(kind)) is None:
            stands = begin(run, now)
            common = known[kind] = (stands, _common(run.shape, stands, now, seed))
        yield _linked_row(run, now, number, *common)


def _linked_row(run: NewRun, now: int, number: int, stands: Beginning, common: Row) -> Row:
    dag_id, dag_step, pending = run.dag_step or (None, None, run.steps)
    return (
        run.id, run.input, run.key, now * 1000 + number if stands.ready else None, *common, stands.status,
        stands.waiting_for, stands.started_at, stands.ready_at, *(run.parent or (None,) * 4), run.origin, run.trace,
        run.graph, dag_id, dag_step, pending, None if dag_id is None else number,
        *_names(run),
    )  # fmt: skip


def _names(run: NewRun) -> tuple[str | None, str | None]:
    """The name that a run has, and the one that it waits for."""
    if run.unique is None:
        return None, None
    return (None, run.unique.name) if run.unique.waits else (run.unique.name, None)


# -- debounced starts --------------------------------------------------------------------------------------


class Debounced(NamedTuple):
    """The run that a debounced start has become."""

    run_id: str
    lane: Lane | None
    """The lane in which the run is ready; None: it waits."""


def start_debounced(run: NewRun, debounce: Debounce) -> Flow[Debounced]:
    """Put the run of the key off, with another input, under its lock; or make one, if there is none that waits. Whether
    a worker has claimed it is seen on its row. Two who make one at the same time: the second waits for the first, and
    puts its run off. (A start that is sent again, because its reply was lost, and meets a run that was claimed
    before that, makes another: as it would if it had come a moment later.)"""
    for _ in range(_TRIES):
        found = yield from ask("lock_debounced", run.shape.workflow, run.key)
        if found:
            return (yield from _put_off(RunState(*found[0][2:]), found[0][0], found[0][1], run, debounce))
        [(now,)] = yield from ask("now")
        if (yield from put("start_debounced", [_row(run, debounce, now)])):
            yield from put("start_tags", [(run.id, tag) for tag in run.shape.tags])
            yield from put("start_attributes", [(run.id, *each) for each in run.attributes])
            return Debounced(run.id, None)
        if (yield from ask("which_exist", [run.id])):
            return Debounced(run.id, None)  # by a call whose reply was lost
    raise DatabaseUnavailable(
        "workers claimed the runs of this debounced key at every try to change one; start it again"
    )


def leave_keys(runs: Sequence[RunState]) -> Flow[None]:
    """Runs that ended before any worker had claimed them are to be retried. Their keys were free since then, and others
    may wait under them: what is retried has no key, and no start gives it another input."""
    yield from put("leave_debounced", [(run.id,) for run in runs if not run.begun])


def _put_off(row: RunState, first_at: int, now: int, run: NewRun, debounce: Debounce) -> Flow[Debounced]:
    later = put_off(row, first_at, now, debounce, run.shape.expires_ms)
    yield from change([later])
    yield from put("change_input", [(row.id, run.input, run.shape.format)])
    return Debounced(row.id, later.lane if later.ready else None)


def _row(run: NewRun, debounce: Debounce, now: int) -> Row:
    shape = run.shape
    due = now + (debounce.wait_ms if debounce.max_ms is None else min(debounce.wait_ms, debounce.max_ms))
    expires_at = None if shape.expires_ms is None else due + shape.expires_ms
    deadline_at = None if shape.deadline_ms is None else now + shape.deadline_ms
    return (
        run.id, run.input, run.key, shape.workflow, shape.version, shape.queue, shape.priority,
        sooner(due, sooner(expires_at, deadline_at)), expires_at, shape.deadline_ms, deadline_at, shape.max_attempts,
        shape.timeout_ms, _tags(shape), shape.concurrency_key, shape.format, new_seed(), now, run.trace,
    )  # fmt: skip
