"""Why a run is not moving, in a sentence or two that say what will happen next, or what to do."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Sequence
from datetime import datetime

from ..app import Stepfast
from ..engine.compensation import UNDO_BRANCH
from ..engine.history import UNDO
from ..errors import RunNotFound
from ..info import UNKNOWN, Activity, ErrorInfo, RunInfo, StepInfo, with_claims
from ..model import status
from ..model.cron import clock
from ..model.graph import Graph, StoredGraph, read_graph
from ..model.health import claiming_workers, serves, why_unserved
from ..model.names import QUESTION
from ..model.queue_config import Gate, Rate
from ..model.rate_limiter import NOTHING, Count, Usage
from ..model.records import WorkerInfo
from ..model.status import DAG_STEP
from ..settings import SUSPECT_LOSSES
from ..transports import started_remote_steps
from .text import ago, count, lasting, listed, queues_of, shortened, waited_for, worker_name

_FEW = 3
"""Children that are listed."""
_UNDER_WAY = (status.RUNNING, status.COMPENSATING)


def why(
    run: RunInfo,
    workers: Sequence[WorkerInfo],
    steps: Sequence[StepInfo],
    calls: Sequence[Activity],
    children: Sequence[RunInfo] = (),
    held_by: str | None = None,
) -> str:
    """Return why the run is not moving, or how it ended. ``held_by`` says how its queue keeps it from being claimed."""
    if run.status == status.QUEUED:
        return _ready(run, workers, held_by) if run.ready else _put_off(run, workers)
    if run.status == status.RUNNING:
        return _running(run, workers, steps) + _asked(run)
    if run.status == status.WAITING:
        return _waiting(run, steps, calls, children) + _overdue(run, workers)
    if run.status == status.PAUSED:
        return _paused(run)
    if run.status == status.COMPENSATING:
        return _compensating(run, workers, steps, calls)
    return _ended(run, [step for step in steps if step.kind == DAG_STEP])


# -- ready -------------------------------------------------------------------------------------------------------


def _ready(run: RunInfo, workers: Sequence[WorkerInfo], held_by: str | None = None) -> str:
    if held_by is not None:
        missing = why_unserved(workers, run.workflow, run.queue)
        also = "" if missing is None else f" And {missing}{_others(run, claiming_workers(workers))}"
        return f"It is ready, but {held_by}.{also}{_expiry(run)}"
    text = "It is ready to be claimed"
    if run.losses >= SUSPECT_LOSSES:
        text = (
            f"It is a suspect: {count(run.losses, 'worker')} died while executing it. Such runs are tried apart "
            "from the others, in groups, those with the fewest losses first, until the one to blame is found"
        )
    return f"{text}{_who_serves(run, workers)}{_expiry(run)}"


def _who_serves(run: RunInfo, workers: Sequence[WorkerInfo]) -> str:
    """Continue the sentence about a ready run: which worker will take it."""
    live = claiming_workers(workers)
    able = [worker for worker in live if serves(worker, run.workflow, run.queue)]
    if missing := why_unserved(workers, run.workflow, run.queue):
        return f", but {missing}{_others(run, live)}"
    if all(worker.running >= worker.concurrency for worker in able):
        return f"; every worker that serves it is full: {listed([_load(w) for w in able])}."
    return f"; it will be taken by one of {listed([_load(w) for w in able])}."


def _others(run: RunInfo, live: Sequence[WorkerInfo]) -> str:
    """Continue the sentence that no worker will take a run: which workers there are."""
    if not live:
        return ": start one with `stepfast worker module:app`."
    knowing = [worker for worker in live if run.workflow in worker.workflows]
    if knowing:
        told = listed([f"{worker_name(w)} (queues: {queues_of(w)})" for w in knowing])
        return f". Those that know workflow {run.workflow!r} are {told}."
    told = listed([f"{worker_name(w)} ({', '.join(sorted(w.workflows)) or 'no workflows'})" for w in live])
    return f". Live are {told}."


def _load(worker: WorkerInfo) -> str:
    return f"{worker_name(worker)} ({worker.running} of {worker.concurrency} busy)"


def _expiry(run: RunInfo) -> str:
    if run.expires_at is None or run.started_at is not None:
        return ""
    if run.expires_at <= run.read_at:
        return f" It expired {_ago(run.expires_at, run)} and will be ended by a live worker within seconds."
    return f" It expires {ago(run.expires_at, run.read_at)} unless it is picked up."


# -- not yet due -------------------------------------------------------------------------------------------------


def _put_off(run: RunInfo, workers: Sequence[WorkerInfo]) -> str:
    if run.error is not None and run.attempt > 1:
        cause = f"attempt {run.attempt - 1} failed with {_error(run.error)}; attempt {run.attempt}"
    else:
        cause = "its start was put off" if run.started_at is None else "its worker gave it back"
        cause += "; it"
    return f"It is queued: {cause} is due {_due(run)}.{_overdue(run, workers)}"


def _due(run: RunInfo) -> str:
    if run.due_at is None:
        return "at no set time"
    when = "now" if run.due_at <= run.read_at else ago(run.due_at, run.read_at)
    return f"{when} (at {clock(run.due_at)})"


def _overdue(run: RunInfo, workers: Sequence[WorkerInfo]) -> str:
    """Say that no worker will take the run when it is due, if that is so."""
    missing = why_unserved(workers, run.workflow, run.queue)
    return "" if missing is None else f" But {missing}{_others(run, claiming_workers(workers))}"


# -- waiting -----------------------------------------------------------------------------------------------------


def _waiting(run: RunInfo, steps: Sequence[StepInfo], calls: Sequence[Activity], children: Sequence[RunInfo]) -> str:
    if ", " in (run.waiting_for or ""):
        return _waiting_for_several(run, calls, children)
    what, _, name = (run.waiting_for or "").partition(":")
    if what == status.WAITING_RETRY:
        hurry = f"; `stepfast reschedule {run.id}` makes it now"
        return f"It waits to retry {_last_try(calls)}; the next try is due {_due(run)}{hurry}."
    if what == status.WAITING_TIME:
        return f"It sleeps; it wakes {_due(run)}."
    if what == status.WAITING_SIGNAL:
        return f"It waits for signal {name!r}{_at_the_latest(run)}; `{_send(run, name)}` sends it."
    if what == status.WAITING_QUESTION:
        return f"It waits for question {name!r}{_at_the_latest(run)}; `{_ask(run, name)}` asks it."
    if what == status.WAITING_CALLBACK:
        return f"It waits for callback {name!r}{_at_the_latest(run)}; {_COMPLETES}."
    if what == status.WAITING_EVENT:
        publish = f"stepfast publish {shlex.quote(name)} JSON"
        return f"It waits for event {name!r}{_at_the_latest(run)}; `{publish}` publishes one."
    if what == status.WAITING_CHILD:
        return f"It waits for {_open_children(children)}{_at_the_latest(run)}."
    if what == status.WAITING_REMOTE:
        return f"It waits for {_remote(run, name, steps)}{_at_the_latest(run)}.{_SERVED}"
    if what == status.WAITING_NAME:
        return (
            f"It waits for the end of the run that has its name {run.unique!r}{_at_the_latest(run)}; "
            f"`stepfast runs --workflow {run.workflow}` lists it, and `stepfast cancel` ends it."
        )
    if what == status.WAITING_CHECK:
        checks = [repr(s.name) for s in steps if s.kind == "wait_until" and s.status == status.WAITING]
        which = f"check {listed(checks)}" if checks else "its check"
        return (
            f"It waits until {which} becomes true, and checks again {_due(run)}; "
            f"`stepfast resume {run.id}` makes it check at once."
        )
    return f"It waits for {run.waiting_for or 'something'}{_at_the_latest(run)}."


def _waiting_for_several(run: RunInfo, calls: Sequence[Activity], children: Sequence[RunInfo]) -> str:
    """List all waits of a run in a race or in parallel branches, with the commands that end them."""
    said, commands = [], []
    for part in (run.waiting_for or "").split(", "):
        what, _, name = part.partition(":")
        if what == status.WAITING_SIGNAL:
            said.append(f"signal {name!r}")
            commands.append(f"`{_send(run, name)}`")
        elif what == status.WAITING_QUESTION:
            said.append(f"question {name!r}")
        elif what == status.WAITING_CALLBACK:
            said.append(f"callback {name!r}")
        elif what == status.WAITING_EVENT:
            said.append(f"event {name!r}")
        elif what == status.WAITING_CHILD:
            said.append(_open_children(children))
        elif what == status.WAITING_REMOTE:
            said.append(f"remote step {name!r}")
        elif what == status.WAITING_TIME:
            said.append("a time")
        elif what == status.WAITING_RETRY:
            said.append(f"the next try of {_last_try(calls)}")
        else:
            said.append(part)
    sends = f"; {listed(commands)} {'sends it' if len(commands) == 1 else 'send them'}" if commands else ""
    due = "" if run.due_at is None else f"; the first time is due {_due(run)}"
    return f"It waits for {listed(said)}{due}{sends}."


_COMPLETES = "who has its token ends it, by `stepfast complete TOKEN JSON` or `stepfast fail TOKEN TEXT`"
_SERVED = (
    " Workers elsewhere serve it, which are not listed here: if it stays so, see whether one of that group is running "
    "on the transport's tables."
)


def _remote(run: RunInfo, name: str, steps: Sequence[StepInfo]) -> str:
    """Describe the remote step that is waited for, and where it is."""
    found = [s for s in steps if s.name == name and s.status == status.WAITING]
    if len(found) > 1:
        return f"{len(found)} remote steps {name!r}, the first of them sent {_ago(_first(found), run)}"
    if not found or found[0].detail is None:
        return f"remote step {name!r}"
    return f"remote step {name!r}: {found[0].detail} ({_ago(_first(found), run)})"


def _first(steps: Sequence[StepInfo]) -> datetime:
    return min(step.started_at for step in steps if step.started_at is not None)


def waits_for(run: RunInfo, what: str) -> bool:
    """Whether this is what a run waits for, or among it."""
    return what in (run.waiting_for or "").split(", ")


def unread(run: RunInfo, mail: Sequence[tuple[str, int]]) -> str:
    """List signals that the run has not taken, and whether it waits for them: a name may be misspelt."""
    if not mail:
        return ""
    resting = run.status in (status.WAITING, status.PAUSED) and run.waiting_for is not None
    told = []
    for name, number in mail:
        kind, shown = status.WAITING_SIGNAL, repr(name)
        if name.startswith(QUESTION):
            kind, name = status.WAITING_QUESTION, name.removeprefix(QUESTION)
            shown = f"question {name!r}"
        notes = [f"{number} of them"] if number > 1 else []
        if resting and not waits_for(run, f"{kind}:{name}"):
            notes.append("nothing waits for it")
        told.append(f"{shown} ({', '.join(notes)})" if notes else shown)
    what = "unread message" if any(name.startswith(QUESTION) for name, _ in mail) else "unread signal"
    return f"{count(sum(number for _, number in mail), what)}: {listed(told)}"


def _last_try(calls: Sequence[Activity]) -> str:
    tries = [call for call in calls if call.status == status.FAILED and call.position is not None]
    error = tries[-1].error if tries else None
    if error is None:
        return "a step"
    last = tries[-1]
    what = "undo" if last.branch == UNDO_BRANCH else "step"
    return f"{what} {last.name!r}: try {last.attempt} failed with {_error(error)}"


def _at_the_latest(run: RunInfo) -> str:
    if run.due_at is None:
        return ""
    end = ", its deadline" if run.due_at == run.deadline else ""
    return f", at the latest until {clock(run.due_at)} ({ago(run.due_at, run.read_at)}{end})"


def _send(run: RunInfo, name: str) -> str:
    return f"stepfast signal {run.id} {shlex.quote(name)} JSON"


def _ask(run: RunInfo, name: str) -> str:
    return f"stepfast ask {run.id} {shlex.quote(name)} JSON"


def _open_children(children: Sequence[RunInfo]) -> str:
    """The children that have not ended, the first few by name."""
    waited = [child for child in children if child.completed_at is None]
    if not waited:
        return "a child"
    told = [f"{child.workflow!r} (run {child.id}, {child.status})" for child in waited[:_FEW]]
    if len(waited) > _FEW:
        told.append(f"{len(waited) - _FEW} more")
    return f"its child {told[0]}" if len(waited) == 1 else f"its children {listed(told)}"


# -- paused --------------------------------------------------------------------------------------------------------


def _paused(run: RunInfo) -> str:
    text = f"An operator paused it; `stepfast resume {run.id}` resumes it."
    if run.waiting_for:
        text += f" It also waits for {waited_for(run.waiting_for)}: what arrives is kept for it."
    if run.deadline is not None:
        text += f" Its deadline counts all the same: {ago(run.deadline, run.read_at)}."
    return text


# -- undoing -----------------------------------------------------------------------------------------------------


def _compensating(
    run: RunInfo, workers: Sequence[WorkerInfo], steps: Sequence[StepInfo], calls: Sequence[Activity]
) -> str:
    """Say what ended it, and how far its undo is."""
    can = [step for step in steps if step.undo is not None and step.status == status.COMPLETED]
    undone = [step for step in steps if step.kind == UNDO and step.completed_at is not None]
    text = f"{_cause(run)}, and its completed steps are being undone: {len(undone)} of {len(can)} so far."
    if run.worker is not None:
        return f"{text} {_running(run, workers, steps)}"
    if run.ready:
        return f"{text} {_ready(run, workers)}"
    return f"{text} It waits to retry {_last_try(calls)}; the next try is due {_due(run)}.{_overdue(run, workers)}"


def _cause(run: RunInfo) -> str:
    if run.reason == status.REASON_CANCELLED:
        return "It was cancelled"
    if run.reason == status.REASON_DEADLINE:
        return "It did not end before its deadline"
    return "It failed" if run.error is None else f"It failed with {_error(run.error)}"


# -- in a worker's hands -------------------------------------------------------------------------------------------


def _running(run: RunInfo, workers: Sequence[WorkerInfo], steps: Sequence[StepInfo]) -> str:
    owner = next((worker for worker in workers if worker.id == run.worker), None)
    if owner is None:
        return f"Its worker {run.worker} is not registered any more; {_reaped(workers)}"
    name, silent = worker_name(owner), lasting(owner.age_ms / 1000)
    if owner.state == "dead":
        lease = lasting(owner.lease_ms / 1000)
        return f"Its worker {name} is dead: silent for {silent}, with a lease of {lease}; {_reaped(workers)}"
    under_way = [
        f"{step.name!r} for {lasting((run.read_at - (step.started_at or run.read_at)).total_seconds())}"
        for step in steps
        if step.status in _UNDER_WAY
    ]
    doing = f", executing {listed(under_way)}" if under_way else ""
    text = f"It runs on {name}{doing}; the last heartbeat was {silent} ago."
    if owner.state == "stopping":
        text += " That worker is stopping: it finishes the run within its grace time, or gives it back."
    return text


def _reaped(workers: Sequence[WorkerInfo]) -> str:
    live = claiming_workers(workers)
    if not live:
        return "it will be queued again once there is a live worker: start one with `stepfast worker module:app`."
    longest = lasting(max(worker.lease_ms for worker in live) / 1000)
    return (
        f"a live worker queues it again within seconds (one that has just started: after its first lease, {longest})."
    )


def _asked(run: RunInfo) -> str:
    if run.asked == status.ASK_CANCEL:
        return " It was asked to cancel: it will be ended after the step that is being executed."
    return " It was asked to pause: it will be paused after the step that is being executed." if run.asked else ""


# -- ended ---------------------------------------------------------------------------------------------------------


def _ended(run: RunInfo, of_dag: Sequence[StepInfo]) -> str:
    again = f"`stepfast retry {run.id}`"
    error = _error(run.error) if run.error is not None else "no recorded error"
    when = _ago(run.completed_at, run)
    new = f"`stepfast retry --from-start {run.id}` starts a new run with the same input"
    cancel = f"`stepfast cancel {run.id}` gives it up and undoes its completed steps."
    if run.reason == status.REASON_CONTINUED:
        return f"It continued as run {run.output} {when}."
    if run.status == status.COMPLETED:
        return f"It completed {when}."
    if run.status == status.COMPENSATED:
        return f"{_cause(run)}, and its completed steps were undone ({when}); {new}."
    if run.reason == status.REASON_UNDO:
        return (
            f"Its completed steps were to be undone, but that failed: {error} ({when}). Undo them by hand, then {new}."
        )
    if of_dag and any(_was_undone(step) for step in of_dag):
        return f"{_cause(run)} ({when}), and a step of it was undone; {new}."
    if of_dag:
        return f"{_cause(run)} ({when}); {again} continues it with the steps that did not complete."
    if run.status == status.CANCELLED:
        return f"It was cancelled {when}; {again} queues it again."
    if run.reason == status.REASON_LOST:
        return (
            f"It is a dead letter: {count(run.losses, 'worker')} died while executing it, without a new record or "
            f"a wait in between. Find out what kills them (memory? a native crash?), then {again}. {cancel}"
        )
    if run.reason == status.REASON_NON_DETERMINISM:
        return (
            f"The code makes other calls than are recorded of this run: {error}. Deploy code that follows the recorded "
            f"steps (listed below), then {again}. {cancel}"
        )
    if run.reason == status.REASON_EXPIRED:
        return f"No worker picked it up in time, so it expired {when}; {again} queues it again, without an expiry."
    if run.reason == status.REASON_DEADLINE:
        return f"It did not end before its deadline ({when}); {again} queues it again with a new deadline."
    what = f"It failed with {error}"
    if run.reason == status.REASON_TIMEOUT:
        what = "Its last attempt took longer than its timeout"
    return f"{what} ({when}, attempt {run.attempt}); {again} queues it again, and its recorded steps are kept."


def _was_undone(step: StepInfo) -> bool:
    """Whether a step of a dag was undone, so that it cannot continue; a step whose error was caught can."""
    caught = (step.detail or "").startswith(f"{status.REASON_CAUGHT}:")
    return (step.status == status.COMPENSATED and not caught) or step.detail == status.REASON_UNDO


def _error(error: ErrorInfo) -> str:
    return shortened(f"{error.type}: {error.message}" if error.message else error.type, 400)


def _ago(when: datetime | None, run: RunInfo) -> str:
    return "at an unknown time" if when is None else ago(when, run.read_at)


TOLD = 3
"""Steps that are listed."""


def is_among_steps(run: RunInfo) -> bool:
    """Whether a dag run is shown by its steps: no worker holds the run itself, and it is not ready."""
    shown = (status.RUNNING, status.WAITING, status.QUEUED)
    return run.status in shown and run.worker is None and not run.ready


def why_dag(
    run: RunInfo,
    workers: Sequence[WorkerInfo],
    steps: Sequence[StepInfo],
    open_steps: Sequence[tuple[RunInfo, Sequence[StepInfo]]],
    more: int = 0,
) -> str:
    """Return the sentences for a dag run. ``open_steps`` are the first of the steps that wait for no other step, each
    as a run with its own steps; there are ``more``."""
    ended = sum(step.status in status.TERMINAL for step in steps)
    names = {step.child: step.name for step in steps}
    failed = [repr(step.name) for step in steps if step.status == status.FAILED]
    text = f"{ended} of {count(len(steps), 'step')} {'has' if ended == 1 else 'have'} ended"
    told = [f"{text}; {listed(failed)} failed." if failed else f"{text}."]
    told += [_step(run, step, names[step.id], workers, inside) for step, inside in open_steps]
    if more:
        told.append(f"{count(more, 'more step')} can be executed.")
    return " ".join(told)


def _step(run: RunInfo, step: RunInfo, name: str, workers: Sequence[WorkerInfo], inside: Sequence[StepInfo]) -> str:
    if step.waiting_for == f"{status.WAITING_SIGNAL}:{name}":
        command = f"stepfast signal {run.id} {shlex.quote(name)}"
        until = "" if step.due_at is None else f" until {clock(step.due_at)} ({ago(step.due_at, step.read_at)})"
        return f"{name!r} waits for an answer{until}: `{command} true` approves, and `false` in its place refuses."
    text = why(step, workers, inside, [])
    return f"{name!r}: {text[0].lower()}{text[1:]}"


def held_by(run: RunInfo, gate: Gate, usage: Usage) -> str | None:
    """Return why the limits of its queue keep a ready run from being claimed, as the end of a sentence; None if they do
    not."""
    if gate.paused:
        return f"its queue {gate.name!r} is paused: `stepfast queue resume {gate.name}` resumes it"
    limits = gate.limits
    if limits.concurrency is not None and usage.whole.running >= limits.concurrency:
        return f"its queue {gate.name!r} is at its limit of {limits.concurrency} ({usage.whole.running} running)"
    if run.concurrency_key is not None:
        key = usage.keys.get(run.concurrency_key, NOTHING)
        name = f"its key {run.concurrency_key!r}"
        if limits.key_concurrency is not None and key.running >= limits.key_concurrency:
            return f"{name} has {key.running} running, and queue {gate.name!r} allows {limits.key_concurrency} of a key"
        if told := _rated(name, limits.key_rate, key, usage.now):
            return told
    return _rated(f"its queue {gate.name!r}", limits.rate, usage.whole, usage.now)


def _rated(who: str, rate: Rate | None, count: Count, now: int) -> str | None:
    if rate is None or count.started < rate.count or count.next_at is None:
        return None
    return (
        f"{who} has started {count.started} in the last {lasting(rate.per)}, which is its rate; the next may start in "
        f"{lasting(max(0, count.next_at - now) / 1000)}"
    )


Redacts = Callable[[RunInfo, list[StepInfo]], tuple[RunInfo, list[StepInfo]]]
"""Returns a run and its steps, redacted."""


async def explain(
    app: Stepfast,
    run: RunInfo,
    steps: Sequence[StepInfo],
    calls: Sequence[Activity],
    children: Sequence[RunInfo],
    redacted: Redacts = lambda info, steps: (info, steps),
) -> str:
    """Return why a run does not move, or how it ended. Steps of a dag are runs that are read here; ``redacted`` redacts
    them."""
    workers = await (await app.store()).workers()
    of_dag = dag_steps(steps)
    if not of_dag and any(step.kind == UNKNOWN for step in steps):
        graph, damage = await stored_graph_of(app, run)
        if graph is None:
            return f"its graph {damage}, so that it cannot continue: cancel the run, or repair the row"
    if not of_dag or not is_among_steps(run):
        measured = await (await app.store()).measure(run.queue, run.concurrency_key) if run.ready else None
        return why(run, workers, steps, calls, children, None if measured is None else held_by(run, *measured))
    open_ = [step for step in of_dag if step.status not in status.TERMINAL and step.detail != status.WAITING_STEPS]
    able = [step.child for step in open_ if step.child]
    told = [redacted(info, await steps_of(app, info)) for info in await infos_of(app, able[:TOLD])]
    return why_dag(run, workers, of_dag, told, max(0, len(able) - TOLD))


async def steps_of(app: Stepfast, run: RunInfo) -> list[StepInfo]:
    """Return the steps of a run; remote ones that it waits for with whether a worker has begun them."""
    steps = await app.get(run.id).this.steps()
    if status.WAITING_REMOTE not in (run.waiting_for or ""):
        return steps
    return with_claims(steps, await started_remote_steps(app, run.id))


async def graph_of(app: Stepfast, run: RunInfo) -> Graph | None:
    """Return the graph that a dag run was started with, which may differ from that of the code."""
    return (await stored_graph_of(app, run)).graph


async def stored_graph_of(app: Stepfast, run: RunInfo) -> StoredGraph:
    """Return the graph that a dag run was started with, or why it cannot be read."""
    return read_graph(await (await app.store()).graph(run.workflow, run.version, run.id))


async def infos_of(app: Stepfast, ids: Sequence[str]) -> list[RunInfo]:
    """Return those of the runs that still exist."""
    found = []
    for run_id in ids:
        with contextlib.suppress(RunNotFound):
            found.append(await app.get(run_id).this.info())
    return found


def dag_steps(steps: Sequence[StepInfo]) -> list[StepInfo]:
    """Return the steps of the graph, without undos."""
    return [step for step in steps if step.kind == DAG_STEP]
