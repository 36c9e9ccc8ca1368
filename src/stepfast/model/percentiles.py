"""Percentiles: values that so many of a hundred do not exceed."""

from __future__ import annotations

import math
from collections.abc import Sequence


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The smallest of the values, which come in order, that so many of a hundred do not exceed. It is one of them, and
    never a value in between."""
    if not ordered:
        raise ValueError("nothing has no percentiles")
    rank = math.ceil(len(ordered) * percent / 100)
    return ordered[min(max(rank, 1), len(ordered)) - 1]
