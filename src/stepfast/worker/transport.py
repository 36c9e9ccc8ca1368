"""What carries steps to workers elsewhere and their results back, as the engine sees it.

The SQL transport is the first one. Whatever the carrier is, three things hold. Every call may be repeated. A step has
one id for all its attempts. And a result stays where it is until the engine, having recorded it, removes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ..model.remote_steps import Result, Task


class Transport(Protocol):
    """The engine's side. ``connection`` is one of the transport's own database, with the caller's transaction open on
    it: what is done there comes with its commit. A transport that is no database refuses it."""

    prefix: str
    """What tells it from others: a step that went out over one is not looked for over another."""

    async def open(self) -> None:
        """Connect, and make what is needed if that is wanted."""
        ...

    async def close(self) -> None:
        """Disconnect from what is the transport's own."""
        ...

    async def dispatch(self, tasks: Sequence[Task], connection: Any = None) -> None:
        """Send tasks out. One that is there already stays as it is; a later attempt takes the place of an earlier one,
        and of the failures that it left."""
        ...

    async def results(self, step_ids: Sequence[str], connection: Any = None) -> list[Result]:
        """What has come of these steps so far. Of other steps, which may be other engines', nothing is touched."""
        ...

    async def remove(self, results: Sequence[Result], connection: Any = None) -> None:
        """Take away results that were recorded: exactly these, and not what has come in their place since."""
        ...

    async def cancel(self, step_ids: Sequence[str], connection: Any = None) -> list[str]:
        """Take back what no worker has begun; the ids of those that were. Others come to an end, and their results are
        the caller's to remove."""
        ...

    async def unclaimed(self, step_ids: Sequence[str]) -> list[str]:
        """The steps, of those named, whose tasks no worker has begun, for people who wonder."""
        ...

    async def lost(self, step_ids: Sequence[str]) -> list[str]:
        """The steps, of those named, that have vanished: neither a task nor a result of them is there. Send them
        again."""
        ...

    async def leftovers(self, after: str, limit: int) -> list[str]:
        """A page of the steps, in the order of their ids, of which there is a task or a result that has lain there for
        longer than a lease. Some of them may be over."""
        ...
