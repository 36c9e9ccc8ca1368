"""Remote steps: they go out with the record that they have begun, and what comes of them goes into mailboxes.

The rows of runs are locked before those of remote steps, and these before what is the transport's. To close a step its
run is not locked: its outcome is only left in the mailbox, and delivered as other mail is.
"""

from __future__ import annotations

import random as _random
from collections.abc import Collection, Sequence
from typing import Any

from ...model import remote_steps as remote
from ...model.records import StepWith
from ...model.remote_steps import Judged, RemoteStep, Result, Task
from ...settings import FORMAT
from ..answers import Due, Judgement, Key
from .base import Flow, Remove, Rows, SendTasks, ask, lock_free, put

# -- out ---------------------------------------------------------------------------------------------------


def send_out(entries: Sequence[StepWith], now: int) -> Flow[None]:
    """Insert what goes out with these records, and the tasks too if they go over the same database. The runs are
    locked: no other process gives numbers to their steps."""
    again = [e for e in entries if e.sends[0].attempt > 1]
    yield from put("withdraw_at", [(e.run_id, e.step.branch, e.step.position, now) for e in again])
    rows = yield from ask("remote_last", sorted({entry.run_id for entry in entries}))
    numbers = {row[0]: _Numbers(row[1], row[2]) for row in rows}
    steps = [_begun(entry, numbers[entry.run_id], now) for entry in entries]
    yield from put("put_remote", [_values(step) for step in steps])
    tasks = [step.task for step in steps if step.state == remote.SENT]
    if tasks:
        yield SendTasks(tasks)


class _Numbers:
    """Gives numbers to the remote steps of one run: from 0 upward, and below 0 for undos."""

    def __init__(self, last: int | None, first: int | None) -> None:
        self._last = -1 if last is None else max(last, -1)
        self._first = 0 if first is None else min(first, 0)

    def next(self, undo: bool) -> int:
        """A number that no other step of the run has."""
        if undo:
            self._first -= 1
            return self._first
        self._last += 1
        return self._last


def _begun(entry: StepWith, numbers: _Numbers, now: int) -> RemoteStep:
    (send,) = entry.sends
    address = (entry.step.branch, entry.step.position)
    state = remote.SENT if send.joined else remote.OUTBOX
    return RemoteStep(
        entry.run_id, numbers.next(send.undo), send.id, *address, entry.claim, send.attempt, send.name, send.group,
        send.carrier, send.input, state, 1, send.retries, send.backoff, now, now + send.look_ms if send.joined else now,
        trace=send.trace,
    )  # fmt: skip


# -- what is due ---------------------------------------------------------------------------------------------


def send_due(carrier: str, joined: bool, sweep_ms: int, way_ms: int, limit: int) -> Flow[Due]:
    """Send what is due; return what else has to be done. Each row is put off, so that no other worker does the same at
    the same time. What goes over another database is sent after this commit, and may be on its way for up to
    ``way_ms``: if that fails, it is found to be missing."""
    steps, now = _read((yield from ask("due_remote", carrier, limit)))
    if not steps:
        return Due()
    out = [step for step in steps if step.state == remote.OUTBOX]
    after = [remote.sent(step, now, sweep_ms if joined else way_ms) for step in out]
    after += [remote.looked_for(step, now, sweep_ms) for step in steps if step.state != remote.OUTBOX]
    yield from _change(after)
    tasks = [step.task for step in out]
    if tasks and joined:
        yield SendTasks(tasks)
    doubtful = [step.task for step in steps if step.state == remote.SENT]
    over = [step.step_id for step in steps if step.state not in remote.OPEN]
    return Due([] if joined else tasks, doubtful, over, len(tasks))


def send_again(tasks: Sequence[Task], why: str) -> Flow[int]:
    """Tasks that have vanished: if they are still waited for, they are due at once; how many runs are notified that
    theirs will never come."""
    steps, now = yield from _still_out(tasks)
    return (yield from _write([remote.send_again(step, now, why) for step in steps], now))


def handed_over(tasks: Sequence[Task], keeps_ms: int) -> Flow[None]:
    """Tasks of a transport that cannot be queried for them: they count as there while it keeps them."""
    steps, now = yield from _still_out(tasks)
    yield from _change([remote.handed_over(step, now, keeps_ms) for step in steps])


def refuse(tasks: Sequence[Task], why: str) -> Flow[int]:
    """Tasks that the transport does not take; how many runs are notified of it."""
    steps, now = yield from _still_out(tasks)
    return (yield from _write([remote.refused(step, now, why) for step in steps], now))


