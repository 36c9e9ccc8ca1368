"""What every store can do for remote steps; a part of the store's protocol."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple, Protocol

from ..model.remote_steps import RemoteStep, Result, Task

Key = tuple[str, int]
"""The run of a remote step, and its number there."""


class Due(NamedTuple):
    """Remote steps that somebody has to see to, outside of our tables."""

    tasks: list[Task] = []
    """To be sent; their rows say already that they were. Empty where they were sent in the same transaction."""
    doubtful: list[Task] = []
    """To be looked for: are they still there?"""
    over: list[str] = []
    """Over, but not known to have left nothing behind: to be taken back, and their results to be removed."""
    sent: int = 0
    """How many were sent, by this transaction or by whoever has this."""


class Judgement(NamedTuple):
    """What came of results of remote steps."""

    outcomes: int
    """How many runs are told something."""
    leftover: list[str]
    """Steps that are over but may have a task left, because more than one was sent."""


class Carrier(Protocol):
    """A transport of remote steps in the same database: it works in the transaction that is open on a connection."""

    async def dispatch(self, tasks: Sequence[Task], connection: Any = None) -> None:
        """Send tasks out with this transaction."""

    async def remove(self, results: Sequence[Result], connection: Any = None) -> None:
        """Delete results that were recorded."""


class RemoteStepStore(Protocol):
    """A database that holds runs with remote steps. It knows nothing of the transport's own tables."""

    def carry(self, carrier: Carrier) -> None:
        """From now on the transport takes part in this store's transactions, because it is in the same database."""

    async def remote_steps(self, run_ids: Sequence[str]) -> list[RemoteStep]:
        """The remote steps of some runs, without their inputs."""
        ...

    async def alive_remote(self, run_id: str) -> dict[str, int | None]:
        """The ids of those of a run's remote steps that still come to something; and of those that had to be sent anew,
        because the run had ended meanwhile, when that was."""
        ...

    async def open_remote(self, carrier: str, after: Key, limit: int) -> list[Key]:
        """A page of the remote steps that wait for a result over a transport, beyond a run and a number."""
        ...

    async def over_remote(self, carrier: str, after: Key, limit: int) -> list[Key]:
        """A page of the remote steps over a transport that nobody seems to wait for any more, beyond a run and a
        number."""
        ...

    async def closed_remote(self, keys: Sequence[Key]) -> list[Key]:
        """The remote steps, of those named, that nothing is left to do about."""
        ...

    async def due_remote(self, carrier: str, joined: bool, sweep_ms: int, way_ms: int, limit: int) -> Due:
        """What somebody has to see to now. Whoever is told does so; ``joined``: sent in the same transaction. Else
        nobody misses a task while it may be on its way, which is ``way_ms``."""
        ...

    async def judge_remote(self, results: Sequence[Result], joined: bool, sweep_ms: int, random: Random) -> Judgement:
        """Decide what results mean, and leave the outcomes in mailboxes; ``joined``: and delete them with that. Else
        whoever has deleted them says so by ``clear_remote``, or they are due after ``sweep_ms``."""
        ...

    async def resend_remote(self, tasks: Sequence[Task], why: str) -> int:
        """Tasks that vanished are to be sent once more; how many runs are told that theirs will never come."""
        ...

    async def refuse_remote(self, tasks: Sequence[Task], why: str) -> int:
        """The transport does not take these tasks, and never will; how many runs are told so."""
        ...

    async def withdraw_remote(self, keys: Sequence[Key]) -> int:
        """Mark remote steps to be taken back, of those named, if nobody waits for them; how many."""
        ...

    async def clear_remote(self, step_ids: Sequence[str]) -> None:
        """Note that remote steps were withdrawn, or are over, and have left nothing behind."""
