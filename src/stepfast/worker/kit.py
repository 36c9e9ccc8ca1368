"""The kit of a worker: what each of its duties works with."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from ..engine.observers import Observers
from ..model.payload import Payloads
from ..settings import Settings
from ..store import Store
from .clockwork import Clockwork
from .identity import Identity
from .patience import dutifully

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Kit:
    """Made once per worker and handed to every duty of it. What a duty tells others, or is told, is not in here: that
    goes through its port, which stands in the file of the duty."""

    store: Store
    settings: Settings
    payloads: Payloads
    logger: logging.Logger
    me: Identity
    observers: Observers | None = None
    """Who is told what happens to runs, if anybody is."""

    @property
    def clock(self) -> Clockwork:
        """Where time, threads and chance come from."""
        return self.me.clock

    def ask(
        self,
        call: Callable[[], Awaitable[T]],
        what: str,
        give_up: Callable[[], bool] | None = None,
        *,
        refusable: bool = False,
    ) -> Coroutine[Any, Any, T]:
        """Ask the database, however long it is away; see ``dutifully``."""
        return dutifully(
            call,
            what,
            self.logger,
            self.settings.outage_backoff_max,
            give_up,
            refusable=refusable,
            clock=self.clock,
        )
