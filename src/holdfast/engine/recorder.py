"""What the engine needs of the worker around it: a journal, threads, and the knowledge whether slots are free."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol

from ..model.payload import Payloads
from ..model.records import Entry
from ..settings import Settings


class Recorder(Protocol):
    """The worker as an execution sees it."""

    settings: Settings
    payloads: Payloads
    logger: logging.Logger
    loop: asyncio.AbstractEventLoop
    loop_thread: int
    """The event loop the worker runs in, and the thread of that loop."""

    @property
    def record(self) -> Callable[[Entry], asyncio.Future[int]]:
        """Journals an entry. Resolves to the database's time once it is committed; raises LeaseLost if refused."""
        ...

    def note(self, entry: Entry) -> None:
        """Journal an entry that nobody waits for; safe to call from any thread."""

    def run_in_thread(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """Run a blocking call in a thread for steps, with the caller's context variables."""
        ...

    def has_free_slots(self) -> bool:
        """Whether a wait may be kept in memory rather than released."""
        ...
