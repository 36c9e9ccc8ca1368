"""The claims that a worker has asked for: each has a number, which is its token, and some may not be answered yet."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class Questions:
    """Numbers claims, whoever asks them."""

    def __init__(self) -> None:
        self.last = 0
        """The number of the last claim, which is how many there were."""
        self._open: set[int] = set()

    @contextlib.contextmanager
    def ask(self) -> Iterator[int]:
        """A claim that is unanswered until the block is left: it may have taken runs that we do not know of yet."""
        self.last += 1
        number = self.last
        self._open.add(number)
        try:
            yield number
        finally:
            self._open.discard(number)

    @property
    def unanswered(self) -> int | None:
        """The number of the oldest claim that has no answer yet."""
        return min(self._open, default=None)
