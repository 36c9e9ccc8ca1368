"""The text that Prometheus reads: exact, whatever names there are, and bounded, however many."""

from __future__ import annotations

import math

import pytest

from stepfast.telemetry.metrics import (
    COUNTER,
    GAUGE,
    OTHER,
    Caps,
    Counter,
    Family,
    Histogram,
    merged,
    number,
    render,
)
from tests.telemetry.scraping import parsed, total, value

HOSTILE = [
    'quote"', "back\\slash", "line\nbreak", 'all "of\\ them\n', "carriage\rreturn", "tab\t", "nul\0", "\x1b[31mred",
    "{}", 'a",b="c', "} 1\nevil_total 5", "# HELP x", "日本語", "🙂", "\u2028", "\u2029", "\x85", "\ud800", "", " ",
    "le", "\\n", "x" * 5000,
]  # fmt: skip

CAPS = Caps(200, 500)


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_no_value_of_a_label_is_anything_but_text(text: str) -> None:
    counter = Counter(CAPS, "things_total", "Things.", "name", "other")
    counter.add((text, "plain"), 3)
    histogram = Histogram(CAPS, "sizes", "Sizes.", "name", buckets=(1.0, 2.0))
    histogram.observe(1.5, (text,))
    samples = parsed(render([counter.family(), histogram.family()]))
    assert len(samples) == 1 + 5
    assert total(samples, "things_total") == 3
    [name] = {dict(labels)["name"] for (sample, labels) in samples if sample == "things_total"}
    assert len(name) <= 200
    assert not [char for char in name if ord(char) < 32 and char != "\n"]
    if text.isprintable() and len(text) <= 200 and "\ud800" not in text:
        assert name == text


def test_names_that_differ_in_hostile_characters_only_are_added_up_and_not_told_twice() -> None:
    counter = Counter(CAPS, "things_total", "Things.", "name")
    counter.add(("a\0",))
    counter.add(("a\1",))
    assert total(parsed(render([counter.family()])), "things_total") == 2


def test_a_histogram_is_cumulative_and_closed() -> None:
    histogram = Histogram(CAPS, "took_seconds", "How long.", buckets=(0.1, 1, 10))
    for amount in (0.05, 0.1, 0.5, 100, 3):
        histogram.observe(amount)
    samples = parsed(render([histogram.family()]))
    assert [value(samples, "took_seconds_bucket", le=le) for le in ("0.1", "1", "10", "+Inf")] == [2, 3, 4, 5]
    assert value(samples, "took_seconds_count") == 5
    assert value(samples, "took_seconds_sum") == pytest.approx(103.65)


def test_labels_admit_so_many_values_and_the_sums_stay_right() -> None:
    counter = Counter(Caps(values=3, series=100), "things_total", "Things.", "workflow", "step")
    for n in range(10):
        counter.add(("w", f"step {n}"))
        counter.add(("w", f"step {n}"))
    samples = parsed(render([counter.family()]))
    assert total(samples, "things_total") == 20
    assert {dict(labels)["step"] for _, labels in samples} == {"step 0", "step 1", "step 2", OTHER}
    assert value(samples, "things_total", workflow="w", step=OTHER) == 14


def test_a_metric_has_so_many_series_and_the_rest_is_one() -> None:
    counter = Counter(Caps(values=100, series=5), "things_total", "Things.", "workflow", "step")
    for n in range(50):
        counter.add((f"w{n % 7}", f"s{n % 5}"))
    samples = parsed(render([counter.family()]))
    assert len(samples) == 6  # five, and the one of all others
    assert total(samples, "things_total") == 50
    assert value(samples, "things_total", workflow=OTHER, step=OTHER) > 0


def test_memory_is_bounded_however_many_names_come() -> None:
    """Rule 58: and the sums stay right."""
    counter = Counter(Caps(values=10, series=10), "things_total", "Things.", "step")
    for n in range(5000):
        counter.add((f"step {n}",))
    assert len(counter.of) <= 20 and len(counter._series) <= 11
    assert total(parsed(render([counter.family()])), "things_total") == 5000


def test_processes_are_added_up_and_of_gauges_the_largest_counts() -> None:
    def of_process(n: int) -> list[Family]:
        counter = Counter(CAPS, "things_total", "Things.", "name")
        counter.add(("both",), n)
        counter.add((f"only {n}",))
        histogram = Histogram(CAPS, "took", "How long.", buckets=(1.0,))
        histogram.observe(n / 10)
        return [counter.family(), histogram.family(), Family("lag", GAUGE, "Lag.", series=[((), [float(n)])])]

    samples = parsed(render(merged([*of_process(1), *of_process(20)])))
    assert value(samples, "things_total", name="both") == 21
    assert value(samples, "things_total", name="only 1") == 1
    assert (value(samples, "took_count"), value(samples, "took_bucket", le="1")) == (2, 1)
    assert value(samples, "lag") == 20


def test_merging_within_a_bound_keeps_the_first_and_the_sum() -> None:
    family = Family("things_total", COUNTER, "Things.", ("name",), [((f"n{n}",), [1.0]) for n in range(10)])
    [small] = merged([family], 4)
    assert [labels for labels, _ in small.series] == [("n0",), ("n1",), ("n2",), ("n3",), (OTHER,)]
    assert sum(numbers[0] for _, numbers in small.series) == 10
    [again] = merged([small, Family("things_total", COUNTER, "Things.", ("name",), [(("new",), [1.0])])], 5)
    assert sum(numbers[0] for _, numbers in again.series) == 11
    assert len(again.series) == 5


@pytest.mark.parametrize(
    ("given", "spelled"),
    [(0, "0"), (3.0, "3"), (0.25, "0.25"), (1e300, "1e+300"), (math.inf, "+Inf"), (-math.inf, "-Inf"), (2**60, "1.15")],
)
def test_numbers_as_the_format_spells_them(given: float, spelled: str) -> None:
    assert number(given).startswith(spelled)
    assert float(number(given)) == given
