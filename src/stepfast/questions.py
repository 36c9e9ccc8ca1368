"""Asking runs: a question goes into the mailbox of a run, and one query per process looks for all answers."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from .engine.host import Clock
from .engine.questions import ANSWERED, REFUSED
from .engine.signals import misfit
from .errors import (
    AppClosed,
    DatabaseUnavailable,
    InvalidInput,
    InvalidState,
    QuestionRefused,
    RunEnded,
    RunNotFound,
    SchemaError,
)
from .model import status
from .model.payload import Payloads
from .model.records import Answer, Mail
from .settings import Settings
from .store import Store
from .store.answers import QuestionRow, Wakeups
from .worker.notifier import Switchboard

if TYPE_CHECKING:
    from .runtime import Connected

_FIRST = 0.01
_MOST_AT_ONCE = 5000
_OPEN = "open"


def question_id(run_id: str, id: str) -> str:
    """The id under which a question is stored that was given one by the caller."""
    digest = hashlib.blake2b(f"{run_id}/{id}".encode(), digest_size=16, person=b"question").hexdigest()
    return (
        f"{digest[:8]}-{digest[8:12]}-8{digest[13:16]}-{'89ab'[int(digest[16], 16) & 3]}{digest[17:20]}-{digest[20:]}"
    )


class AnswerWatcher:
    """Resolves the waits for answers."""

    def __init__(
        self, store: Store, settings: Settings, logger: logging.Logger, switchboard: Switchboard, clock: Clock
    ) -> None:
        self._store = store
        self._settings = settings
        self._logger = logger
        self._switchboard = switchboard
        self._clock = clock
        self._waiting: dict[str, set[asyncio.Future[QuestionRow | None]]] = {}
        self._look = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._over = False

    async def wait(self, question: str, timeout: float | None) -> QuestionRow | None:
        """The question when it has ended, by an answer or with its run. None: it was removed with its run.
        TimeoutError after ``timeout`` seconds of real time."""
        if self._over:
            raise _closed()
        future: asyncio.Future[QuestionRow | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(question, set()).add(future)
        self._start()
        self._look.set()
        try:
            done, _ = await asyncio.wait((future,), timeout=timeout)
            if not done:
                raise TimeoutError
            return future.result()
        finally:
            waiters = self._waiting.get(question)
            if waiters is not None:
                waiters.discard(future)
                if not waiters:
                    del self._waiting[question]

    def look(self) -> None:
        """Ask the database now."""
        self._look.set()

    def drop(self) -> list[asyncio.Task[None]]:
        """Stop, and fail all waits. Return the task, to be cancelled."""
        self._over = True
        self._switchboard.unsubscribe(self._woken)
        self._fail(_closed())
        return [] if self._task is None else [self._task]

    def _start(self) -> None:
        if self._task is None or self._task.done():
            self._switchboard.unsubscribe(self._woken)
            self._switchboard.subscribe(self._woken)
            self._task = asyncio.create_task(self._watch(), name="stepfast-answers")
            self._task.add_done_callback(self._stopped)

    def _stopped(self, task: asyncio.Task[None]) -> None:
        if task is self._task:
            self._switchboard.unsubscribe(self._woken)
            if not task.cancelled() and (error := task.exception()) is not None:
                self._logger.error("watching answers: unexpected error", exc_info=error)
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        for waiters in self._waiting.values():
            for future in waiters:
                if not future.done():
                    future.set_exception(error)

    def _woken(self, wakeups: Wakeups) -> None:
        if wakeups.streams or wakeups.ended or wakeups.anything:
            self._look.set()

    async def _watch(self) -> None:
        wait = _FIRST
        while self._waiting:
            self._look.clear()
            found = False
            try:
                found = await self._ask()
            except (DatabaseUnavailable, SchemaError) as error:
                if isinstance(error, AppClosed):
                    raise
                self._logger.debug("watching answers: %s", error)
                await self._clock.sleep(0.2)
            wakes = self._store.can_wake
            wait = _FIRST if found else min(wait * 2, self._settings.poll_interval / 2)
            try:
                async with self._clock.timeout(self._settings.poll_interval if wakes else wait):
                    await self._look.wait()
            except TimeoutError:
                pass

    async def _ask(self) -> bool:
        ids, found = list(self._waiting), False
        for start in range(0, len(ids), _MOST_AT_ONCE):
            part = ids[start : start + _MOST_AT_ONCE]
            rows = {row.id: row for row in await self._store.questions(part)}
            for question in part:
                row = rows.get(question)
                if row is None or row.over or row.state != _OPEN:
                    found = True
                    self._resolve(question, row)
        return found

    def _resolve(self, question: str, row: QuestionRow | None) -> None:
        for future in self._waiting.get(question, ()):
            if not future.done():
                future.set_result(row)


def _closed() -> AppClosed:
    return AppClosed("the application was closed before the answer had come; asked again with its id=, it is the same")


async def ask(
    connected: Connected, payloads: Payloads, mail: Mail, limit: float | None,
    request: Callable[[Callable[[], Awaitable[Answer]]], Awaitable[Answer]],
) -> Any:  # fmt: skip
    """Put a question (``mail`` its id, and the name that the code uses) to a run, or to the one that it continues as,
    and wait for the answer. ``request`` sends a request to a run, and wakes workers."""
    until = None if limit is None else time.monotonic() + limit
    asked, check = mail.run_id, True
    while True:
        answer = await request(lambda: connected.store.ask_question(mail, check))  # noqa: B023
        if answer.awaited:
            problem = misfit(payloads.plain(mail.value, mail.format, "the value"), answer.awaited)
            if problem is not None:
                what = f"the value of question {mail.name!r}"
                raise InvalidInput(f"{what} does not fit what run {mail.run_id} waits for, and was not sent: {problem}")
            check = False
            continue
        if answer.done:
            break
        if answer.reason == status.NO_SUCH_STEP:
            raise InvalidState(
                f"run {asked} has no unfinished step {mail.name!r}; a question to a dag run names its step"
            )
        continuation = None
        if answer.reason == status.REASON_CONTINUED:
            continuation = await connected.ask(lambda: connected.store.continuation(mail.run_id))  # noqa: B023
        if continuation in (None, mail.run_id):
            raise RunEnded(mail.run_id, mail.name, f"had ended ({answer.status})")
        mail = replace(mail, run_id=continuation)
    left = None if until is None else max(0.0, until - time.monotonic())
    try:
        row = await connected.answers.wait(mail.id, left)
    except TimeoutError:
        raise TimeoutError(
            f"run {asked} has not answered question {mail.name!r} within {limit:g} s; the question stays: asked again "
            "with the same id=, it gets the same answer"
        ) from None
    if row is None:
        raise RunNotFound(asked)
    if row.state == ANSWERED:
        return payloads.plain(row.answer, row.format, f"the answer to question {mail.name!r}")
    if row.state == REFUSED:
        raise QuestionRefused(
            f"run {row.run_id} refused question {mail.name!r}: {payloads.plain(row.answer, row.format, 'the reason')}"
        )
    raise RunEnded(row.run_id, mail.name, "ended")
