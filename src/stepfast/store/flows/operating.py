"""What operators request of runs, one by one or in bulk. Each flow locks its runs first, and then decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from ...errors import InvalidState
from ...model.bulk_actions import CANCEL, PAUSE, RESUME, RETRY, BatchOutcome
from ...model.graph import APPROVAL, DagStepState, Graph, read_graph
from ...model.names import START
from ...model.records import Answer, Lane
from ...model.run_state import RunState
from ...model.status import ASK_CANCEL, REASON_CANCELLED
from ...model.transitions import operator
from ...model.transitions.dag import Why, settled_at
from ...model.transitions.operator import (
    NO_TRACES,
    NewTime,
    cancel,
    end,
    may_be_paused,
    may_be_retried,
    pause,
    reschedule,
    resume,
    retry,
    waits_for_retry,
    way_to_cancel,
)
from . import questions
from .base import Flow, ask, change, forget_steps, forgotten, lock_free, lock_run, put, read, traces_of
from .flush import Settlement, fail, lock_open_steps, write
from .starts import leave_keys


def retry_dag(dag: RunState, now: int) -> Flow[set[Lane] | None]:
    """Let a failed or cancelled dag run, locked in this transaction, continue from what its steps have completed; where
    something is ready now. None: a step of it was undone."""
    [(text,)] = yield from ask("graph", dag.workflow, dag.graph, dag.id)
    graph, why = read_graph(text)
    if graph is None:
        raise InvalidState(f"the graph of dag run {dag.id} (version {dag.graph}) {why}")
    found = yield from read("lock_steps", dag.id)
    steps = {step.dag_step: step for step in found.runs.values() if step.dag_step is not None}
    if gone := [name for name in graph.dag_steps if name not in steps]:
        raise InvalidState(f"dag run {dag.id} has no step {gone[0]!r}, which its graph names")
    again = graph.reopened({name: _stood(step) for name, step in steps.items()})
    if again is None:
        return None
    yield from _forget(graph, [steps[name] for name in again if steps[name].begun])
    now = settled_at(dag, now)
    moved = [operator.reopen(steps[name], how, now, number) for number, (name, how) in enumerate(again.items(), 1)]
    after = operator.retry_dag(dag, len(again), now)
    yield from change([after, *moved])
    return {run.lane for run in (after, *moved) if run.ready}


def _stood(step: RunState) -> DagStepState:
    return DagStepState(step.status, step.reason, step.begun, bool(step.undoing))


def _forget(graph: Graph, begun: list[RunState]) -> Flow[None]:
    """The records that are to be made again: those that the error of a step belongs to. An approval asks again."""
    named = [(step, step.dag_step) for step in begun if step.dag_step is not None]
    approvals = [step for step, name in named if graph.dag_steps[name].kind == APPROVAL]
    yield from put("forget_all", [(step.id,) for step in approvals])
    yield from forget_steps([address for step in begun if step not in approvals for address in forgotten(step)])
    yield from put("tell_again", [(step.id,) for step in begun])
    yield from questions.give_up([step.id for step in begun])


def cancel_run(run_id: str, children: bool = True) -> Flow[Answer]:
    """End it, begin its undoing, or mark it; without its ``children``, these go on."""
    run, now = yield from lock_run(run_id)
    answer = _answer(run)
    if run is None:
        return answer
    way = way_to_cancel(run)
    if way != "refused":
        steps = (yield from ask("steps_of_dags", [run_id])) if run.is_dag else []
        yield from put("spare_children", [(each, not children) for each in (run_id, *(row[0] for row in steps))])
    if way == "refused":
        answer.done = False
    elif way == "fail":
        yield from _cancel_dag(run, answer, now)
    else:
        for holder, name in (yield from taken_names([run])).values():
            raise InvalidState(f"run {run_id} cannot be undone now: run {holder} has its name {name!r}")
        done = yield from cancel_runs([run], now)
        answer.done, answer.running, answer.ended = True, run.held, done.ended
        answer.lane = run.lane if done.lanes else None
    return answer


class StateChange(Struct):
    """What came of what was asked of some runs."""

    runs: list[RunState] = field(default_factory=list)
    """Their present states."""
    lanes: set[Lane] = field(default_factory=set)
    """Where runs are ready: to continue, to be undone, or to come to a record first."""
    ended: bool = False


def cancel_runs(runs: Sequence[RunState], now: int) -> Flow[StateChange]:
    """Cancel runs that are locked in this transaction, and leave word for their parents and children. A dag run that
    has not ended is not cancelled like this: it fails, with its steps."""
    runs = [run for run in runs if way_to_cancel(run) not in ("refused", "fail")]
    taken = yield from taken_names(runs)
    runs = [run for run in runs if run.id not in taken]
    traces = yield from traces_of([run.id for run in runs if not (run.held or run.is_dag)])
    moved = [(run, cancel(run, traces.get(run.id, NO_TRACES), now, number)) for number, run in enumerate(runs, 1)]
    yield from change([after for _, after in moved])
    over = [(run, after) for run, after in moved if after.asked != ASK_CANCEL]
    yield from put("tell_parents", [(run.id,) for run, after in over if after.ended and run.child and not run.ended])
    yield from put("tell_children", [(run.id,) for run, _ in over])
    lanes = {after.lane for _, after in moved if after.ready}
    return StateChange([after for _, after in moved], lanes, any(after.ended for _, after in over))


def _cancel_dag(run: RunState, answer: Answer, now: int) -> Flow[None]:
    """One that fails already still fails."""
    if run.failing:
        answer.done = run.reason == REASON_CANCELLED
        return
    done = yield from cancel_dags({run.id: run}, now)
    answer.done, answer.running, answer.lanes, answer.ended = True, bool(done.marked), done.lanes, bool(done.ended)
    answer.lane = run.lane if run.id in done.ready else None


def cancel_dags(dags: dict[str, RunState], now: int) -> Flow[Settlement]:
    """Dag runs that have not ended, and that no worker holds, fail, and are finished as usual. One of which nothing
    has begun has nothing to undo: it is over at once, also where a paused queue or a limit keeps workers from it."""
    done = yield from fail(dict.fromkeys(dags, Why(REASON_CANCELLED)), Counter(), dags, now)
    for dag in [run for run in done.runs if run.id in done.ready]:
        steps = yield from read("lock_steps", dag.id)
        if not any(step.begun for step in steps.runs.values()):
            done.end(dag, end(dag, False, settled_at(dag, now)))
    yield from write(done)
    yield from put("tell_parents", [(dag.id,) for dag in done.ended if dag.child])
    return done


def pause_run(run_id: str) -> Flow[Answer]:
    """Hold it, or mark it; a dag run with its steps."""
    run, now = yield from lock_run(run_id)
    answer = _answer(run)
    if run is None or run.dag_id is not None or not may_be_paused(run):
        return answer
    moved = [pause(each, now) for each in (yield from _with_steps(run))]
    yield from change([each for each in moved if each is not None])
    answer.done, answer.running = True, any(each is not None and each.held for each in moved)
    return answer


def resume_run(run_id: str) -> Flow[Answer]:
    """Resume a run, make the next check due, or take a mark back; of a dag run, with its steps."""
    run, now = yield from lock_run(run_id)
    answer = _answer(run)
    if run is None:
        return answer
    done = yield from resume_runs([run], now)
    answer.done, answer.running, answer.lanes = bool(done.runs), any(each.held for each in done.runs), done.lanes
    answer.lane = next((each.lane for each in done.runs if each.ready and each.id == run_id), None)
    return answer


def resume_runs(runs: Sequence[RunState], now: int) -> Flow[StateChange]:
    """Resume runs that are locked in this transaction. A step of a dag run goes with that."""
    done, number = StateChange(), 0
    for run in runs:
        for each in (yield from _with_steps(run)) if run.dag_id is None else ():
            number += 1
            after = resume(each, now, number)
            if after is not None:
                done.runs.append(after)
                done.lanes |= {after.lane} if after.ready else set()
    yield from change(done.runs)
    return done


def reschedule_run(run_id: str, wanted: NewTime) -> Flow[Answer]:
    """Move the time at which a run is due, or its priority; of a dag run, those of its steps."""
    run, now = yield from lock_run(run_id)
    answer = _answer(run)
    if run is None or run.dag_id is not None:
        return answer
    done = yield from reschedule_runs([(run, wanted)], now)
    answer.done, answer.lanes = bool(done.runs), done.lanes
    return answer


def reschedule_runs(moves: Sequence[tuple[RunState, NewTime]], now: int) -> Flow[StateChange]:
    """Move runs that are locked in this transaction. A step of a dag run goes with that. So does the priority of steps
    that wait for others; a dag run that has ended, or is failing, is not moved."""
    done, number, due = StateChange(), 0, list[tuple[str, int]]()
    before = dict[str, RunState]()
    for run, wanted in moves:
        if run.dag_id is not None or (run.is_dag and (run.ended or run.undoing or run.failing)):
            continue
        for each in (yield from _with_steps(run)):
            number += 1
            after = reschedule(each, wanted, now, number)
            if after is None and wanted.priority is not None and run.is_dag and not each.held:
                after = replace(each, priority=wanted.priority)
            if after is None:
                continue
            before[each.id] = each
            done.runs.append(after)
            done.lanes |= {after.lane} if after.ready and (not each.ready or after.lane != each.lane) else set()
            if waits_for_retry(each) and (time := wanted.due(now)) is not None:
                due.append((each.id, time))
    yield from put("move_tries", due)
    yield from change(done.runs)
    moved = [each for each in done.runs if each.priority != before[each.id].priority]
    yield from put("prioritize", [(each.id, each.priority) for each in moved])
    return done


def _with_steps(run: RunState) -> Flow[list[RunState]]:
    """The run, and of a dag run its steps that are not settled, locked like the run itself."""
    return [run, *((yield from lock_open_steps([run.id])) if run.is_dag else ())]


def retry_run(run_id: str) -> Flow[set[Lane] | None]:
    """Queue a failed or cancelled run again, without the records that its error belongs to; of a dag run, its steps
    that did not complete. Where something is ready now; None: that cannot be."""
    run, now = yield from lock_run(run_id)
    if run is None or not may_be_retried(run):
        return None
    for holder, name in (yield from taken_names([run])).values():
        raise InvalidState(f"run {run_id} cannot be retried: run {holder} has its name {name!r} by now")
    if run.is_dag:
        return (yield from retry_dag(run, now))
    if not run.begun and (yield from ask("value", run_id, START)):
        raise InvalidState(f"dag run {run_id} ended before it began, waiting for its name: start it again")
    yield from leave_keys([run])
    yield from take_names([run])
    yield from change([retry(run, now)])
    yield from forget_steps(forgotten(run))
    yield from put("tell_again", [(run_id,)])
    yield from questions.give_up([run_id])
    return {run.lane}


def taken_names(runs: Sequence[RunState]) -> Flow[dict[str, tuple[str, str]]]:
    """Of runs that have ended: those that cannot live again, because another has their name, or is to have it; and
    which that is, and the name."""
    ended = [run.id for run in runs if run.ended]
    taken, first = dict[str, tuple[str, str]](), dict[tuple[str, str], str]()
    for run_id, workflow, name, holder in (yield from ask("names_taken", ended)) if ended else ():
        other = holder or first.setdefault((workflow, name), run_id)
        if other != run_id:
            taken[run_id] = (other, name)
    return taken


def take_names(runs: Sequence[RunState]) -> Flow[None]:
    """Runs that ended while they waited for a name are to be retried: it is free, and theirs."""
    yield from put("take_name", [(run.id,) for run in runs if not run.begun])


def _answer(run: RunState | None) -> Answer:
    return Answer(None) if run is None else Answer(run.status, run.reason)


_Many = Callable[[Sequence[RunState], int], Flow[StateChange]]


def apply_bulk(verb: str, ids: Sequence[str]) -> Flow[BatchOutcome]:
    """Apply an action to the runs whose state allows it, in one transaction that waits for no lock."""
    found = yield from lock_free(ids)
    plain = [run for run in found.runs.values() if not run.is_dag and run.dag_id is None]
    moved = (yield from _MANY[verb](plain, found.now)) if plain else StateChange()
    done = [run.id for run in moved.runs]
    here = {run.id for run in plain}
    return BatchOutcome(
        done=done,
        refused={run.id: run.status for run in plain if run.id not in {*done}},
        apart=[run_id for run_id in ids if run_id not in here],
        lanes=moved.lanes,
        ended=moved.ended,
    )


def _pause_runs(runs: Sequence[RunState], now: int) -> Flow[StateChange]:
    fitting = [run for run in runs if may_be_paused(run)]
    after = [pause(run, now) or run for run in fitting]
    yield from change([run for run, before in zip(after, fitting, strict=True) if run is not before])
    return StateChange(after)


def _retry_runs(runs: Sequence[RunState], now: int) -> Flow[StateChange]:
    fitting = [run for run in runs if may_be_retried(run)]
    taken = yield from taken_names(fitting)
    fitting = [run for run in fitting if run.id not in taken]
    after = [retry(run, now, number) for number, run in enumerate(fitting, 1)]
    yield from leave_keys(fitting)
    yield from take_names(fitting)
    yield from change(after)
    yield from forget_steps([address for run in fitting for address in forgotten(run)])
    yield from put("tell_again", [(run.id,) for run in fitting])
    yield from questions.give_up([run.id for run in fitting])
    return StateChange(after, {run.lane for run in after})


_MANY: dict[str, _Many] = {
    CANCEL.verb: cancel_runs,
    PAUSE.verb: _pause_runs,
    RESUME.verb: resume_runs,
    RETRY.verb: _retry_runs,
}
