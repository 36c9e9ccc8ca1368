"""What a flush records: steps, and what goes with them.

A step may take mail, start children and send remote steps; beside steps there are failed tries, progress and values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from ...model import status
from ...model.records import Batch, FailedTry, FlushAnswer, StepDone, StepRunning, StepWith
from .remote_steps import send_out
from .requests import Flow, Rows, Start, ask, put

_DURATION = StepDone._fields.index("duration_ms")


def bar(batch: Batch, answer: FlushAnswer) -> Flow[None]:
    """A run that is being cancelled starts no more children, and sends no more remote steps: they would not be
    cancelled with it. Its entries are taken out. What an earlier flush has written, whose reply was lost, is there
    already, and stays in; remote steps that went out with it are not sent again."""
    joint = batch.joint
    doomed = [e for e in joint if (e.starts or e.sends) and answer.asked.get(e.run_id) == status.ASK_CANCEL]
    sending = [e for e in joint if e.sends]
    if not doomed and not sending:
        return
    rows = yield from ask("own_steps", Rows(e.step[:4] for e in {id(e): e for e in (*doomed, *sending)}.values()))
    written = {(row[0], row[1], row[2]) for row in rows}
    barred = {id(e): e.run_id for e in doomed if (e.run_id, e.step.branch, e.step.position) not in written}
    for entry in sending:
        if (entry.run_id, entry.step.branch, entry.step.position) in written:
            entry.sends = []
    batch.joint = [e for e in batch.joint if id(e) not in barred]
    answer.barred = set(barred.values())


def record(batch: Batch, answer: FlushAnswer) -> Flow[None]:
    """Everything in a batch that passed the fence but transitions, in the order in which it belongs."""
    rows = step_rows(batch, answer.now_ms)
    if (yield from put("record_steps", rows)) < len(rows):
        yield from find_earlier(steps_of(batch), answer)
    yield from record_beside(batch, answer.now_ms)


def find_earlier(steps: Sequence[StepDone], answer: FlushAnswer) -> Flow[None]:
    """When these steps were recorded, some of them by an earlier flush whose reply was lost. Whoever waits for a record
    is told the time that a replay will find."""
    if not steps:
        return
    rows = yield from ask("recorded_at", Rows((step.run_id, step.branch, step.position) for step in steps))
    answer.earlier = {(row[0], row[1], row[2]): row[3] for row in rows if row[3] != answer.now_ms}


def record_beside(batch: Batch, now: int) -> Flow[None]:
    """What goes with the recorded steps, and what is recorded beside them."""
    yield from _join(batch.joint)
    yield from send_out(batch.joint, now)
    yield from put("record_tries", [_try_row(entry, now) for entry in batch.tries])
    yield from put("record_progress", [_running_row(entry, now) for entry in _latest(batch.running)])
    latest = {(v.run_id, v.key): v for v in batch.values}
    yield from put("set_values", [(v.run_id, v.key, v.value, v.format, now) for v in latest.values()])


def steps_of(batch: Batch) -> list[StepDone]:
    """All records of steps in a batch, those among them that something goes with last."""
    return [*batch.steps, *(entry.step for entry in batch.joint)] if batch.joint else batch.steps


def step_rows(batch: Batch, now: int) -> list[tuple[Any, ...]]:
    """All records of steps in a batch as rows, made at a time."""
    rows = [step_row(step, now) for step in batch.steps]
    return rows + [step_row(entry.step, now, entry.takes[0] if entry.takes else None) for entry in batch.joint]


def step_row(step: StepDone, now: int, mail: str | None = None) -> tuple[Any, ...]:
    """A record that is made now, as a row: its fields in their order, without the duration; then the mail that it took,
    and when the step began and ended."""
    return (*step[:_DURATION], *step[_DURATION + 1 :], mail, now - step.duration_ms, now)


def _join(entries: Sequence[StepWith]) -> Flow[None]:
    """The mail that records take, and the children that they start."""
    yield from put("take_mail", [(entry.run_id, mail) for entry in entries for mail in entry.takes])
    children = [run for entry in entries for run in entry.starts]
    if children:
        yield Start(children)


def _latest(entries: Iterable[StepRunning]) -> Iterable[StepRunning]:
    """One word of each step: the latest, with what an earlier one has said that it does not repeat."""
    latest: dict[tuple[str, str, int], StepRunning] = {}
    for entry in entries:
        address = (entry.run_id, entry.branch, entry.position)
        if (before := latest.get(address)) is not None:
            detail = before.detail if entry.detail is None else entry.detail
            data, format_ = (before.data, before.format) if entry.data is None else (entry.data, entry.format)
            entry = replace(entry, detail=detail, data=data, format=format_, since_ms=before.since_ms)
        latest[address] = entry
    return latest.values()


def _try_row(e: FailedTry, now: int) -> tuple[Any, ...]:
    return (
        e.run_id, e.claim, e.branch, e.position, e.attempt, e.number, e.name, e.error, e.arguments, e.format,
        now - e.duration_ms, now, now + e.retry_ms if e.retry_ms else None,
    )  # fmt: skip


def _running_row(e: StepRunning, now: int) -> tuple[Any, ...]:
    return e.run_id, e.branch, e.position, e.name, e.detail, e.data, e.format, now - e.since_ms, now
