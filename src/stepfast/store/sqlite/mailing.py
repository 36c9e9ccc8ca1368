"""Mailboxes: looking into them, sending, and delivering what was only inserted."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from ...model import status
from ...model.records import Asked, Lane, Look, Mail, Mailbox
from ..protocol import Delivery, holds_all, mailbox_full
from .operating import Standing, cancel, standing
from .wide import execute_wide, fetch_wide

Letter = tuple[str, str]
"""(id, kind)"""


def mail(database: sqlite3.Connection, sql: dict[str, str], looks: Sequence[Look], most: int) -> dict[str, Mailbox]:
    """Two questions for all of them, the counters first: no snapshot holds them together. Large letters apart."""
    ids = _json([look.run_id for look in looks])
    boxes = {run_id: Mailbox(wakes, ends) for run_id, wakes, ends in fetch_wide(database, sql["counters"], (ids,))}
    asked = _json([(look.run_id, look.names) for look in looks])
    seen = _json([mail_id for look in looks for mail_id in look.seen])
    letters = sorted(fetch_wide(database, sql["mail"], (asked, seen, most)), key=lambda row: (row[0], row[2]))
    for _, run_id, mail_id, kind, name, value, error, format_, large in letters:
        if large:
            found = database.execute(sql["letter"], (run_id, mail_id)).fetchone()
            if found is None:
                continue  # taken meanwhile
            (value,) = found
        if run_id in boxes:
            boxes[run_id].mail.append(Mail(run_id, mail_id, kind, name, value, error, format_))
    for box in boxes.values():
        box.more = not holds_all([letter for letter in box.mail if letter.kind == status.MAIL_CHILD], most)
    return boxes


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def send(database: sqlite3.Connection, sql: dict[str, str], mail: Mail, again: bool, most: int) -> Asked:
    """Put a signal into a mailbox and wake its run. One that is there already, or was taken, has done so."""
    run = standing(database, sql, mail.run_id)
    if run is None:
        return Asked(None)
    if run.ended and not again:
        return run.says()
    if run.is_dag:
        return _send_to_step(database, sql, run, mail, again, most)
    if again and database.execute(sql["was_taken"], (mail.run_id, mail.id)).fetchone() is not None:
        return run.says(done=True)
    if run.ended:
        return run.says()
    row = (mail.run_id, mail.id, mail.kind, mail.name, mail.value, mail.error, mail.format)
    if not database.execute(sql["send"], row).rowcount:
        return run.says(done=True)
    refuse_if_full(database, sql, mail.run_id, most)
    _wake(database, sql, run, 1, mail.run_id)
    return run.says(done=True, ready=run.sleeps)


def refuse_if_full(database: Any, sql: dict[str, str], run_id: str, most: int) -> None:
    """Asked once the signal is in the mailbox: it goes with whatever else is rolled back."""
    if database.execute(sql["count_signals"], (run_id, most + 1)).fetchone()[0] > most:
        raise mailbox_full(run_id, most)


def _send_to_step(
    database: sqlite3.Connection, sql: dict[str, str], dag: Standing, mail: Mail, again: bool, most: int
) -> Asked:
    """A signal to a dag run is for the step of its name. One that was taken has done its work, even if by now the step
    has come to its end."""
    step = database.execute(sql["step_named"], (mail.run_id, mail.name)).fetchone()
    if step is None or step[1] in status.TERMINAL:
        taken = step is not None and again and database.execute(sql["was_taken"], (step[0], mail.id)).fetchone()
        if taken or dag.ended:
            return dag.says(done=bool(taken))
        return Asked(dag.status, status.NO_SUCH_STEP)
    asked = send(database, sql, msgspec.structs.replace(mail, run_id=step[0]), again, most)
    return Asked(dag.status, dag.reason, asked.done, asked.lane, running=asked.running)


def _wanted_by(run: Standing) -> set[str]:
    """The kinds of mail that a run has a use for. One that can be retried keeps its signals for that, as it keeps those
    sent directly; answers of its children it is told again."""
    if run.status in (status.COMPLETED, status.COMPENSATED):
        return set()
    return {status.MAIL_SIGNAL} if run.ended else {status.MAIL_SIGNAL, status.MAIL_CHILD}


def _wake(database: sqlite3.Connection, sql: dict[str, str], run: Standing, count: int, run_id: str) -> None:
    database.execute(sql["count_wakes" if run.blocked else "wake"], (count, run_id))


# -- delivering --------------------------------------------------------------------------------------------


def deliver(database: sqlite3.Connection, sql: dict[str, str], limit: int) -> Delivery:
    """Take the oldest mail that was only inserted to its runs. Nobody holds a row here, so that all of it arrives."""
    letters = fetch_wide(database, sql["undelivered"], (limit,))
    by_run: dict[str, list[Letter]] = {}
    for run_id, mail_id, kind in letters:
        by_run.setdefault(run_id, []).append((mail_id, kind))
    round_ = _Round(database, sql)
    for run_id, theirs in by_run.items():
        round_.hand_over(run_id, theirs)
    execute_wide(database, sql["delivered"], round_.delivered)
    execute_wide(database, sql["take_mail"], round_.thrown_away)
    return Delivery(round_.lanes, round_.ended, round_.running, len(letters))


class _Round:
    """One round of the postman, and what came of it."""

    def __init__(self, database: sqlite3.Connection, sql: dict[str, str]) -> None:
        self._database = database
        self._sql = sql
        self.lanes: set[Lane] = set()
        self.ended = self.running = False
        self.delivered: list[tuple[str, str]] = []
        self.thrown_away: list[tuple[str, str]] = []

    def hand_over(self, run_id: str, letters: list[Letter]) -> None:
        """All that has come for one run. Cancellations first: what they end needs no answers any more."""
        if any(kind == status.MAIL_CANCEL for _, kind in letters):
            self._heard(cancel(self._database, self._sql, run_id))
        run = standing(self._database, self._sql, run_id)
        wanted = set() if run is None else _wanted_by(run)
        if run is not None:
            self._tell(run, run_id, Counter(kind for _, kind in letters if kind in wanted))
        for mail_id, kind in letters:
            (self.delivered if kind in wanted else self.thrown_away).append((run_id, mail_id))

    def _tell(self, run: Standing, run_id: str, count: Counter[str]) -> None:
        self.running |= run.worker is not None
        woken = False
        if count[status.MAIL_CHILD]:
            woken = self._count_ends(run, run_id, count[status.MAIL_CHILD])
        if count[status.MAIL_SIGNAL]:
            _wake(self._database, self._sql, run, count[status.MAIL_SIGNAL], run_id)
            woken |= run.sleeps
        if woken:
            self.lanes.add(run.lane)

    def _count_ends(self, run: Standing, run_id: str, count: int) -> bool:
        """Whether the run is ready now: if it waits for children, and these were enough, and no more are gathered."""
        self._database.execute(self._sql["count_ends"], (count, run_id))
        if run.awaits is None or run.ends + count < run.awaits:
            return False
        if run.status == status.PAUSED:
            self._database.execute(self._sql["stop_waiting"], (run_id,))
        elif run.status == status.WAITING:
            self._database.execute(self._sql["linger" if run.linger_ms > 0 else "make_ready"], (run_id,))
            return run.linger_ms <= 0
        return False

    def _heard(self, asked: Asked) -> None:
        self.ended |= asked.ended
        self.running |= asked.running and asked.done
        self.lanes |= asked.lanes
        if asked.lane is not None:
            self.lanes.add(asked.lane)
