"""When to try again: the backoff between two tries, and whether there is another try at all."""

from __future__ import annotations

import math
import random as _random
from dataclasses import dataclass
from datetime import timedelta

from ..errors import ConfigurationError, NonRetryableError, PayloadError, RetryLater, StepFailed


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
            if not math.isfinite(value) or value < 0:
                raise ConfigurationError(f"Backoff: {name} must be a number of zero or more, not {value!r}")
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
            wait *= 1 + share * (2 * (random or _random).random() - 1)  # type: ignore[union-attr]
        return wait


def seconds(value: float | timedelta, what: str) -> float:
    """A span of time given as seconds or timedelta, refused with its name if it makes no sense."""
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number) or number < 0:
        raise ConfigurationError(f"{what} must be zero or more seconds (or a timedelta), not {value!r}")
    return float(number)


def retry_delay(error: BaseException, failures: int, allowed: int, backoff: Backoff) -> float | None:
    """Seconds until the next try after ``failures`` failed ones, or None if this was the last.

    ``allowed`` is the number of calls that may be made in all.
    """
    if not is_retryable(error) or failures >= allowed:
        return None
    if isinstance(error, RetryLater):
        return error.delay
    return backoff.delay(failures)


def is_retryable(error: BaseException) -> bool:
    """Whether another try could help: not after NonRetryableError, nor when a result cannot be stored."""
    if isinstance(error, StepFailed):
        return error.retryable
    return not isinstance(error, (NonRetryableError, PayloadError))
