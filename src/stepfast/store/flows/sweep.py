"""What idle workers see to: what is due, whose worker is dead, and what a worker gives back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from ...model.ids import made_at
from ...model.records import Lane, Tick
from ...model.run_state import RunState
from ...model.status import REASON_DEADLINE
from ...model.transitions.dag import BY_A_STEP, Why
from ...model.transitions.finish import give_back
from ...model.transitions.operator import NO_TRACES
from ...model.transitions.recover import Causes, awake, due, end_late, let_begin, lose
from ..answers import Promotion, Reaping
from ..sql import DEADLINE_ERROR, EXPIRED_ERROR, LOST_ERROR
from .base import COMMIT, Flow, Rows, ask, change, lock_free, lock_run, put, read, traces_of
from .flush import Settlement, fail, lock_open_steps, write

_DAY_MS = 86_400_000
CAUSES = Causes(DEADLINE_ERROR, EXPIRED_ERROR)


# -- what is due -------------------------------------------------------------------------------------------


def promote(limit: int, only: Sequence[str] | None = None) -> Flow[Promotion]:
    """Make due sleepers ready, of all or ``only`` of these; end what is late. Dag runs and their steps each in a
    transaction of its own: where a dag run begins to fail, its steps are waited for."""
    runs, now = yield from (read("lock_due", limit) if only is None else lock_free(only))
    late = [run for run in runs.values() if due(run, now) in ("deadline", "expired")]
    ready = [run for run in runs.values() if due(run, now) == "ready"]
    moved = [awake(run, now, number) for number, run in enumerate(ready, 1)]
    moved += yield from _end(late_runs := [run for run in late if run.graph is None], now)
    yield from change(moved)
    yield from _tell_parents(run for run in moved if run.ended)
    done = Promotion({run.lane for run in moved if run.ready}, _ended(moved), len(ready) + len(late_runs))
    if steps := [run for run in late if run.dag_id is not None]:
        yield COMMIT
        done = _both(done, (yield from _end_late_steps(steps)))
    if dags := [run.id for run in late if run.is_dag]:
        yield COMMIT
        done = _both(done, (yield from _fail_late(dags)))
    return done


def due_runs(limit: int) -> Flow[list[str]]:
    """Which runs a batch of these is."""
    return [*(yield from read("lock_due", limit)).runs]


def _end(late: Sequence[RunState], now: int) -> Flow[list[RunState]]:
    """Runs that are late come to their end, or begin to be undone."""
    traces = yield from traces_of([run.id for run in late if run.begun])
    return [
        end_late(run, traces.get(run.id, NO_TRACES).undoable, CAUSES, now, number) for number, run in enumerate(late, 1)
    ]


def _end_late_steps(late: Sequence[RunState]) -> Flow[Promotion]:
    """Steps of dag runs: with them the run fails, unless another step of it was picked up in time. If the run is
    locked they stay late, and are found again."""
    dags, now = yield from lock_free({step.dag_id for step in late if step.dag_id is not None})
    if not dags:
        return Promotion(set(), [], 0)
    ids = {step.id for step in late}
    steps = [step for step in (yield from lock_open_steps(list(dags))) if step.id in ids]
    begun = {row[0] for row in (yield from ask("begun_dags", list(dags)))}
    spared = [step for step in steps if due(step, now) == "expired" and step.dag_id in begun]
    over = [step for step in steps if due(step, now) in ("deadline", "expired") and step not in spared]
    moved = [let_begin(step, now, number) for number, step in enumerate(spared, 1)]
    ends = yield from _end(over, now)
    yield from change([*moved, *ends])
    done = yield from _lose_steps(ends, dags, now)
    lanes = {step.lane for step in (*moved, *ends) if step.ready} | done.lanes
    return Promotion(lanes, _ended(ends), len(moved) + len(ends), bool(done.marked))


def _fail_late(dag_ids: Sequence[str]) -> Flow[Promotion]:
    """Dag runs past their deadline fail; the worker that finishes them undoes what is to be undone."""
    dags, now = yield from lock_free(dag_ids)
    late = [dag.id for dag in dags.values() if due(dag, now) == "deadline" and not dag.undoing]
    why = Why(REASON_DEADLINE, DEADLINE_ERROR)
    done = yield from fail(dict.fromkeys(late, why), Counter(), dags, now)
    yield from write(done)
    return Promotion(done.lanes, [], len(late), bool(done.marked))


def _lose_steps(steps: Iterable[RunState], dags: dict[str, RunState], now: int) -> Flow[Settlement]:
    """Steps that have failed without a word of their own: so do their dag runs."""
    ended = Counter(step.dag_id for step in steps if step.ended and step.dag_id is not None)
    done = yield from fail(dict.fromkeys(ended, BY_A_STEP), ended, dags, now)
    yield from write(done)
    return done


# -- whose worker is dead ----------------------------------------------------------------------------------


def reap(
    worker: str, limit: int, max_losses: int, silent: Sequence[str] | None, only: Sequence[str] | None = None
) -> Flow[Reaping]:
    """Declare workers dead, give back what they held, or ``only`` these runs, forget those with nothing left."""
    dead_workers = [
        row[0] for row in (yield from ask("declare_dead", worker, None if silent is None else list(silent)))
    ]
    yield COMMIT
    ids = (yield from lost_runs(limit)) if only is None else [*(yield from lock_free(only)).runs]
    lost, _ = yield from _lose(ids, max_losses)
    fatal = [run for run in lost if run.ended and run.dag_id is not None]
    moved = [run for run in lost if run not in fatal]
    yield from change(moved)
    yield from _tell_parents(run for run in moved if run.ended)
    lanes, asked = {run.lane for run in moved if run.ready}, False
    if fatal:
        yield COMMIT
        dead, done = yield from _fail_lost_steps(fatal, max_losses)
        moved, lanes, asked = moved + dead, lanes | done.lanes, bool(done.marked)
    if dead_workers or 0 < len(ids) < limit:
        yield from ask("keep_dead")
        yield from ask("forget_dead")
        yield from _forget_past_workers()
    return Reaping(dead_workers, lanes, _ended(moved), len(moved), asked)


def lost_runs(limit: int) -> Flow[list[str]]:
    """Which runs a batch of these is; they are locked."""
    return [row[0] for row in (yield from ask("lock_lost", limit))]


def set_aside(run_id: str) -> Flow[None]:
    """Hold a run of which nothing can be decided. As little of its row is written as can be."""
    _, now = yield from lock_free([run_id])
    yield from put("set_aside", [(run_id, now)])


def _lose(ids: Sequence[str], max_losses: int) -> Flow[tuple[list[RunState], int]]:
    """Locked first, and looked at again: only now are runs and workers seen as they are at one time."""
    if not ids:
        return [], 0
    runs, now = yield from read("lost", list(ids))
    recorded = yield from _recorded(runs)
    found = [
        lose(run, run.id in recorded, max_losses, LOST_ERROR, now, number)
        for number, run in enumerate(runs.values(), 1)
    ]
    return found, now


def _fail_lost_steps(fatal: Sequence[RunState], max_losses: int) -> Flow[tuple[list[RunState], Settlement]]:
    """Dead letters among steps of dag runs: with them the run fails. If the run is locked they still name a dead
    worker, and are found again."""
    dags, _ = yield from lock_free({step.dag_id for step in fatal if step.dag_id is not None})
    steps = yield from lock_free(step.id for step in fatal if step.dag_id in dags)
    lost, now = yield from _lose(list(steps.runs), max_losses)
    dead = [step for step in lost if step.ended]
    yield from change(dead)
    return dead, (yield from _lose_steps(dead, dags, now))


def _recorded(ids: Collection[str]) -> Flow[set[str]]:
    """The runs, of those named, whose present claim has made a record."""
    return {row[0] for row in (yield from ask("recorded", list(ids)))} if ids else set()


def _tell_parents(ended: Iterable[RunState]) -> Flow[None]:
    yield from put("tell_parents", [(run.id,) for run in ended if run.child])


def _ended(runs: Iterable[RunState]) -> list[str]:
    return [run.id for run in runs if run.ended]


def _both(one: Promotion, other: Promotion) -> Promotion:
    return Promotion(
        one.lanes | other.lanes, one.ended + other.ended, one.moved + other.moved, one.asked or other.asked
    )


# -- what a worker gives back ------------------------------------------------------------------------------


def give_back_held(worker: str, held: Sequence[tuple[str, int]]) -> Flow[None]:
    """Make runs ready again at once."""
    if not held:
        return
    runs, now = yield from read("lock_own", worker, Rows(held))
    yield from _give_back(runs, now)
    yield from _give_back_late(worker, [(run_id, claim) for run_id, claim in held if run_id not in runs])


def unregister(worker: str) -> Flow[None]:
    """A worker leaves in good order. What still names it is ready again: a claim that was under way when it stopped, or
    what it was giving back at that moment."""
    runs, now = yield from read("lock_held", worker)
    yield from _give_back(runs, now)
    rest = [(str(row[0]), row[1]) for row in (yield from ask("held", worker))]
    yield from _give_back_late(worker, rest)
    yield from put("keep_workers", [(worker,)])
    yield from put("unregister", [(worker,)])
    yield from _forget_past_workers()


def _forget_past_workers() -> Flow[None]:
    """Delete what is kept of workers that had left before the oldest run was started. Its id says when that was by the
    clock of its caller, which may differ from the database's: by less than a day."""
    oldest = yield from ask("oldest_run")
    [(now,)] = yield from ask("now")
    started = made_at(oldest[0][0]) if oldest else now
    if started is not None:
        yield from ask("forget_past_workers", started - _DAY_MS)


