"""The queue of a group's tasks as a remote worker uses it: receive, hide for longer, answer, give back."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Collection, Sequence

from ...errors import ConfigurationError
from ...worker.threads import Clockwork
from ..protocol import FAILED, ClaimedTask, TaskOutcome, refusal
from ..task_store import Key, Recorded
from .location import SqsLocation
from .messages import Unreadable, decode_task, encode_result, task_of_broken
from .queues import Message, Outgoing, Queue, Queues, whose

_MOST_RECEIVED = 10
"""How often a task is received before it is taken for one that kills its workers."""
_REMEMBERED = 1_000
"""Messages that are over and may come once more."""


class _Held:
    """A task that this worker has."""

    def __init__(self, task: ClaimedTask, nonce: str) -> None:
        self.task = task
        self.nonce = nonce
        """Of its result: SQS takes a message of this name once, where the queue keeps an order."""
        self.messages: dict[str, Message] = {}
        """It may have come in several messages, and each more than once: the last receipt counts."""
        self.answered = False


class TaskQueue:
    """One worker's view of one group."""

    long_polls = True

    def __init__(
        self, where: SqsLocation, group: str, lease: float, clock: Clockwork, logger: logging.Logger, *, create: bool
    ) -> None:
        self._queues = Queues(where, clock, logger, create=create)
        self._group = group
        self._visibility = max(1, round(lease))
        self._clock = clock
        self._logger = logger
        self._held: dict[Key, _Held] = {}
        self._over: OrderedDict[str, None] = OrderedDict()
        self._receiving: asyncio.Task[list[Message]] | None = None

    async def open(self) -> None:
        """Connect, and find the queues, so that what is wrong is told now."""
        await self._queues.open()
        await self._queues.tasks(self._group)
        await self._queues.results()

    async def close(self) -> None:
        """Leave. What a receive under way still brings is given back."""
        await self._queues.close()
        if self._receiving is not None:
            self._receiving.cancel()

    async def claim(self, most: int) -> list[ClaimedTask]:
        """Wait for tasks, and take up to so many."""
        queue = await self._queues.tasks(self._group)
        if self._receiving is None:
            self._receiving = self._clock.task(self._queues.receive(queue, most, self._visibility))
        try:
            messages = await asyncio.shield(self._receiving)
        finally:
            if self._receiving.done():
                self._receiving = None
        found = [task for message in messages if (task := await self._read(queue, message)) is not None]
        return sorted(found, key=lambda task: (task.created_at, task.seq))

    async def _read(self, queue: Queue, message: Message) -> ClaimedTask | None:
        """The task of a message, unless there is nothing to be done for it any more."""
        if message.id in self._over:
            await self._queues.delete(queue, [message.receipt])
            return None
        try:
            body = await self._queues.load(message)
            task = decode_task(body, message.sent_at, message.now)
        except Unreadable as problem:
            text = message.body if whose(message) is None else str(whose(message))
            await self._refuse(queue, message, task_of_broken(text), str(problem))
            return None
        if message.received > _MOST_RECEIVED:
            told = f"it was received {message.received} times, and no worker has finished it"
            await self._refuse(queue, message, task, told)
            return None
        held = self._held.setdefault(task.key, _Held(task, self._clock.new_id()))
        held.messages[message.id] = message
        return task

    async def _refuse(self, queue: Queue, message: Message, task: ClaimedTask | None, reason: str) -> None:
        """The step fails, if it can be told which; the message goes where an operator finds it."""
        if task is not None:
            told = refusal(f"the worker cannot take the task: {reason}")
            outcome = TaskOutcome(task.step_id, task.attempt, FAILED, None, told, None)
            await self._answer([(outcome, _Held(task, self._clock.new_id()))])
        await self._queues.dead_letter(queue, message, reason)

    async def renew(self, keys: Sequence[Key]) -> set[Key]:
        """Hide tasks for another lease; those that are still held. SQS hides none for longer than twelve hours."""
        held = {key: self._held[key] for key in keys if key in self._held}
        receipts = {(key, id_): message.receipt for key, one in held.items() for id_, message in one.messages.items()}
        if not receipts:
            return set()
        gone = await self._queues.hide(await self._queues.tasks(self._group), receipts, self._visibility)
        for key, id_ in gone:
            if receipts[key, id_] == held[key].messages[id_].receipt:
                del held[key].messages[id_]
        for key in [key for key, one in held.items() if not one.messages]:
            del held[key]
            self._held.pop(key, None)
        return set(held)

    async def give_back(self, keys: Sequence[Key]) -> None:
        """Let others have them at once."""
        held = [self._held.pop(key) for key in keys if key in self._held]
        receipts = {message.receipt: message.receipt for one in held for message in one.messages.values()}
        await self._queues.hide(await self._queues.tasks(self._group), receipts, 0)

    async def give_back_unknown(self, known: Sequence[Key]) -> None:
        """Messages of an answer that was lost come again by themselves."""
        for key in set(self._held) - set(known):
            del self._held[key]

    async def record(self, outcomes: Sequence[TaskOutcome], overdue: Collection[str] = ()) -> Recorded:
        """Send results, then end their tasks. A task whose message is held no longer is another worker's."""
        mine = [(outcome, self._held[outcome.key]) for outcome in outcomes if outcome.key in self._held]
        await self._answer(mine)
        queue = await self._queues.tasks(self._group)
        messages = [message for _, held in mine for message in held.messages.values()]
        await self._queues.delete(queue, [message.receipt for message in messages])
        for message in messages:
            self._over[message.id] = None
            await self._queues.forget_body(message.body)
        while len(self._over) > _REMEMBERED:
            self._over.popitem(last=False)
        for outcome, _ in mine:
            self._held.pop(outcome.key, None)
        return Recorded({outcome.key for outcome, _ in mine}, set())

    async def _answer(self, outcomes: Sequence[tuple[TaskOutcome, _Held]]) -> None:
        queue = await self._queues.results()
        by_nonce = {held.nonce: held for _, held in outcomes if not held.answered}
        out = [
            Outgoing(held.task.step_id, encode_result(outcome, held.task.run_id, held.task.seq), held.nonce)
            for outcome, held in outcomes
            if not held.answered
        ]
        self._queues.check_size(queue, out, "the result")

        def sent(message: Outgoing) -> None:
            by_nonce[message.nonce].answered = True

        await self._queues.send(queue, out, sent)


def checked_lease(lease: float | None) -> float:
    """Seconds for which a task is hidden: by default a minute, as workers of others have it."""
    found = 60.0 if lease is None else lease
    if not 1 <= found <= 43_200:
        raise ConfigurationError(f"lease must be from 1 second to 12 hours over SQS, not {found!r}")
    return found
