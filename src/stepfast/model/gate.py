"""What is said about a queue: that it is paused, and its limits. Decided here, from the row and what is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from ..errors import QueueFull
from .limits import Limits, decode, effective, encode


class Gate(Struct, dict=True):
    """The row of a queue, in the order of its columns."""

    name: str
    paused: bool = False
    paused_at: int | None = None
    declared: str | None = None
    """What the code declares."""
    declared_by: str | None = None
    declared_at: int | None = None
    chosen: str | None = None
    """What an operator has set; it wins."""
    limited_since: int | None = None
    counted_at: int | None = None
    pruned_at: int = 0

    @cached_property
    def limits(self) -> Limits:
        """The limits that hold: the declared ones, but as an operator has set them."""
        return effective(self.declared, self.chosen)

    @property
    def overridden(self) -> tuple[str, ...]:
        """The limits that an operator has set."""
        return tuple(decode(self.chosen))

    @property
    def limited(self) -> bool:
        """Whether claims are to be counted."""
        return self.limits.on_claims


class Bound(NamedTuple):
    """How many runs of a queue may be ready when some are started."""

    queue: str
    most: int

    def beyond(self, started: int) -> int:
        """How far to count: no more are told apart when so many are started."""
        return self.most + started + 1

    def check(self, before: int, after: int) -> None:
        """Refuse what was too much, by what was ready before and is now. A start that added nothing, because its key
        is taken, is never too much."""
        if after > self.most and after > before:
            raise QueueFull(self.queue, before, self.most, after - before)


Decision = Callable[[Gate, int], Gate]
"""The row and the time go in; the row that follows comes out."""


def pause(gate: Gate, now: int) -> Gate:
    """Nothing of the queue is claimed any more."""
    return gate if gate.paused else replace(gate, paused=True, paused_at=now)


def resume(gate: Gate, now: int) -> Gate:
    """Runs of the queue are claimed again."""
    return replace(gate, paused=False, paused_at=None)


def declare(gate: Gate, limits: Mapping[str, Any], by: str, now: int) -> Gate:
    """What the code says, from now on. The word of whoever began last holds, as with all code."""
    text = encode({name: value for name, value in limits.items() if value is not None})
    return _since(gate, replace(gate, declared=text, declared_by=by, declared_at=now), now)


def choose(gate: Gate, limits: Mapping[str, Any], now: int) -> Gate:
    """What an operator says. A limit that is not named stays as it was chosen before, or as it is declared."""
    return _since(gate, replace(gate, chosen=encode({**decode(gate.chosen), **limits})), now)


def reset(gate: Gate, now: int) -> Gate:
    """What the code declares holds again."""
    return _since(gate, replace(gate, chosen=None), now)


def _since(before: Gate, after: Gate, now: int) -> Gate:
    """When the queue becomes limited, what is executed by then was not counted yet."""
    return replace(after, limited_since=now) if after.limited and not before.limited else after


def written(gate: Gate) -> tuple[Any, ...]:
    """The columns that a decision may have changed, in the order of the statement that writes them."""
    return (
        gate.name, gate.paused, gate.paused_at, gate.declared, gate.declared_by, gate.declared_at, gate.chosen,
        gate.limited, gate.limited_since, gate.limits.max_ready,
    )  # fmt: skip
