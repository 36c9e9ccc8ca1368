"""A worker's kit for tests of one duty alone."""

from __future__ import annotations

import logging
from typing import Any

from stepfast.model.payload import Payloads
from stepfast.settings import Settings
from stepfast.worker.identity import Identity
from stepfast.worker.kit import Kit


def make_kit(store: Any = None, **settings: Any) -> Kit:
    """With whatever stands in for the store; None: nobody gets to ask it."""
    made = Settings(**settings)
    return Kit(store, made, Payloads(made), logging.getLogger("test"), Identity({}, None))
