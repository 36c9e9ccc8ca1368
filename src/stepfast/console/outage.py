"""Since when the database has not been reached, as far as this console has noticed."""

from __future__ import annotations

from datetime import UTC, datetime


class Outage:
    """The outage of the database that lasts, if there is one."""

    def __init__(self) -> None:
        self.since: datetime | None = None
        """When it was first noticed; None: the last that was asked was answered."""

    def noticed(self) -> datetime:
        """The database did not answer: since when that is so."""
        if self.since is None:
            self.since = datetime.now(UTC)
        return self.since

    def over(self) -> None:
        """The database has answered again."""
        self.since = None
