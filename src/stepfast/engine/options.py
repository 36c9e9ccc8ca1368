"""What can be said at the start of a run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TypedDict

Seconds = float | timedelta


class StartOptions(TypedDict, total=False):
    """The options of a start, also of a child's."""

    queue: str | None
    priority: int
    delay: Seconds | None
    at: datetime | None
    expires_in: Seconds | None
    deadline: Seconds | None
    max_attempts: int | None
    timeout: Seconds | None
    tags: Sequence[str]
