"""Counters and histograms of one process. However many names there are, the number of series is bounded.

Names of steps can be made at run time, and a queue can be named after a customer. Each label admits so many values, and
each metric so many series; what comes later is counted under ``_other``, so that sums stay right.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from .exposition import COUNTER, HISTOGRAM, Family, harmless, merged

OTHER = "_other"
"""The value of a label that stands for all values that came too late."""

Values = tuple[str, ...]


class Caps:
    """How many values of a label, and how many series, are admitted."""

    def __init__(self, values: int, series: int) -> None:
        self.values = values
        self.series = series


class Known(dict[Values, list[float]]):
    """Numbers by values of labels. Values that are not known yet are admitted: one look-up where most are known."""

    def __init__(self, admit: Callable[[Values], list[float]]) -> None:
        super().__init__()
        self._admit = admit

    def __missing__(self, values: Values) -> list[float]:
        return self._admit(values)


class Metric:
    """A metric with labels. Not safe for threads by itself."""

    kind = COUNTER

    def __init__(self, caps: Caps, name: str, help: str, *labels: str, buckets: tuple[float, ...] = ()) -> None:
        self._caps = caps
        self._name = name
        self._help = help
        self._labels = labels
        self.buckets = buckets
        self._seen: list[set[str]] = [set() for _ in labels]
        """The values that each label has admitted."""
        self.of = Known(self._admit)
        """What was counted, by the values as they came; several may lead to one series."""
        self._series: dict[Values, list[float]] = {}
        if not labels:
            self._admit(())  # there from the beginning: a rate over its first increase is seen

    def family(self) -> Family:
        """The metric as it stands."""
        series = [(values, list(numbers)) for values, numbers in self._series.items()]
        return Family(self._name, self.kind, self._help, self._labels, series, self.buckets)

    def _admit(self, values: Values) -> list[float]:
        """The numbers of a new series; those of the others, if there is no room for it."""
        admitted = tuple(self._value(seen, harmless(value)) for seen, value in zip(self._seen, values, strict=True))
        if admitted not in self._series and len(self._series) >= self._caps.series:
            admitted = (OTHER,) * len(values)
        numbers = self._series.setdefault(admitted, [0.0] * self._width)
        if len(self.of) < 2 * self._caps.series:  # bounded too: the rest is looked up the long way
            self.of[values] = numbers
        return numbers

    def _value(self, seen: set[str], value: str) -> str:
        if value not in seen:
            if len(seen) >= self._caps.values:
                return OTHER
            seen.add(value)
        return value

    @property
    def _width(self) -> int:
        return 1 if self.kind == COUNTER else len(self.buckets) + 2


class Counter(Metric):
    """A number that only ever grows."""

    def add(self, values: Values = (), amount: float = 1) -> None:
        """Count something that has happened."""
        self.of[values][0] += amount


class Histogram(Metric):
    """How values are spread."""

    kind = HISTOGRAM

    def observe(self, amount: float, values: Values = ()) -> None:
        """Put a value into its bucket."""
        numbers = self.of[values]
        numbers[bisect_left(self.buckets, amount)] += 1
        numbers[-1] += amount


def folded(families: list[Family], most: int) -> list[Family]:
    """Families with at most so many series per metric, and with the sums that they had: the series that came last
    become one."""
    for family in families:
        if len(family.series) > most:
            others = [(OTHER,) * len(family.labels)] * (len(family.series) - most)
            late = [(labels, numbers) for labels, (_, numbers) in zip(others, family.series[most:], strict=True)]
            rest = Family(family.name, family.kind, family.help, family.labels, late, family.buckets)
            kept = Family(family.name, family.kind, family.help, family.labels, family.series[:most], family.buckets)
            family.series = merged([kept, rest])[0].series
    return families
