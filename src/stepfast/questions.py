"""Asking runs: a question goes into the mailbox of a run, and one query per process looks for all answers."""

from __future__ import annotations

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
    InvalidInput,
    InvalidState,
    QuestionRefused,
    RunEnded,
    RunNotFound,
)
from .model import status
from .model.payload import Payloads
from .model.records import Answer, Mail
from .results import KeyWatcher
from .settings import Settings
from .store import Store
from .store.answers import QuestionRow
from .worker.notifier import Switchboard

if TYPE_CHECKING:
    from .runtime import Connected

_OPEN = "open"


def question_id(run_id: str, id: str) -> str:
    """The id under which a question is stored that was given one by the caller."""
    digest = hashlib.blake2b(f"{run_id}/{id}".encode(), digest_size=16, person=b"question").hexdigest()
    return (
        f"{digest[:8]}-{digest[8:12]}-8{digest[13:16]}-{'89ab'[int(digest[16], 16) & 3]}{digest[17:20]}-{digest[20:]}"
    )


def answer_watcher(
    store: Store, settings: Settings, logger: logging.Logger, switchboard: Switchboard, clock: Clock
) -> KeyWatcher[str, QuestionRow | None]:
    """Resolves the waits for answers, by the ids of the questions: to the question when it has ended, by an answer or
    with its run. None: it was removed with its run."""

    async def ended(ids: list[str]) -> dict[str, QuestionRow | None]:
        rows = {row.id: row for row in await store.questions(ids)}
        found = {question: rows.get(question) for question in ids}
        return {question: row for question, row in found.items() if row is None or row.over or row.state != _OPEN}

    return KeyWatcher("answers", ended, store, settings, logger, switchboard, clock, _closed)


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