def _give_back_late(worker: str, held: Sequence[tuple[str, int]]) -> Flow[None]:
    """Runs whose rows are locked, one by one: to wait for one with others in hand could end in a circle."""
    for run_id, claim in held:
        yield COMMIT
        run, now = yield from lock_run(run_id)
        if run is not None and (run.worker, run.claim) == (worker, claim):
            yield from _give_back({run_id: run}, now)


def _give_back(runs: dict[str, RunState], now: int) -> Flow[None]:
    recorded = yield from _recorded(runs)
    moved = [give_back(run, run.id in recorded, now, number) for number, run in enumerate(runs.values(), 1)]
    yield from change(moved)


# -- what an idle worker asks --------------------------------------------------------------------------------


def tick(
    workflows: Sequence[str] | None, lanes: bool, queues: Sequence[str] | None, schedules: Sequence[str]
) -> Flow[Tick]:
    """Which duties have work, for a worker that knows these workflows, serves these queues and declares these
    schedules."""
    [(now, next_due, mail, names, schedule, remote, events, start)] = yield from ask("duties", list(schedules))
    gates = {name: (bool(paused), bool(limited)) for name, paused, limited in (yield from ask("gates"))}
    known = None if workflows is None else frozenset(workflows)
    suspects = {row[0] for row in (yield from ask("count_suspects")) if known is None or row[1] in known}
    found = (yield from _known_lanes(known)) if lanes else []
    return Tick(
        now_ms=now,
        due=next_due is not None and next_due <= now,
        next_due_ms=None if next_due is None else next_due - now,
        suspects=any(queue not in gates and (queues is None or queue in queues) for queue in suspects),
        lanes=[lane for lane in found if lane.queue not in gates],
        mail=mail is not None,
        names=names is not None,
        limited=[lane for lane in found if lane.queue in gates and not gates[lane.queue][0]],
        gated=frozenset(gates),
        paused=frozenset(name for name, (paused, _) in gates.items() if paused),
        limited_suspects=[
            name for name, (paused, limited) in gates.items() if limited and not paused and name in suspects
        ],
        schedule_ms=None if schedule is None else schedule - now,
        remote=remote is not None,
        remote_ms=None if remote is None else remote - now,
        events=bool(events),
        start_ms=None if start is None else start - now,
    )


_BEFORE_ALL = Lane("", "", -(2**31))


def _known_lanes(known: Collection[str] | None) -> Flow[list[Lane]]:
    """The lanes that have something ready: skipped through in the index, so that their number counts and not the number
    of runs in them."""
    lanes, last = list[Lane](), _BEFORE_ALL
    while rows := (yield from ask("next_lane", *last)):
        for row in rows:
            last = Lane(*row)
            if known is None or last.workflow in known:
                lanes.append(last)
    return lanes
