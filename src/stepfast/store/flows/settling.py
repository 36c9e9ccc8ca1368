"""Dag runs: what the end of a step means to the others and to the run. In the transaction that ends it, for a batch.

Everything here happens under the lock of the dag run's row. When a dag run begins to fail its open steps are waited
for; so such a transaction holds no rows but those of these dag runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct, field

from ...model.graph import Settled
from ...model.records import Lane
from ...model.run_state import Standing
from ...model.status import ASK_CANCEL, REASON_CANCELLED
from ...model.transitions.dag import BY_A_STEP, Countdown, Why, fallen, settle_dag, settled_at
from ...model.transitions.operator import NO_TRACES, end_open_step
from .requests import Flow, Rows, put
from .standings import change, read, traces_of

Dags = Mapping[str, Standing]
"""Dag runs that are locked in this transaction."""


class Settlement(Struct):
    """What came of the ends of steps. Nothing of it is written before ``write``."""

    runs: list[Standing] = field(default_factory=list)
    """Steps and dag runs as they stand now."""
    lanes: set[Lane] = field(default_factory=set)
    """Where something was made ready: steps, or dag runs whose steps are all settled."""
    marked: dict[str, str] = field(default_factory=dict)
    """The steps that are to be cancelled by the workers that hold them."""
    cancelled: list[str] = field(default_factory=list)
    """The steps that are over, or are being undone, because their dag run fails: so are their children."""
    ready: set[str] = field(default_factory=set)
    """The dag runs that are to be finished."""
    ended: list[Standing] = field(default_factory=list)
    """The dag runs that are over, without anybody who finishes them."""

    def add(self, run: Standing) -> None:
        """Note a run that stands otherwise now, and its lane if it is ready."""
        self.runs.append(run)
        if run.ready:
            self.lanes.add(run.lane)

    def end(self, dag: Standing, over: Standing) -> None:
        """A dag run that was to be finished is over instead."""
        self.runs = [over if run is dag else run for run in self.runs]
        self.lanes = {run.lane for run in self.runs if run.ready}
        self.ready.discard(dag.id)
        self.ended.append(over)


def settle(ends: Sequence[Settled], dags: Dags, now: int, moving: Collection[str]) -> Flow[Settlement]:
    """Steps (``moving`` are their ids) come to their ends: make ready what waited for them, or let their runs fail."""
    ends = [end for end in ends if end.dag_id in dags]  # unless somebody has deleted the run
    done, failed = Settlement(), fallen(ends)
    ended = Counter(end.dag_id for end in ends)
    countdown = Countdown([end for end in ends if end.dag_id not in failed and not dags[end.dag_id].failing])
    while countdown.unfinished:
        if missing := countdown.missing:
            blocked = yield from read("lock_dependents", Rows(missing))
            countdown.learn(missing, blocked.runs.values())
        countdown.count()
    for step in countdown.moved(dags, now):
        done.add(step)
    ended.update(countdown.skipped)
    yield from _close(done, dict.fromkeys(failed, BY_A_STEP), ended, dags, now, moving)
    return done


def fail(whys: Mapping[str, Why], ended: Counter[str], dags: Dags, now: int) -> Flow[Settlement]:
    """Let dag runs fail; of some of them steps have ended without a word of their own. Whoever finishes them undoes
    what is to be undone."""
    done = Settlement()
    yield from _close(done, whys, ended, dags, now, ())
    return done


def _close(
    done: Settlement, whys: Mapping[str, Why], ended: Counter[str], dags: Dags, now: int, moving: Collection[str]
) -> Flow[None]:
    """Let runs fail that do not yet, and with them their open steps; count what has ended. Where nothing is left the
    run is ready."""
    begin = {dag_id: why for dag_id, why in whys.items() if not dags[dag_id].failing}
    if begin:
        yield from _end_open(done, list(begin), ended, dags, now, moving)
    for number, dag_id in enumerate({**ended, **begin}, 1):
        dag = settle_dag(dags[dag_id], ended[dag_id], begin.get(dag_id), settled_at(dags[dag_id], now), number)
        done.add(dag)
        if dag.ready:
            done.ready.add(dag_id)


def _end_open(
    done: Settlement, dag_ids: list[str], ended: Counter[str], dags: Dags, now: int, moving: Collection[str]
) -> Flow[None]:
    steps = [step for step in (yield from lock_open_steps(dag_ids)) if step.id not in moving]
    traces = yield from traces_of([step.id for step in steps if step.begun and not step.held])
    for number, step in enumerate(steps, 1):
        assert step.dag_id is not None
        when = settled_at(dags[step.dag_id], now)
        after = end_open_step(step, traces.get(step.id, NO_TRACES), when, number)
        done.add(after)
        if after.worker is not None:
            done.marked[step.id] = after.worker
        elif after.ended:
            ended[step.dag_id] += 1
        if not after.held and after.asked != ASK_CANCEL and after.reason == REASON_CANCELLED:
            done.cancelled.append(step.id)


def lock_open_steps(dag_ids: list[str]) -> Flow[list[Standing]]:
    """The steps of dag runs that are not settled, waited for; but for those that are being undone, which come to their
    own end."""
    found = yield from read("lock_open_steps", dag_ids)
    return [step for _, step in sorted(found.runs.items()) if not (step.ended or step.undoing)]


def write(done: Settlement, others: Sequence[Standing] = ()) -> Flow[bool]:
    """Write it, together with other runs that were decided on; whether children of cancelled steps are told."""
    yield from change([*others, *done.runs])
    return (yield from put("tell_children", [(run_id,) for run_id in done.cancelled])) > 0
