"""A worker's kit for tests of one duty alone."""

from __future__ import annotations

import logging
from typing import Any

from stepfast.model.payload import Payloads
from stepfast.settings import Settings
from stepfast.worker.clockwork import Clockwork
from stepfast.worker.identity import Identity
from stepfast.worker.kit import Kit


def make_kit(store: Any = None, **settings: Any) -> Kit:
    """With whatever stands in for the store; None: nobody gets to ask it."""
    made = Settings(**settings)
    clock = Clockwork()
    return Kit(store, made, Payloads(made), logging.getLogger("test"), Identity({}, None, clock), clock)


class StandingClock(Clockwork):
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        super().__init__()
        self.time = 1000.0

    def now(self) -> float:
        """The time that it was moved to."""
        return self.time
