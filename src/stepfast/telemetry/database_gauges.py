"""What stands in the database, as gauges. Read by bounded questions, and not more often than every few seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .exposition import Family

if TYPE_CHECKING:
    from ..app import Stepfast


async def gauges_of(app: Stepfast) -> list[Family]:
    """How things stand in the database of an application, as of a few seconds ago at most."""
    return []
