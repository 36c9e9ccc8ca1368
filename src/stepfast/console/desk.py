"""What all pages of one console share: the application they look at, what is hidden, and how often they look again."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from ..app import Stepfast
from ..monitoring.changes import end_news, onlooker
from ..monitoring.queue_stats import Hour
from ..monitoring.unreadable import Lenient
from ..store.readonly import Remembered
from .jobs import Jobs
from .live import Tabs
from .outage import Outage
from .redacting import Rule, Veil

T = TypeVar("T")

_SLOW = 15.0
_PATIENCE = 2.0
"""Seconds for actions to write into the audit that they were interrupted."""


class Desk:
    """What all visits of one console share; there is one desk for each console."""

    def __init__(self, app: Stepfast, rule: Rule | None, read_only: bool) -> None:
        self.app = app
        self.look = onlooker(app)
        self.look._payloads = Lenient.like(app._payloads)
        """The same application for pages: it only reads, and its questions are bounded and shared by all tabs."""
        self.rule = rule
        """What is hidden of payloads; None: nothing."""
        self.read_only = read_only
        self.tabs = Tabs(app)
        self.hour = Hour()
        """How queues stood within the last hour."""
        self.slow = Remembered(_SLOW)
        """Answers that take long to find, and need not be new."""
        self.jobs = Jobs(app)
        self._acting: set[asyncio.Task[Any]] = set()
        self.outage = Outage()
        """Since when the database has not been reached."""

    async def waited_for(self, acting: Coroutine[Any, Any, T]) -> T:
        """Do something that is not to be left without a word when the console is closed."""
        task = asyncio.create_task(acting)
        self._acting.add(task)
        task.add_done_callback(self._acting.discard)
        return await task

    async def close(self) -> None:
        """Give up what is under way, while the database can still be told."""
        for task in self._acting:
            if not task.cancelling():
                task.cancel()
        if self._acting:
            await asyncio.wait(self._acting, timeout=_PATIENCE)
        await self.jobs.close()
        await end_news(self.app)

    def veil(self) -> Veil:
        """A new veil, for one answer about one run."""
        return Veil(self.rule)
