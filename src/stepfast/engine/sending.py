"""What observers send along: from whoever starts or signals a run to the worker that takes it, and on from there.

It is stored with the run, the signal or the remote step as JSON: an object of short texts, as HTTP headers would have
them. What comes from the database may have been written by anybody, and is read as such.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ..model.events import SENT_CHILD, SENT_NEXT, SENT_REMOTE, SENT_SIGNAL, SENT_START, Sending, SendingEnded
from ..model.records import Mail, NewRun
from .failure import type_name

if TYPE_CHECKING:
    from .execution import Execution
    from .observing import Observers

MOST: Final = 2_000
"""Characters: what observers send along is small. More of it is not sent."""

UNTOLD: Final = nullcontext[Any]()
"""Around what is sent where nobody observes."""


def encoded(trace: Mapping[str, str]) -> str | None:
    """As it is stored; None, if there is nothing or too much of it."""
    if not trace:
        return None
    text = msgspec.json.encode(trace).decode()
    return text if len(text) <= MOST else None


def decoded(text: str | None) -> dict[str, str]:
    """What was sent along; nothing, if it is not what an observer could have sent."""
    if text is None or len(text) > MOST:
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except msgspec.DecodeError:
        return {}


class TellOfSending:
    """Around a start or a signal: observers are told before and after, and what they send along goes with it."""

    __slots__ = ("_event", "_observers")

    def __init__(self, observers: Observers, event: Sending) -> None:
        self._observers = observers
        self._event = event

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._observers.sending_ended:
            failure = None if error is None else type_name(error)
            self._observers.tell(self._observers.sending_ended, SendingEnded(self._event, failure))


def starting(observers: Observers, runs: list[NewRun]) -> Any:
    """Runs are about to be started by one call. The observers' word goes with all of them."""
    if not observers.sending:
        return UNTOLD
    first = runs[0]
    own = [run for run in runs if run.dag_step is None]
    run_id = first.id if len(own) == 1 else None
    event = Sending(SENT_START, first.shape.workflow, first.shape.queue, run_id, len(own))
    _send_along(observers, event, runs)
    return TellOfSending(observers, event)


def signalling(observers: Observers, mail: Mail) -> Any:
    """A signal is about to be sent."""
    if not observers.sending:
        return UNTOLD
    event = Sending(SENT_SIGNAL, mail.name, None, mail.run_id)
    observers.tell(observers.sending, event)
    mail.trace = encoded(event.trace)
    return TellOfSending(observers, event)


def child_starts(observers: Observers, execution: Execution, runs: list[NewRun]) -> None:
    """A run is about to start another as its child."""
    if observers.sending:
        first = runs[0]
        event = Sending(
            SENT_CHILD, first.shape.workflow, first.shape.queue, first.id, 1, execution.run_id, execution.claim
        )
        _send_along(observers, event, runs)


def goes_on_as(observers: Observers, execution: Execution, successor: NewRun) -> None:
    """A run is about to go on as another."""
    if observers.sending:
        shape = successor.shape
        event = Sending(SENT_NEXT, shape.workflow, shape.queue, successor.id, 1, execution.run_id, execution.claim)
        _send_along(observers, event, [successor])


def remote_trace(observers: Observers, execution: Execution, name: str, group: str) -> str | None:
    """What goes with a remote step that is about to be sent."""
    if not observers.sending:
        return None
    event = Sending(SENT_REMOTE, name, group, None, 1, execution.run_id, execution.claim)
    observers.tell(observers.sending, event)
    return encoded(event.trace)


def _send_along(observers: Observers, event: Sending, runs: Iterable[NewRun]) -> None:
    observers.tell(observers.sending, event)
    text = encoded(event.trace)
    if text is not None:
        for run in runs:
            run.trace = text
