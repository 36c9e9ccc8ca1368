"""The checks of ``stepfast doctor`` and of the console's system page, each with what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..app import Stepfast
from ..errors import NamespaceMoved, SchemaError, StepfastError
from ..model import status
from ..model.health import claiming_workers, serves
from ..model.ids import new_id
from ..model.queue_config import Gate
from ..model.records import Lane, WorkerInfo
from ..model.rows import Definition
from ..model.schedules import ScheduleRow
from ..model.urls import redact, scrub
from ..runtime import all_namesakes, shown_limits
from ..store import Store
from ..store.answers import LONG_AT_WORK, AtWork, Check
from ..store.migrations import refuse_missing, refuse_too_new
from ..telemetry.gauges import MOST
from .text import at_work_in_words, count, lasting, listed, live_workers, worker_name


async def examine(app: Stepfast, store: Store) -> list[Check]:
    """Check the connection, the server, the tables and the workers."""
    checks = [Check("connection", True, redact(app.url.text)), *await store.doctor()]
    if any(not check.ok for check in checks if check.name == "encoding"):
        return checks
    schema = await _schema(store, app.namespace)
    checks.append(schema)
    return checks + await _inhabitants(store, app) if schema.ok else checks


def unreachable(error: StepfastError) -> Check:
    """Return the check for a database that does not answer, or without its tables."""
    if isinstance(error, NamespaceMoved):
        return Check("schema", False, scrub(str(error)), "name that database, or take the move back")
    if isinstance(error, SchemaError):
        found, _, advice = str(error).rpartition(": ")
        return Check("schema", False, scrub(found), advice)
    return Check("connection", False, scrub(str(error)), "check the address, the server and the credentials")


def check_shape(check: Check) -> dict[str, Any]:
    """Return a check as JSON."""
    advice = None if check.ok else check.advice or None
    return {"check": check.name, "ok": check.ok, "found": check.found, "advice": advice}


async def _schema(store: Store, namespace: str) -> Check:
    state = await store.schema_state()
    try:
        refuse_too_new(state)
        refuse_missing(state, namespace)
    except (SchemaError, NamespaceMoved) as error:
        return unreachable(error)
    return Check("schema", True, f"namespace {namespace!r} is at version {state.version}, up to date")


async def _inhabitants(store: Store, app: Stepfast) -> list[Check]:
    definitions, found = await store.definitions(), await store.workers()
    tick = await store.tick(new_id(), None, True)  # all that is ready, also steps that no code has any more
    ready = [*tick.lanes, *tick.limited]
    overdue = tick.due and not claiming_workers(found)
    suspects = await store.suspects()
    schedules = await store.schedules()
    dead = await store.runs(status=status.FAILED, reason=status.REASON_LOST, limit=1)
    return [
        _workers_check(found, bool(ready) or tick.suspects or overdue),
        _definitions_check(definitions, found, app),
        _unserved_check(ready, suspects, found),
        *_queues_check(await store.queues(), found),
        *_namesakes_check(found),
        _suspects_check(suspects),
        _long_check(await store.long_at_work(LONG_AT_WORK, MOST)),
        _schedules_check(schedules, found),
        Check("dead_letters", True, "there are some: `stepfast runs --dead`" if dead else "none"),
    ]


def _workers_check(found: Sequence[WorkerInfo], needed: bool) -> Check:
    live = live_workers(found)
    dead = [f"{worker_name(w)} (silent for {lasting(w.age_ms / 1000)})" for w in found if w.state == "dead"]
    text = f"{len(live)} live" + (f"; dead: {listed(dead)}" if dead else "")
    if not live and needed:
        return Check("workers", False, f"{text}, and runs are due", "start one with `stepfast worker module:app`")
    return Check("workers", True, text)


def _definitions_check(definitions: Sequence[Definition], found: Sequence[WorkerInfo], app: Stepfast) -> Check:
    live = claiming_workers(found)
    text = f"{len(definitions)} known"
    unserved = [d.name for d in definitions if not any(d.name in w.workflows for w in live)]
    if unserved:
        text += f"; no live worker has {listed(unserved)}"
    other = [
        name
        for name, workflow in app.workflows.items()
        if any(w.workflows.get(name, workflow.version) != workflow.version for w in live)
    ]
    if other:
        text += f"; live workers have other code of {listed(other)} than this"
    return Check("workflows", True, text)


def _namesakes_check(found: Sequence[WorkerInfo]) -> list[Check]:
    """Two services with one name for different code execute each other's runs."""
    twice = [f"{n.workflow!r} is from {n.module} and from {n.other}" for n in all_namesakes(found)]
    if not twice:
        return []
    advice = "if they are two services, give each a namespace of its own; if a deploy renamed a module, let it finish"
    return [Check("names", False, f"live workers have different code of one name: {listed(twice)}", advice)]


