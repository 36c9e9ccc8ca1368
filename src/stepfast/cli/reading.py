"""``runs`` and ``show``: lists of runs, and everything about one."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..errors import ConfigurationError
from ..model import status as statuses
from ..model.cron import clock
from ..model.status import DAG_STEP
from ..model.tracebacks import own_code_only
from ..monitoring.explain import dag_steps, explain, graph_of, infos_of, steps_of, unread, waits_for
from ..monitoring.text import (
    ago,
    brief,
    call_shape,
    executor,
    executor_name,
    explained,
    find_run,
    lasting,
    outcome_of,
    printable,
    run_shape,
    shortened,
)
from ..reports import Activity, RunInfo
from .graphs import write_standing
from .lists import took, write_runs
from .options import KeyOption, RunArgument, option, time_option
from .output import say, write_fields, write_heading, write_json, write_table, write_text
from .session import Session
from .steps import write_children, write_steps
from .svg import SvgOption, refuse_both, write_timeline

_ORDERS = ("newest", "oldest")
_CHILDREN = 20
"""So many children are looked up; the ids of all are among the steps."""


async def runs(
    session: Session,
    workflow: Annotated[str | None, option("--workflow", "-w")] = None,
    status: Annotated[str | None, option("--status", "-s", help=", ".join(statuses.RUN_STATUSES))] = None,
    queue: Annotated[str | None, option("--queue", "-q")] = None,
    tag: Annotated[str | None, option("--tag")] = None,
    reason: Annotated[str | None, option("--reason", help=", ".join(statuses.REASONS))] = None,
    key: Annotated[str | None, option("--key")] = None,
    dead: Annotated[bool, typer.Option("--dead", help="Dead letters: failed because workers died with them.")] = False,
    since: Annotated[float | None, time_option("--since", help="Created within the last 10m, 2h, 1d …")] = None,
    older_than: Annotated[
        float | None, time_option("--older-than", help="Created longer ago than 10m, 2h, 1d …")
    ] = None,
    sort: Annotated[str, typer.Option("--sort", help=" or ".join(_ORDERS))] = _ORDERS[0],
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most so many.")] = 50,
    after: Annotated[str | None, option("--after", metavar="RUN", help="The page after this run.")] = None,
) -> None:
    """List runs, newest first. Failed ones are listed with their error, all with their key or the beginning of their
    input where there is room."""
    if dead:
        if status not in (None, statuses.FAILED) or reason not in (None, statuses.REASON_LOST):
            raise ConfigurationError("--dead means --status failed --reason workers_lost; leave the others out")
        status, reason = statuses.FAILED, statuses.REASON_LOST
    if sort not in _ORDERS:
        raise ConfigurationError(f"runs can be sorted {' or '.join(_ORDERS)}, not {sort!r}")
    async with session.looking() as app:
        found = await app.runs(
            workflow=workflow, status=status, queue=queue, tag=tag, reason=reason, key=key, limit=limit, since=since,
            older_than=older_than, oldest_first=sort == _ORDERS[1],
            after=None if after is None else (await find_run(app, after)).id,
        )  # fmt: skip
    if session.json:
        write_json(found)
        return
    if not found:
        say("no runs")
        return
    write_runs(found)
    if len(found) == limit:
        say(f"there may be more: --after {found[-1].id}")


async def show(
    session: Session,
    run: RunArgument,
    key: KeyOption = None,
    activity: Annotated[bool, typer.Option("--activity", "-a", help="Also every call, failed tries included.")] = False,
    traceback: Annotated[bool, typer.Option("--traceback", help="The error with the library's own frames.")] = False,
    svg: SvgOption = None,
) -> None:
    """Show one run: where it stands and why, its steps, its children, what it has set, its error; or, with --svg,
    when it did what."""
    if svg is not None:
        refuse_both(session, svg, "run")
        await write_timeline(session, run, svg, key)
        return
    async with session.looking() as app:
        handle = await find_run(app, run, key)
        info = await handle.info()
        steps = await steps_of(app, info)
        values = await handle.values()
        # The log of a long run is long; without being asked for, it is read only to explain a retry.
        calls = await handle.activity() if activity or waits_for(info, statuses.WAITING_RETRY) else []
        mail = await (await app.store()).unread(info.id) if info.completed_at is None else []
        graph = await graph_of(app, info) if dag_steps(steps) else None
        started = [step.child for step in steps if step.child is not None and step.kind != DAG_STEP]
        children = await infos_of(app, started[-_CHILDREN:])
        reason = await explain(app, info, steps, calls, children)
    if session.json:
        document = run_shape(info, reason, steps, started, values, mail)
        write_json(document | {"activity": [call_shape(c) for c in calls]} if activity else document)
        return
    write_fields(_fields(info, reason, unread(info, mail)))
    if graph is None:
        write_steps(steps, info)
    else:
        write_standing(graph, steps, info)
    write_children(children, len(started) - len(children))
    if values:
        write_heading("Values")
        write_fields([(printable(key), brief(value)) for key, value in values.items()])
    if activity and calls:
        write_heading("Activity")
        columns = ("started", "call", "branch", "try", "status", "took", "ran on", "parameters", "outcome")
        write_table(columns, [_activity(c) for c in calls])
    if info.error is not None and info.error.traceback:
        write_heading("Error")
        write_text(info.error.traceback if traceback else own_code_only(info.error.traceback))


def _fields(run: RunInfo, reason: str, mail: str) -> list[tuple[str, str]]:
    continued = run.reason == statuses.REASON_CONTINUED
    return [
        ("run", run.id),
        ("workflow", f"{run.workflow} (version {run.version})"),
        ("status", explained(run)),
        ("why", reason),
        ("mail", mail),
        ("queue", run.queue + (f", priority {run.priority}" if run.priority else "")),
        ("key", run.key or ""),
        ("limited as", run.concurrency_key or ""),
        ("tags", ", ".join(run.tags)),
        ("schedule", _schedule(run)),
        ("asked", f"to {run.asked}" if run.asked else ""),
        ("parent", run.parent or ""),
        ("origin", run.origin or ""),
        ("goes on as", str(run.output) if continued else ""),
        ("attempt", str(run.attempt or "")),
        ("losses", str(run.losses or "")),
        ("worker", run.worker or ""),
        ("ran on", executor(run.executed_by)),
        ("created", _when(run.created_at, run)),
        ("started", _when(run.started_at, run)),
        ("paused", _when(run.paused_at, run)),
        ("ended", _ended(run)),
        ("deadline", _when(run.deadline, run)),
        ("input", brief(run.input)),
        ("output", brief(run.output) if run.status == statuses.COMPLETED and not continued else ""),
        ("error", "" if run.error is None else shortened(f"{run.error.type}: {run.error.message}")),
    ]


def _schedule(run: RunInfo) -> str:
    """Which schedule started it, and for which tick."""
    if run.schedule is None:
        return ""
    return f"{run.schedule}, " + ("triggered by somebody" if run.tick is None else f"for its tick of {clock(run.tick)}")


def _ended(run: RunInfo) -> str:
    span = f", took {took(run)}" if run.completed_at is not None and run.started_at is not None else ""
    return _when(run.completed_at, run) + span


def _when(time: Any, run: RunInfo) -> str:
    return "" if time is None else f"{clock(time)} ({ago(time, run.read_at)})"


def _activity(call: Activity) -> tuple[str, ...]:
    name = f"{call.name} (the run itself)" if call.position is None else call.name
    parameters = "" if call.parameters is None else brief(call.parameters)
    queued = "" if call.queue_wait is None else f", {lasting(call.queue_wait)} of it queued"
    took = lasting(call.duration.total_seconds()) + queued
    outcome, who = outcome_of(call.error, call.result), executor_name(call.executed_by)
    return clock(call.started_at), name, call.branch, str(call.attempt), call.status, took, who, parameters, outcome
