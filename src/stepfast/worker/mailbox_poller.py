"""The mailman: asks what is in the mailboxes of runs that this worker holds, one question for all who want to know."""

from __future__ import annotations

import asyncio

from ..engine.waits import MailAnswer, MailboxReader
from .context import WorkerContext

_MARGIN = 1.0
"""Seconds a claim may take: news that came while it was under way may be missing in what it brought."""

FutureAnswer = asyncio.Future[MailAnswer]


class MailboxPoller:
    """Answers when a run asks, and tells those that wait whenever there may be something new."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._watched: dict[MailboxReader, None] = {}
        """Of runs in memory that wait for mail, in the order in which they asked."""
        self._news = 0.0
        """When we were last told that there may be something new."""
        self._wanted: dict[str, tuple[MailboxReader, FutureAnswer]] = {}
        """What goes into the next question, by run."""
        self._under_way: list[tuple[MailboxReader, FutureAnswer]] = []
        """What went into the question under way, or into the last one."""
        self._round: asyncio.Task[None] | None = None

    def look(self, reader: MailboxReader) -> FutureAnswer:
        """What is in the mailbox of a run; the answer comes with the next question."""
        known = self._wanted.get(reader.run_id)
        if known is not None and known[0] is reader:
            return known[1]
        answer: FutureAnswer = asyncio.get_running_loop().create_future()
        self._wanted[reader.run_id] = (reader, answer)
        if self._round is None or self._round.done():
            self._round = asyncio.create_task(self._go_round(), name="stepfast-mail")
        return answer

    def watch(self, reader: MailboxReader) -> None:
        """Tell this one when there may be something new; at once, if there may be since it last looked."""
        self._watched[reader] = None
        if self._news > (reader.known_until or reader.claimed_at - _MARGIN):
            reader.hear()

    def told(self) -> None:
        """Somebody says that there is something new, for some run or other."""
        self._news = self._context.clock.now()
        self.look_again()

    def look_again(self) -> None:
        """There may be something new."""
        for reader in list(self._watched):
            if reader.listens:
                reader.hear()
            else:
                self._watched.pop(reader, None)

    async def _go_round(self) -> None:
        await asyncio.sleep(0)  # whoever asks in the same turn goes along
        while self._wanted:
            self._under_way = wanted = list(self._wanted.values())
            self._wanted = {}
            looks, asked_at = [reader.what() for reader, _ in wanted], self._context.clock.now()
            try:
                found = await self._context.ask(lambda: self._context.store.mail(looks), "mail")  # noqa: B023
            except Exception as error:
                self._fail(error, [answer for _, answer in wanted])
                continue
            for look, (reader, answer) in zip(looks, wanted, strict=True):
                try:
                    self._bring(MailAnswer(look, found.get(look.run_id), asked_at), reader, answer)
                except Exception as error:
                    self._fail(error, [answer])

    def _bring(self, found: MailAnswer, reader: MailboxReader, answer: FutureAnswer) -> None:
        """Hand over what was found, before anybody who waits for it goes on."""
        reader.take_in(found)
        if not answer.done():
            answer.set_result(found)

    def _fail(self, error: Exception, answers: list[FutureAnswer]) -> None:
        """A bug: those who wait for this question must not wait for ever, nor the others with them."""
        self._context.logger.error("mail: unexpected error", exc_info=error)
        for answer in answers:
            if not answer.done():
                answer.set_exception(error)
                answer.exception()  # seen: not everybody waits for it

    async def close(self) -> None:
        """Stop asking. No run waits for mail any more; what has asked for one is told that no answer comes."""
        if self._round is not None:
            self._round.cancel()
            await asyncio.gather(self._round, return_exceptions=True)
        for _, answer in (*self._under_way, *self._wanted.values()):
            answer.cancel()
