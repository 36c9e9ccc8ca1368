"""Mail on Postgres: looking into boxes, sending, and taking what was only inserted to its runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from ...model.records import Asked, Lane, Look, Mail, Mailbox
from ...model.status import MAIL_CANCEL, MAIL_CHILD, NO_SUCH_STEP, TERMINAL, WAITING, WAITING_STEPS
from ...settings import Settings
from ..protocol import Delivery, holds_all, mailbox_full
from .callers import Callers
from .connections import Line
from .graphs import Dags
from .operating import cancel_dags, cancel_locked
from .transactions import transaction


class Mailroom:
    """Looks over one line, delivers over another; what senders do takes any connection."""

    def __init__(
        self,
        looking: Line,
        delivering: Line,
        statements: dict[str, str],
        dags: Dags,
        callers: Callers,
        settings: Settings,
    ) -> None:
        self._settings = settings
        self._callers = callers
        self._looking = looking
        self._delivering = delivering
        self._sql = statements
        self._dags = dags

    async def look(self, looks: Sequence[Look]) -> dict[str, Mailbox]:
        """One question for all of them."""
        boxes: dict[str, Mailbox] = {}
        names = [None if look.names is None else msgspec.json.encode(look.names).decode() for look in looks]
        seen = [mail_id for look in looks for mail_id in look.seen]
        most = self._settings.mail_bytes
        for row in await self._looking.fetch(self._sql["mail"], [look.run_id for look in looks], names, seen, most):
            run_id = str(row["run_id"])
            box = boxes.get(run_id)
            if box is None:
                box = boxes[run_id] = Mailbox(row["wakes"], row["ends"])
            if row["id"] is not None:
                box.mail.append(
                    Mail(run_id, str(row["id"]), row["kind"], row["name"], row["value"], row["error"], row["format"])
                )
        for box in boxes.values():
            box.more = not holds_all([mail for mail in box.mail if mail.kind == MAIL_CHILD], most)
        return boxes

    # -- sending ---------------------------------------------------------------------------------------------

    async def send(self, connection: Any, mail: Mail, again: bool) -> Asked:
        """Put a signal into the box and wake the run, in one transaction. One that was taken before has done so."""
        async with transaction(connection):
            run = await connection.fetchrow(self._sql["lock_run"], mail.run_id)
            refused = _refusal(run)
            if refused is not None:
                refused.done = again and run is not None and await self._was_taken(connection, run, mail)
                return refused
            if run["dag"]:
                return await self._send_to_step(connection, run, mail, again)
            return await self._send_locked(connection, run, mail, again)

    async def _was_taken(self, connection: Any, run: Any, mail: Mail) -> bool:
        """Whether a run that has ended took it before."""
        taker = mail.run_id
        if run["dag"]:
            step = await connection.fetchrow(self._sql["step_named"], mail.run_id, mail.name)
            taker = "" if step is None else step["id"]
        return bool(taker and await connection.fetchval(self._sql["was_taken"], taker, mail.id))

    async def _send_locked(self, connection: Any, run: Any, mail: Mail, again: bool) -> Asked:
        taken = again and await connection.fetchval(self._sql["was_taken"], mail.run_id, mail.id)
        woken = None if taken else await connection.fetchrow(self._sql["send"], *_values(mail), self._most)
        if woken is None and not taken:
            await self._refuse_if_full(connection, mail)
        asked = Asked(run["status"], run["reason"], done=True, running=run["held"])
        if woken is not None and run["status"] == WAITING and run["waiting_for"] != WAITING_STEPS:
            asked.lane = Lane(run["queue"], run["workflow"], run["priority"])
        return asked

    async def _send_to_step(self, connection: Any, dag: Any, mail: Mail, again: bool) -> Asked:
        """A signal to a dag run is for the step of its name. One that the step took has done its work, even if the
        step has come to its end by now."""
        step = await connection.fetchrow(self._sql["step_named"], mail.run_id, mail.name)
        if step is None:
            return Asked(dag["status"], NO_SUCH_STEP)
        mail = replace(mail, run_id=str(step["id"]))
        run = await connection.fetchrow(self._sql["lock_run"], mail.run_id)
        if run["status"] in TERMINAL:
            if again and await connection.fetchval(self._sql["was_taken"], mail.run_id, mail.id):
                return Asked(dag["status"], dag["reason"], done=True)
            return Asked(dag["status"], NO_SUCH_STEP)
        asked = await self._send_locked(connection, run, mail, again)
        asked.status, asked.reason = dag["status"], dag["reason"]
        return asked

    async def send_within(self, connection: Any, mail: Mail) -> Asked:
        """Only insert it, in the sender's transaction."""
        async with self._callers.within(connection) as theirs:
            run = await theirs.fetchrow(self._sql["status_of"], mail.run_id)
            refused = _refusal(run)
            if refused is None and run["dag"]:
                step = await theirs.fetchrow(self._sql["step_named"], mail.run_id, mail.name)
                if step is None or step["status"] in TERMINAL:
                    return Asked(run["status"], NO_SUCH_STEP)
                mail = replace(mail, run_id=str(step["id"]))
            if refused is not None:
                return refused
            if await theirs.fetchval(self._sql["leave_mail"], *_values(mail), self._most) is None:
                await self._refuse_if_full(theirs, mail)
        return Asked(run["status"], run["reason"], done=True)

    @property
    def _most(self) -> int:
        return self._settings.max_signals

    async def _refuse_if_full(self, connection: Any, mail: Mail) -> None:
        """It was not put into the box: because it is there already, or because too many others are."""
        if await connection.fetchval(self._sql["is_there"], mail.run_id, mail.id) is None:
            raise mailbox_full(mail.run_id, self._most)

    # -- delivering ------------------------------------------------------------------------------------------

    async def deliver(self, limit: int) -> Delivery:
        """The oldest mail whose runs nobody holds just now."""
        async with self._delivering.use() as connection:
            async with transaction(connection):
                found = await connection.fetch(self._sql["undelivered"], limit)
                if not found:
                    orphans = await connection.fetch(self._sql["remove_orphans"], limit)
                    return Delivery(set(), False, False, len(orphans))
                apart = [row for row in found if _cancels_dag(row)]
                done = await self._deliver(connection, [row for row in found if not _cancels_dag(row)])
            if not apart:
                return done
            # To cancel a dag run its steps are waited for, so nothing else may be in hand.
            async with transaction(connection):
                more = await self._cancel_dags(connection, apart)
            return Delivery(
                done.lanes | more.lanes, done.ended or more.ended, done.running or more.running, done.moved + more.moved
            )

    async def _deliver(self, connection: Any, mail: list[Any]) -> Delivery:
        pairs = [row["run_id"] for row in mail], [row["id"] for row in mail]
        rows = await connection.fetch(self._sql["deliver"], *pairs)
        lanes = {Lane(r["queue"], r["workflow"], r["priority"]) for r in rows if r["queue"] is not None}
        cancelled = [str(r["run_id"]) for r in rows if r["cancel"]]
        ends = await cancel_locked(connection, self._sql, cancelled) if cancelled else []
        lanes |= {end.lane for end in ends if end.lane is not None}
        return Delivery(
            lanes, any(end.ended for end in ends), any(r["held"] for r in rows), sum(r["moved"] for r in rows)
        )

    async def _cancel_dags(self, connection: Any, mail: list[Any]) -> Delivery:
        """Cancellations of dag runs: one that is in nobody's hands fails, with its steps; any other is as any run."""
        locked = await self._dags.lock(connection, {str(row["run_id"]) for row in mail})
        effects = await cancel_dags(connection, self._dags, list(locked.free))
        done = await self._deliver(connection, [row for row in mail if str(row["run_id"]) in locked.failing])
        return Delivery(
            done.lanes | effects.lanes, done.ended or effects.told, done.running or bool(effects.marked), done.moved
        )


def _cancels_dag(mail: Any) -> bool:
    return bool(mail["dag"]) and mail["kind"] == MAIL_CANCEL


def _refusal(run: Any) -> Asked | None:
    """A run that does not exist, or has ended, takes no mail."""
    if run is None:
        return Asked(None)
    return Asked(run["status"], run["reason"]) if run["status"] in TERMINAL else None


def _values(mail: Mail) -> tuple[Any, ...]:
    return (mail.run_id, mail.id, mail.kind, mail.name, mail.value, mail.error, mail.format)
