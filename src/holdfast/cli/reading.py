"""``runs`` and ``show``: lists of runs, and everything about one."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from ..errors import ConfigurationError
from ..model import status as statuses
from ..run import Activity, RunInfo, StepInfo
from .options import option
from .output import say, write_fields, write_heading, write_json, write_table, write_text
from .session import Session
from .text import ago, brief, clock, lasting, shortened
from .why import why


async def runs(
    session: Session,
    workflow: Annotated[str | None, option("--workflow", "-w")] = None,
    status: Annotated[str | None, option("--status", "-s", help=", ".join(statuses.RUN_STATUSES))] = None,
    queue: Annotated[str | None, option("--queue", "-q")] = None,
    tag: Annotated[str | None, option("--tag")] = None,
    reason: Annotated[str | None, option("--reason", help="Why it ended: code, timeout, deadline, expired…")] = None,
    key: Annotated[str | None, option("--key")] = None,
    dead: Annotated[bool, typer.Option("--dead", help="Dead letters: failed because workers died with them.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most so many.")] = 50,
    after: Annotated[str | None, option("--after", metavar="RUN", help="The page after this run.")] = None,
) -> None:
    """List runs, newest first."""
    if dead:
        if status not in (None, statuses.FAILED) or reason not in (None, statuses.REASON_LOST):
            raise ConfigurationError("--dead means --status failed --reason 'lost workers'; leave the others out")
        status, reason = statuses.FAILED, statuses.REASON_LOST
    async with session.reading() as app:
        found = await app.runs(
            workflow=workflow, status=status, queue=queue, tag=tag, reason=reason, key=key, after=after, limit=limit
        )
    if session.json:
        write_json(found)
        return
    if not found:
        say("no runs")
        return
    columns = ("id", "workflow", "queue", "status", "attempt", "created", "took", "key", "tags")
    write_table(columns, [_row(run) for run in found])
    if len(found) == limit:
        say(f"there may be more: --after {found[-1].id}")


def _row(run: RunInfo) -> tuple[str, ...]:
    queue = "" if run.queue == run.workflow else run.queue
    attempt = "" if run.attempt == 0 else str(run.attempt)
    created = ago(run.created_at, run.read_at)
    return run.id, run.workflow, queue, _status(run), attempt, created, _took(run), run.key or "", ", ".join(run.tags)


def _status(run: RunInfo) -> str:
    more = run.reason or run.waiting_for
    return f"{run.status} ({more})" if more else run.status


def _took(run: RunInfo) -> str:
    if run.started_at is None:
        return ""
    return lasting(((run.completed_at or run.read_at) - run.started_at).total_seconds())


async def show(
    session: Session,
    run: Annotated[str, typer.Argument(help="The run's id.")],
    activity: Annotated[bool, typer.Option("--activity", "-a", help="Also every call, failed tries included.")] = False,
) -> None:
    """Show one run: where it stands and why, its steps, its error."""
    async with session.reading() as app:
        handle = app.get(run)
        info = await handle.info()
        steps = await handle.steps()
        # The log of a long run is long; without being asked for, it is read only to explain a retry.
        calls = await handle.activity() if activity or info.waiting_for == statuses.WAITING_RETRY else []
        reason = why(info, await (await app.store()).workers(), steps, calls)
    if session.json:
        document = msgspec.to_builtins(info) | {"why": reason, "steps": steps}
        write_json(document | {"activity": [_call(c) for c in calls]} if activity else document)
        return
    write_fields(_fields(info, reason))
    if steps:
        write_heading("Steps")
        write_table(("step", "branch", "status", "tries", "took", "outcome"), [_step(s, info) for s in steps])
    if activity and calls:
        write_heading("Activity")
        columns = ("started", "call", "branch", "try", "status", "took", "parameters", "outcome")
        write_table(columns, [_activity(c) for c in calls])
    if info.error is not None and info.error.traceback:
        write_heading("Error")
        write_text(info.error.traceback)


def _fields(run: RunInfo, reason: str) -> list[tuple[str, str]]:
    return [
        ("run", run.id),
        ("workflow", f"{run.workflow} (version {run.version})"),
        ("status", _status(run)),
        ("why", reason),
        ("queue", run.queue + (f", priority {run.priority}" if run.priority else "")),
        ("key", run.key or ""),
        ("tags", ", ".join(run.tags)),
        ("parent", run.parent or ""),
        ("attempt", str(run.attempt or "")),
        ("losses", str(run.losses or "")),
        ("worker", run.worker or ""),
        ("created", _when(run.created_at, run)),
        ("started", _when(run.started_at, run)),
        ("ended", _ended(run)),
        ("deadline", _when(run.deadline, run)),
        ("input", brief(run.input)),
        ("output", brief(run.output) if run.status == statuses.COMPLETED else ""),
        ("error", "" if run.error is None else shortened(f"{run.error.type}: {run.error.message}")),
    ]


def _ended(run: RunInfo) -> str:
    took = f", took {_took(run)}" if run.completed_at is not None and run.started_at is not None else ""
    return _when(run.completed_at, run) + took


def _when(time: Any, run: RunInfo) -> str:
    return "" if time is None else f"{clock(time)} ({ago(time, run.read_at)})"


def _step(step: StepInfo, run: RunInfo) -> tuple[str, ...]:
    took = ((step.completed_at or run.read_at) - step.started_at).total_seconds()
    tries = str(step.attempts or "")
    return step.name, step.branch, step.status, tries, lasting(took), _outcome(step.error, step.output, step.detail)


def _activity(call: Activity) -> tuple[str, ...]:
    name = f"{call.name} (the run itself)" if call.position is None else call.name
    parameters = "" if call.parameters is None else brief(call.parameters)
    took = lasting(call.duration.total_seconds())
    outcome = _outcome(call.error, call.result)
    return clock(call.started_at), name, call.branch, str(call.attempt), call.status, took, parameters, outcome


def _outcome(error: Any, value: Any, detail: str | None = None) -> str:
    if error is not None:
        return shortened(f"{error.type}: {error.message}")
    return shortened(detail) if detail else "" if value is None else brief(value)


def _call(call: Activity) -> dict[str, Any]:
    """With the duration in seconds, which every language reads."""
    fields: dict[str, Any] = msgspec.to_builtins(call)
    return fields | {"duration": call.duration.total_seconds()}
