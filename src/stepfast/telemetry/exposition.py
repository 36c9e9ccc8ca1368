"""Metrics as Prometheus reads them: families of series, added up over processes and written as text (version 0.0.4).

Written by ourselves because it is little: no package has to be installed to see how a worker is doing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from msgspec import Struct

COUNTER = "counter"
GAUGE = "gauge"
HISTOGRAM = "histogram"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_LONGEST = 200
"""Characters of a label's value at most."""
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_UNSEEN = {code: "\ufffd" for code in [*range(0x20), 0x7F, 0x85, 0x2028, 0x2029] if chr(code) != "\n"}
"""Characters that some reader might take for the end of a line, or show as nothing."""


class Family(Struct):
    """A metric: its name, what it means, and a series for each set of its labels."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()
    series: list[tuple[tuple[str, ...], list[float]]] = []
    """The values of the labels, and one number; of a histogram: how many fell into each bucket, how many above all of
    them, and their sum."""
    buckets: tuple[float, ...] = ()


def merged(families: Iterable[Family]) -> list[Family]:
    """Families of several processes as one: counts are added up, of gauges the largest counts."""
    found: dict[str, tuple[Family, dict[tuple[str, ...], list[float]]]] = {}
    for family in families:
        _, series = found.setdefault(family.name, (family, {}))
        for labels, numbers in family.series:
            before = series.get(labels)
            if before is None:
                series[labels] = list(numbers)
            elif family.kind == GAUGE:
                before[0] = max(before[0], numbers[0])
            else:
                series[labels] = [a + b for a, b in zip(before, numbers, strict=True)]
    return [
        Family(family.name, family.kind, family.help, family.labels, list(series.items()), family.buckets)
        for family, series in found.values()
    ]


def render(families: Iterable[Family]) -> str:
    """The text that a scrape is answered with."""
    lines: list[str] = []
    for family in families:
        lines.append(f"# HELP {family.name} {_help(family.help)}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        for labels, numbers in sorted(family.series):
            pairs = [f'{name}="{escaped(value)}"' for name, value in zip(family.labels, labels, strict=True)]
            if family.kind == HISTOGRAM:
                lines += _histogram(family, pairs, numbers)
            else:
                lines.append(f"{family.name}{_braced(pairs)} {number(numbers[0])}")
    return "\n".join(lines) + "\n"


def _histogram(family: Family, pairs: list[str], numbers: Sequence[float]) -> Iterable[str]:
    """Buckets are cumulative in the text."""
    total = 0.0
    for bound, count in zip((*family.buckets, math.inf), numbers, strict=False):
        total += count
        within = [*pairs, f'le="{number(bound)}"']
        yield f"{family.name}_bucket{_braced(within)} {number(total)}"
    yield f"{family.name}_sum{_braced(pairs)} {number(numbers[-1])}"
    yield f"{family.name}_count{_braced(pairs)} {number(total)}"


def _braced(pairs: Sequence[str]) -> str:
    return f"{{{','.join(pairs)}}}" if pairs else ""


def number(value: float) -> str:
    """A number as the format spells it."""
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(float(value))


def harmless(value: str) -> str:
    """A label's value of which no reader takes a part for something else: bounded, and without control characters."""
    return value[:_LONGEST].encode("utf-8", "replace").decode().translate(_UNSEEN)


def escaped(value: str) -> str:
    """A label's value between quotes."""
    return value.translate(_ESCAPES)


def _help(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")
