"""When to try again: the backoff between two tries, and whether there is another try at all; and what a check of
``ctx.wait_until`` may answer.
"""

from __future__ import annotations

import math
import random as _random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar, cast

from ..errors import (
    LONGEST,
    ConfigurationError,
    ContextMisuse,
    InvalidInput,
    NonRetryableError,
    PayloadError,
    RecordedError,
    RetryLater,
)
from ..settings import Settings

_MAX_PRIORITY = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential: ``base``, ``base * factor``, ``base * factor²`` … seconds, never above ``max``.

    ``jitter`` spreads each wait by ±20 % (or by the share given), so that runs which failed together do not come
    back together. ``factor=1`` makes it a fixed wait.
    """

    base: float = 1.0
    factor: float = 2.0
    max: float = 300.0
    jitter: bool | float = True

    def __post_init__(self) -> None:
        for name in ("base", "factor", "max", "jitter"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
                raise ConfigurationError(f"Backoff: {name} must be a number of zero or more, not {value!r}")
        if self.max > LONGEST:
            raise ConfigurationError(f"Backoff: max must be at most a hundred years, not {self.max!r} seconds")
        if self.factor < 1:
            raise ConfigurationError("Backoff: factor must be at least 1; each wait is at least as long as the last")
        if self.jitter is not True and self.jitter > 1:
            raise ConfigurationError("Backoff: jitter is a share of the wait, from 0 to 1")

    def delay(self, failures: int, random: _random.Random | None = None) -> float:
        """Seconds to wait after the ``failures``-th failure (1-based)."""
        # The exponent is capped before the power is taken: 2.0 ** 5000 overflows.
        exponent = min(failures - 1, 1000) if self.factor > 1 else 0
        try:
            wait = min(self.base * self.factor**exponent, self.max)
        except OverflowError:
            wait = self.max
        share = 0.2 if self.jitter is True else float(self.jitter)
        if share:
            # At the cap the spread is below it only, evenly: else half of those that wait would come back together.
            low, high = wait * (1 - share), min(wait * (1 + share), self.max)
            wait = low + (high - low) * (random or _random).random()
        return wait


V = TypeVar("V")
NO_STATE = object()


@dataclass(frozen=True, slots=True)
class Again:
    """Not yet, as the answer of a check of ``ctx.wait_until``. The next check is called with ``state``, if one is
    given, in place of its first argument, and ``after`` so many seconds rather than those that ``every`` says."""

    state: Any = NO_STATE
    after: float | timedelta | None = None

    def __post_init__(self) -> None:
        if self.after is not None:
            seconds(self.after, "after of Again")


@dataclass(frozen=True, slots=True)
class Done(Generic[V]):
    """The answer of a check of ``ctx.wait_until`` that ends it with this value, also with one that is not true."""

    value: V


def seconds(value: float | timedelta, what: str) -> float:
    """A span of time given as seconds or timedelta, refused with its name if it makes no sense."""
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number < math.inf:
        given: object = value
        hint = "; write timedelta(days=3), for example" if isinstance(given, str) else ""
        raise ConfigurationError(f"{what} must be zero or more seconds (or a timedelta), not {value!r}{hint}")
    if number > LONGEST:
        raise ConfigurationError(f"{what} must be at most a hundred years, not {value!r}")
    return float(number)


def to_milliseconds(when: datetime, what: str) -> int:
    """A point in time in milliseconds; refused with its name if it has no time zone, or cannot be shown any more."""
    if not isinstance(when, datetime) or when.tzinfo is None:
        raise ConfigurationError(f"{what} must be a datetime with a time zone, not {when!r}")
    if when.year > 9000:
        raise ConfigurationError(f"{what} must be before the year 9000, not {when!r}")
    return int(when.timestamp() * 1000)


def check_priority(value: object) -> int:
    """A priority: any whole number that the databases can store."""
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > _MAX_PRIORITY:
        raise ConfigurationError(f"priority must be a whole number, not {value!r}")
    return value


def check_backoff(value: object) -> Backoff | None:
    """An option that is a Backoff, if it is given."""
    if value is not None and not isinstance(value, Backoff):
        raise ConfigurationError(f"backoff must be a Backoff(…), not {value!r}")
    return value


Errors = type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool]
"""Which errors are meant: those of a class or of several, or those of which a function says so."""


def check_errors(value: Any, what: str) -> Errors | None:
    """An option that says which errors are meant, if it is given."""
    kinds = value if isinstance(value, tuple) else (value,)
    classes = kinds and all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds)
    function = callable(value) and not isinstance(value, type)
    if value is not None and not classes and not function:
        raise ConfigurationError(f"{what} must be a class of errors, a tuple of them, or a function, not {value!r}")
    return cast("Errors | None", value)


def is_permanent(error: BaseException, retry_on: Errors | None, give_up_on: Errors | None) -> bool:
    """Whether the options of a step say that no further try can help. A RetryLater asks for another try itself. A
    function that fails has not said that the error is to be tried again, and the error keeps what it raised."""
    if not isinstance(error, Exception) or isinstance(error, RetryLater):
        return False
    try:
        return (retry_on is not None and not _is_meant(error, retry_on)) or (
            give_up_on is not None and _is_meant(error, give_up_on)
        )
    except Exception as wrong:  # the function is the application's
        error.add_note(f"retry_on or give_up_on could not judge it: {type(wrong).__name__}: {wrong}")
        return True


def _is_meant(error: Exception, errors: Errors) -> bool:
    return isinstance(error, errors) if isinstance(errors, (type, tuple)) else bool(errors(error))


def default_backoff(settings: Settings) -> Backoff:
    """Return the backoff of steps and runs that name none."""
    return Backoff(settings.backoff_base, settings.backoff_factor, settings.backoff_max, settings.backoff_jitter)


def retry_delay(
    error: BaseException, failures: int, allowed: int, backoff: Backoff, random: _random.Random | None = None
) -> float | None:
    """Seconds until the next try after ``failures`` failed ones, or None if this was the last.

    ``allowed`` is the number of calls that may be made in all.
    """
    if not is_retryable(error) or failures >= allowed:
        return None
    delay = own_delay(error)
    return backoff.delay(failures, random) if delay is None else delay


def own_delay(error: BaseException) -> float | None:
    """Seconds an error itself asks for: a RetryLater, or a step that failed with one."""
    return error.delay if isinstance(error, (RetryLater, RecordedError)) else None


def is_retryable(error: BaseException) -> bool:
    """Whether another try could help: not after NonRetryableError, nor when a value cannot be stored or does not fit,
    nor when the code uses its context wrongly, or gives an option that cannot work."""
    if isinstance(error, RecordedError):
        return error.retryable
    return not isinstance(error, (NonRetryableError, PayloadError, InvalidInput, ContextMisuse, ConfigurationError))