def _still_out(tasks: Sequence[Task]) -> Flow[tuple[list[RemoteStep], int]]:
    """The remote steps of tasks of which just this attempt is out, and the time."""
    attempts = {task.step_id: task.attempt for task in tasks}
    steps, now = _read((yield from ask("lock_remote", _keys(attempts))))
    return [step for step in steps if step.state == remote.SENT and step.attempt == attempts[step.step_id]], now


# -- back ----------------------------------------------------------------------------------------------------


def judge_results(results: Sequence[Result], joined: bool, sweep_ms: int, random: _random.Random) -> Flow[Judgement]:
    """Decide what results mean. If they are in the same database they are deleted with that; else afterwards, and
    the process that finds them a second time finds the step over. If none deletes them, the next sweep does."""
    found = {key: result for result in results if (key := remote.key_of(result.step_id)) is not None}
    if not found:
        return Judgement(0, [])
    steps, now = _read((yield from ask("lock_remote", Rows(sorted(found)))))
    judged = [remote.judge(step, found[step.run_id, step.seq], now, random) for step in steps]
    if not joined:
        judged = [remote.to_be_cleared(each, now + sweep_ms) for each in judged]
    told = yield from _write(judged, now)
    if joined:
        yield Remove(results)
    again = [j.step for j in judged if j.outcome is not None and (j.step.attempt > 1 or j.step.resent)]
    return Judgement(told, [step.step_id for step in again])


def withdraw(keys: Sequence[Key]) -> Flow[int]:
    """Mark remote steps that are not waited for any more to be taken back; how many. Their runs are locked first: an
    operator may be about to retry one."""
    runs = {run_id for run_id, _ in keys}
    locked = set((yield from lock_free(runs)).runs)
    locked |= {row[0] for row in (yield from ask("gone_runs", sorted(runs - locked)))} if runs - locked else set()
    mine = Rows(key for key in keys if key[0] in locked)
    if not mine:
        return 0
    steps, now = _read((yield from ask("over_among", mine)))
    yield from _change([remote.withdrawn(step, now) for step in steps])
    return len(steps)


def clear(step_ids: Collection[str]) -> Flow[None]:
    """What was withdrawn, or is over, has left nothing behind."""
    if not step_ids:
        return
    steps, now = _read((yield from ask("lock_remote", _keys(step_ids))))
    over = [step for step in steps if step.state not in remote.OPEN and step.due_at is not None]
    yield from _change([remote.cleared(step, now) for step in over])
    if any(step.state == remote.WITHDRAWN for step in over):  # a run that was deleted has left its rows for this
        gone = yield from ask("gone_runs", sorted({step.run_id for step in over}))
        yield from put("remove_remote_steps", [(row[0],) for row in gone])


# -- rows ----------------------------------------------------------------------------------------------------


def _write(judged: Sequence[Judged], now: int) -> Flow[int]:
    """How many runs are notified of an outcome."""
    yield from put("record_tries", [_try(j.step, j.failed_try, now) for j in judged if j.failed_try is not None])
    ended = [
        (j.step.run_id, j.step.id, remote.label(j.step, j.outcome), j.outcome.output, j.outcome.error, now)
        for j in judged
        if j.outcome is not None
    ]
    yield from put("leave_outcomes", ended)
    yield from _change([j.step for j in judged])
    return len(ended)


def _try(step: RemoteStep, error: str, now: int) -> tuple[Any, ...]:
    return (
        step.run_id, step.claim, step.branch, step.position, step.run_attempt, step.attempt - 1, step.name, error, None,
        FORMAT, step.dispatched_at, now, step.due_at,
    )  # fmt: skip


def _read(rows: Sequence[Any]) -> tuple[list[RemoteStep], int]:
    """Rows of (time, step)."""
    return [RemoteStep(*row[1:]) for row in rows], rows[0][0] if rows else 0


def _keys(step_ids: Collection[str]) -> Rows:
    return Rows(sorted(key for step_id in step_ids if (key := remote.key_of(step_id)) is not None))


def _values(step: RemoteStep) -> tuple[Any, ...]:
    return tuple(getattr(step, name) for name in step.__struct_fields__)


def _change(steps: Sequence[RemoteStep]) -> Flow[None]:
    rows = [
        (s.run_id, s.seq, s.state, s.attempt, s.dispatched_at, s.due_at, s.resent, s.queue_ms, s.settled_at)
        for s in steps
    ]
    yield from put("change_remote", rows)
