"""Mail on Postgres: looking into boxes, sending, and taking what was only inserted to its runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import asyncpg
import msgspec
from msgspec.structs import replace

from ...model.records import Answer, Lane, Look, Mail, Mailbox
from ...model.status import MAIL_ENDS, NO_SUCH_STEP, REASON_CONTINUED, TERMINAL
from ...settings import Settings
from ..protocol import holds_all, mailbox_full
from .callers import Callers
from .connections import KeptConnection


class Mailroom:
    """Looks over a connection that is kept for it; what senders do takes any connection."""

    def __init__(
        self,
        looking: KeptConnection,
        statements: dict[str, str],
        callers: Callers,
        settings: Settings,
    ) -> None:
        self._settings = settings
        self._callers = callers
        self._looking = looking
        self._sql = statements

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
                box.mail.append(Mail(run_id, str(row["id"]), *row[4:10]))
        for box in boxes.values():
            box.more = not holds_all([mail for mail in box.mail if mail.kind in MAIL_ENDS], most)
        return boxes

    # -- sending ---------------------------------------------------------------------------------------------

    async def send_usual(self, connection: Any, mail: Mail) -> Answer | None:
        """Put a signal into the box and wake the run, by one statement. None: this is not the usual case, and nothing
        was done."""
        try:
            row = await connection.fetchrow(self._sql["send_usual"], *_values(mail), self._most // 2, mail.trace)
        except (asyncpg.UniqueViolationError, asyncpg.SerializationError):
            return None  # it came by another way meanwhile; or a pool that was given to us sees no newer rows
        if row is None:
            return None
        lane = Lane(row["queue"], row["workflow"], row["priority"]) if row["waits"] else None
        return Answer(row["status"], row["reason"], True, lane, running=row["held"])

    async def send_within(self, connection: Any, mail: Mail) -> Answer:
        """Only insert it, in the sender's transaction."""
        async with self._callers.within(connection) as theirs:
            return await self.leave(theirs, mail)

    async def leave(self, connection: Any, mail: Mail, again: bool = False) -> Answer:
        """Put a signal into the box, for a sweep to deliver: no row that exists is locked or changed."""
        run = await connection.fetchrow(self._sql["status_of"], mail.run_id)
        if run is None:
            return Answer(None)
        step = await self._step(connection, mail) if run["dag"] else None
        receiver = mail.run_id if step is None else str(step["id"])
        if again and await connection.fetchval(self._sql["was_taken"], receiver, mail.id):
            return Answer(run["status"], run["reason"], done=True)
        if (refused := _refusal(run)) is not None:
            return refused
        if run["reads"] and (refused := await self._heir_refuses(connection, mail.run_id)) is not None:
            return refused
        if run["dag"] and (step is None or step["status"] in TERMINAL):
            return Answer(run["status"], NO_SUCH_STEP)
        mail = replace(mail, run_id=receiver)
        if await connection.fetchval(self._sql["leave_mail"], *_values(mail), self._most, mail.trace) is None:
            await self._refuse_if_full(connection, mail)
        return Answer(run["status"], run["reason"], done=True)

    async def _heir_refuses(self, connection: Any, run_id: str) -> Answer | None:
        """A run that went on as others takes no mail when the last of them has ended. As long as that one goes on, what
        is for it is left with the run that was named: what was left there before goes on first."""
        heir = await connection.fetchval(self._sql["heir"], run_id)
        last = await connection.fetchrow(self._sql["status_of"], heir)
        refused = None if last is None else _refusal(last)
        return None if refused is None else replace(refused, whose=heir)

    async def _step(self, connection: Any, mail: Mail) -> Any:
        """The step of a dag run that a signal is for."""
        return await connection.fetchrow(self._sql["step_named"], mail.run_id, mail.name)

    @property
    def _most(self) -> int:
        return self._settings.max_signals

    async def _refuse_if_full(self, connection: Any, mail: Mail) -> None:
        """Raise an error if mail was not put into the box because too many others are there; it may also be there
        already."""
        if await connection.fetchval(self._sql["is_there"], mail.run_id, mail.id) is None:
            raise mailbox_full(mail.run_id, self._most)


def _refusal(run: Any) -> Answer | None:
    """A run that has ended takes no mail. What is for one that went on as another is taken there by whoever delivers
    it."""
    over = run["status"] in TERMINAL and run["reason"] != REASON_CONTINUED
    return Answer(run["status"], run["reason"]) if over else None


def _values(mail: Mail) -> tuple[Any, ...]:
    return (mail.run_id, mail.id, mail.kind, mail.name, mail.value, mail.error, mail.format)
