"""What people read of remote steps, beside what is recorded of every step: where one is, and how long it waited."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from .engine.history import UNDO
from .engine.remote_step import REMOTE
from .model import remote_steps as remote
from .model import status
from .model.cron import clock
from .model.moments import moment
from .model.records import StepRecord
from .model.remote_steps import RemoteStep
from .reports import Activity, StepInfo

Address = tuple[str, int]


def may_be_remote(records: Iterable[StepRecord]) -> bool:
    """Whether it is worth asking: undos may be served elsewhere, too."""
    return any(record.kind in (REMOTE, UNDO) for record in records)


def with_remote(steps: Sequence[StepInfo], rows: Sequence[RemoteStep]) -> list[StepInfo]:
    """The steps, and of those that are served elsewhere where they are and how long they waited for a worker."""
    last = {(row.branch, row.position): row for row in _last(rows)}
    return [_told(step, row) if (row := last.get((step.branch, step.position))) else step for step in steps]


def with_remote_inside(steps: Sequence[StepInfo], rows: Sequence[RemoteStep]) -> list[StepInfo]:
    """The steps of a dag run, and of those that are served elsewhere how long they waited for a worker. Of one whose
    code calls several remote steps that cannot be said in a number."""
    inside: dict[str | None, list[RemoteStep]] = {}
    for row in _last(rows):
        inside.setdefault(row.run_id, []).append(row)
    return [
        replace(step, queue_wait=_seconds(found[0])) if len(found := inside.get(step.child, [])) == 1 else step
        for step in steps
    ]


def with_claims(steps: Sequence[StepInfo], begun: Mapping[Address, bool]) -> list[StepInfo]:
    """The steps, and of remote ones whether a worker has begun them."""
    words = {True: "; a worker has begun it", False: "; no worker has begun it"}
    return [
        replace(step, detail=step.detail + words[begun[address]])
        if (address := (step.branch, step.position)) in begun and step.detail
        else step
        for step in steps
    ]


def with_queue_waits(calls: Sequence[Activity], rows: Sequence[RemoteStep]) -> list[Activity]:
    """The calls, and of the last attempts of remote steps how long they waited for a worker."""
    waits = {
        (row.run_id, row.branch, row.position, row.attempt): _seconds(row)
        for row in _last(rows)
        if row.queue_ms is not None
    }
    return [replace(call, queue_wait=waits.get(_address(call))) for call in calls] if waits else list(calls)


def _address(call: Activity) -> tuple[str, str, int, int]:
    """The run, branch, position and try of a call: its id has them, also of one in a step of a dag."""
    run_id, rest = call.id.split(":", 1)
    branch, position, _, number = rest.rsplit(":", 3)
    return run_id, branch, int(position), int(number)


def _last(rows: Sequence[RemoteStep]) -> list[RemoteStep]:
    """What was sent last for each address in the code of each run."""
    ordered = sorted(rows, key=lambda row: abs(row.seq))
    return list({(row.run_id, row.branch, row.position): row for row in ordered}.values())


def _told(step: StepInfo, row: RemoteStep) -> StepInfo:
    detail = _where(row) if step.status in (status.WAITING, status.COMPENSATING) else step.detail
    return replace(step, detail=detail, queue_wait=_seconds(row))


def _where(row: RemoteStep) -> str | None:
    """Where a step is that is not over."""
    attempt = f"attempt {row.attempt} of {row.retries + 1}" if row.retries else "it"
    if row.state == remote.SENT:
        return f"{attempt} was sent to group {row.group!r} at {clock(moment(row.dispatched_at))}"
    if row.state == remote.OUTBOX and row.due_at is not None:
        return f"{attempt} is to be sent to group {row.group!r} at {clock(moment(row.due_at))}"
    return "its outcome is there, and will be recorded" if row.state == remote.SETTLED else None


def _seconds(row: RemoteStep) -> float | None:
    return None if row.queue_ms is None else row.queue_ms / 1000