def _queues_check(said: Sequence[Gate], found: Sequence[WorkerInfo]) -> list[Check]:
    """List paused queues, which may have been forgotten, and queues for which live workers declare different limits."""
    paused = [repr(gate.name) for gate in said if gate.paused]
    checks = [Check("paused_queues", True, f"paused: {listed(paused)}")] if paused else []
    declared: dict[str, set[str]] = {}
    for worker in claiming_workers(found):
        for queue, limits in worker.limits.items():
            declared.setdefault(queue, set()).add(shown_limits(limits))
    differ = [f"{queue!r} as {' and as '.join(sorted(all_))}" for queue, all_ in declared.items() if len(all_) > 1]
    if differ:
        advice = "if a deploy is under way, let it finish; else let one deployment declare the queue"
        checks.append(Check("limits", False, f"live workers declare different limits: {listed(differ)}", advice))
    return checks


def _suspects_check(suspects: Sequence[tuple[str, str, int]]) -> Check:
    """List runs that workers died with. They are no fault of the set-up, but explain why runs wait."""
    if not suspects:
        return Check("suspects", True, "none")
    total = sum(number for _, _, number in suspects)
    where = listed([f"{number} of {workflow!r} in queue {queue!r}" for queue, workflow, number in suspects])
    return Check("suspects", True, f"workers died with {count(total, 'run')} that wait to be tried in groups: {where}")


def _long_check(found: Sequence[AtWork]) -> Check:
    if not found:
        return Check("long_running", True, f"nothing has been executing for more than {lasting(LONG_AT_WORK)}")
    return Check(
        "long_running", True, f"executing for a long time: {listed([at_work_in_words(each) for each in found])}"
    )


def _schedules_check(schedules: Sequence[ScheduleRow], found: Sequence[WorkerInfo]) -> Check:
    """Check schedules: one that cannot be started is a fault, one that no worker declares is listed."""
    if not schedules:
        return Check("schedules", True, "none")
    failing = [f"{row.name!r} ({row.error})" for row in schedules if row.error is not None]
    if failing:
        advice = "bring the workflow back, or `stepfast schedule delete` them"
        return Check("schedules", False, f"cannot be started: {listed(failing)}", advice)
    awake = {name for worker in live_workers(found) for name in worker.schedules}
    asleep = [repr(row.name) for row in schedules if row.declared and row.name not in awake]
    text = f"{len(schedules)} known" + (f"; no live worker declares {listed(asleep)}" if asleep else "")
    return Check("schedules", True, text)


def _unserved_check(
    lanes: Sequence[Lane], suspects: Sequence[tuple[str, str, int]], found: Sequence[WorkerInfo]
) -> Check:
    live = claiming_workers(found)
    wanted = {(lane.workflow, lane.queue) for lane in lanes} | {(workflow, queue) for queue, workflow, _ in suspects}
    vain = sorted(each for each in wanted if not any(serves(w, *each) for w in live))
    if not vain:
        return Check("queues", True, "live workers serve every ready run" if wanted else "no run is ready")
    text = listed([f"{workflow!r} in queue {queue!r}" for workflow, queue in vain])
    return Check(
        "queues",
        False,
        f"runs are ready that no live worker serves: {text}",
        "start a worker with that code for that queue: `stepfast worker module:app --queues …`",
    )
