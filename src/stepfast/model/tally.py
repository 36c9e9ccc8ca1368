"""How much is stored of a run, as one number that can be compared with what its worker believes.

An open record counts one and an outcome two, so that the number also falls where an outcome vanished and left the open
record that it had replaced.
"""

from __future__ import annotations

from typing import Protocol

from .status import WAITING


class Believer(Protocol):
    """Whoever remembers the records of a run."""

    def believed(self) -> int:
        """How much it takes to be stored."""
        ...


class Tally:
    """Counts records, each address once, whatever is said of it again."""

    def __init__(self) -> None:
        self._open: set[tuple[str, int]] = set()
        self._closed: set[tuple[str, int]] = set()

    def add(self, branch: str, position: int, status: str) -> None:
        """Count a record that is stored."""
        (self._open if status == WAITING else self._closed).add((branch, position))

    @property
    def number(self) -> int:
        """How much is stored: two for a record, one for an open one."""
        return 2 * len(self._closed) + len(self._open - self._closed)
