"""The configuration of a queue: its limits, and whether it is paused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any, NamedTuple, TypedDict

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..errors import ConfigurationError, QueueFull
from .backoff import seconds
from .names import refuse_unknown
from .stored import read_json

_MOST = 1_000_000_000
"""More than any database counts to: a limit beyond it is a mistake."""
_UNCOUNTED_MS = 5000
"""For so long after a queue became limited, claims from before it may still commit, with runs that are not counted."""
_SHORTEST, _LONGEST = 0.001, 31 * 86400.0
"""Seconds that a rate counts over: the clock has milliseconds, and the log of starts goes back no further."""


@dataclass(frozen=True, slots=True)
class Rate:
    """``Rate(100, per=60)``: at most 100 starts of execution in any 60 seconds, by the database's clock. ``per`` is
    seconds, or a timedelta."""

    count: int
    per: float = 1.0

    def __init__(self, count: int, per: float | timedelta = 1.0) -> None:
        object.__setattr__(self, "count", _whole(count, "Rate: count"))
        span = seconds(per, "Rate: per")
        if not _SHORTEST <= span <= _LONGEST:
            raise ConfigurationError(f"Rate: per must be from a millisecond to 31 days, not {per!r}")
        object.__setattr__(self, "per", span)

    @property
    def per_ms(self) -> int:
        """The span in milliseconds."""
        return round(self.per * 1000)


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one queue; None: there is none of that kind."""

    concurrency: int | None = None
    rate: Rate | None = None
    key_concurrency: int | None = None
    key_rate: Rate | None = None
    max_ready: int | None = None

    @property
    def on_claims(self) -> bool:
        """Whether what is claimed has to be counted."""
        return self.concurrency is not None or self.rate is not None or self.on_keys

    @property
    def on_keys(self) -> bool:
        """Whether each key has a limit of its own."""
        return self.key_concurrency is not None or self.key_rate is not None


class LimitKeywords(TypedDict, total=False):
    """The limits that ``app.queue`` and ``app.set_limits`` take; None: no limit of that kind."""

    concurrency: int | None
    """How many runs of the queue are executed at once, over all workers."""
    rate: Rate | None
    """How many are started in a time."""
    key_concurrency: int | None
    """How many of one ``concurrency_key`` are executed at once."""
    key_rate: Rate | None
    """How many of one ``concurrency_key`` are started in a time."""
    max_ready: int | None
    """How many may be ready: a start beyond it raises QueueFull."""


NAMES = tuple(LimitKeywords.__annotations__)
_RATES = ("rate", "key_rate")


def checked(what: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The limits as they were given, if each makes sense; ``what`` was called with them."""
    refuse_unknown(what, given, NAMES)
    return {name: _checked(what, name, value) for name, value in given.items()}


def _checked(what: str, name: str, value: object) -> object:
    if value is None:
        return None
    if name not in _RATES:
        return _whole(value, f"{what}: {name}")
    if not isinstance(value, Rate):
        raise ConfigurationError(f"{what}: {name} must be a Rate, as in {name}=Rate(100, per=60), not {value!r}")
    return value


def _whole(value: object, what: str) -> int:
    if isinstance(value, int) and value > _MOST:
        raise ConfigurationError(f"{what} must be at most {_MOST}, not {value!r}; None is no limit")
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        hint = " (to hold a queue, pause it)" if value == 0 and not isinstance(value, bool) else ""
        raise ConfigurationError(f"{what} must be a whole number of at least 1, not {value!r}{hint}")
    return value


def encode(given: Mapping[str, Any]) -> str:
    """Limits as they are stored, by name."""
    plain = {
        name: [value.count, value.per_ms] if isinstance(value, Rate) else value for name, value in sorted(given.items())
    }
    return msgspec.json.encode(plain).decode()


def decode(text: str | None) -> dict[str, Any]:
    """The limits that a row holds. What newer code may have written, and this code does not know, is left out."""
    found = read_json(text, dict[str, Any], {})
    return {name: _decoded(name, value) for name, value in found.items() if name in NAMES and _is_limit(name, value)}


def _decoded(name: str, value: Any) -> Any:
    return Rate(value[0], value[1] / 1000) if name in _RATES and value is not None else value


def _is_limit(name: str, value: Any) -> bool:
    """Whether a row may hold this for a limit; a hand may have written it."""
    if value is None:
        return True
    if name not in _RATES:
        return _is_count(value)
    pair = value if isinstance(value, list) and len(value) == 2 else (0, 0)
    return all(map(_is_count, pair)) and _SHORTEST <= pair[1] / 1000 <= _LONGEST


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MOST * 1000


def effective(declared: str | None, chosen: str | None) -> Limits:
    """What holds: each limit as an operator has set it, else as the code declares it."""
    return Limits(**{**decode(declared), **decode(chosen)})


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

    def may_hold_uncounted(self, now: int) -> bool:
        """Whether to search for runs that were claimed before the queue was limited: at first by each claim, then less
        often, the longer it has been limited. What a claim took that was slow to commit is found after another quarter
        of that time."""
        since, counted = self.limited_since or 0, self.counted_at or 0
        return counted < since or (counted < since + _UNCOUNTED_MS and now >= counted + (counted - since) // 4)


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
    """What the code says, from now on. The word of the process that began last holds, as with all code."""
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
