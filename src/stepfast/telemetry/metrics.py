"""Metrics of one process: an observer that keeps counters and histograms, and the text that Prometheus reads."""

from __future__ import annotations

import math
import threading
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from msgspec import Struct

from ..engine.observers import Gathered, Observer
from ..model import events
from ..model.status import COMPLETED, FAILED, SKIPPED
from ..settings import Settings

COUNTER = "counter"
GAUGE = "gauge"
HISTOGRAM = "histogram"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_LONGEST = 200
"""Characters of a label's value at most."""
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_UNSEEN = {code: "\ufffd" for code in [*range(0x20), 0x7F, 0x85, 0x2028, 0x2029] if chr(code) != "\n"}
"""Characters that a reader could take for the end of a line, or that are invisible."""


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


def merged(families: Iterable[Family], most: int | None = None) -> list[Family]:
    """Families of several processes as one: counts are added up, of gauges the largest counts.

    With ``most``, each keeps so many series, and adds up all that come later in one more: the sums stay right.
    """
    found: dict[str, tuple[Family, dict[tuple[str, ...], list[float]]]] = {}
    for family in families:
        _, series = found.setdefault(family.name, (family, {}))
        for labels, numbers in family.series:
            if most is not None and len(series) >= most and labels not in series:
                labels = (OTHER,) * len(labels)
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


# Written here, and not by prometheus_client, which takes five to ten times longer for the same text: a scrape shares
# the interpreter with the event loop of the worker. The tests read the text with the parser of that library.
def render(families: Iterable[Family]) -> str:
    """The text that a scrape is answered with."""
    lines: list[str] = []
    for family in families:
        lines.append(f"# HELP {family.name} {_help(family.help)}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        for labels, numbers in sorted(family.series):
            pairs = [f'{name}="{value.translate(_ESCAPES)}"' for name, value in zip(family.labels, labels, strict=True)]
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
    """Return the value of a label, bounded and without control characters."""
    return value[:_LONGEST].encode("utf-8", "replace").decode().translate(_UNSEEN)


def _help(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


OTHER = "_other"
"""The value of a label for all values beyond the limit."""

Values = tuple[str, ...]


class Caps(NamedTuple):
    """How many values of a label, and how many series, are admitted."""

    values: int
    series: int


class Known(dict[Values, list[float]]):
    """Numbers by values of labels. Unknown values are admitted; known ones need one look-up."""

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
        """Return the metric with its present values."""
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

    def observe_all(self, amounts: Sequence[float], values: Values = ()) -> None:
        """Put many values into their buckets."""
        numbers, below = self.of[values], 0
        ordered = sorted(amounts)
        for number, bound in enumerate(self.buckets):
            upto = bisect_right(ordered, bound, below)
            numbers[number] += upto - below
            below = upto
            if below == len(ordered):
                break
        numbers[-2] += len(ordered) - below
        numbers[-1] += sum(ordered)


_READY = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
_BUSY = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600)
_LASTED = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800, 3600, 21_600, 86_400, 604_800, 2_592_000)
_QUICK = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_TOGETHER = 200
"""How many records or tries of steps are counted together: each by itself costs several times as much."""
_RECORDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


class Metrics(Observer):
    """Counts events: ``Stepfast(observers=[Metrics()])``. The text is given by ``metrics_text(app)``.

    Labels are names of workflows, queues, steps and classes of errors, never ids, keys or messages. The settings
    ``metrics_values`` and ``metrics_series`` bound how many there are.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        settings = settings or Settings.from_environment()
        caps = Caps(settings.metrics_values, settings.metrics_series)
        self._lock = threading.Lock()
        self._runs = RunMetrics(caps)
        self._steps = StepMetrics(caps)
        self._work = WorkMetrics(caps)
        self._tries: deque[events.StepEnded] = deque()
        """Tries of steps, which are counted together."""
        self._gathered: list[Gathered] = []
        """What each worker counts by itself."""
        self._records = 0
        """How many records were written since that was taken."""
        self.takes_gathered = type(self) is Metrics
        """Whether it is not told of what workers count by themselves: another class may do more with it."""

    def families(self) -> list[Family]:
        """All that was counted so far. May be called from any thread."""
        self._count()
        with self._lock:
            groups = (self._runs, self._steps, self._work)
            return [metric.family() for group in groups for metric in vars(group).values()]

    def gather(self) -> Gathered:
        """What a worker that begins is to put its numbers into."""
        gathered = Gathered()
        with self._lock:
            self._gathered.append(gathered)
        return gathered

    def gather_no_more(self, gathered: Gathered) -> None:
        """The worker has ended."""
        with self._lock:
            self._take(gathered)
            self._gathered.remove(gathered)

    # -- runs ------------------------------------------------------------------------------------------------------

    def started(self, event: events.RunStarted) -> None:
        """Count the start of a run."""
        with self._lock:
            self._runs.started.add((event.workflow,))

    def claimed(self, event: events.RunClaimed) -> None:
        """Note how long it had been ready."""
        with self._lock:
            self._runs.ready.observe(event.ready_for, (event.queue,))

    def suspended(self, event: events.RunReleased) -> None:
        """Note how long its worker had it."""
        with self._lock:
            self._runs.busy.observe(event.busy, (event.workflow,))
            if event.replayed:
                self._runs.replayed.add((event.workflow,), event.replayed)
            if event.dag_step is not None and event.error_type is not None:
                self._dag_step(event, event.dag_step, FAILED)

    def ended(self, event: events.RunEnded) -> None:
        """Count the end. That of a dag's step is the end of a step."""
        runs, workflow = self._runs, (event.workflow,)
        with self._lock:
            runs.busy.observe(event.busy, workflow)
            if event.replayed:
                runs.replayed.add(workflow, event.replayed)
            if event.dag_step is not None:
                self._dag_step(event, event.dag_step, event.status)
                return
            runs.ended.add((event.workflow, event.status, event.reason or ""))
            runs.lasted.observe(event.lasted, workflow)

    def lost(self, event: events.RunLost) -> None:
        """Count a lease that was lost."""
        with self._lock:
            self._runs.busy.observe(event.busy, (event.workflow,))
            self._work.leases_lost.add()

    def signalled(self, event: events.SignalSent) -> None:
        """Count a signal that was sent."""
        with self._lock:
            self._runs.signals.add()

    # -- steps -----------------------------------------------------------------------------------------------------

    def step_ended(self, event: events.StepEnded) -> None:
        """Note how long a try took, and why it failed. A step that only polls causes no flush for long."""
        tries = self._tries
        tries.append(event)
        if len(tries) >= _TOGETHER:
            self._count()

    def step_refused(self, event: events.StepRefused) -> None:
        """Count a try whose result could not be recorded."""
        with self._lock:
            self._steps.failed.add((event.workflow, event.step, event.error_type))

    def remote_ended(self, event: events.RemoteEnded) -> None:
        """Note how long a remote step took. One that is a step of a dag is noted when that ends."""
        if event.dag_step is None:
            with self._lock:
                self._steps.seconds.observe(event.seconds, (event.workflow, event.step, event.outcome))
                if event.outcome == FAILED:
                    self._steps.failed.add((event.workflow, event.step, event.error_type or ""))

    def _dag_step(self, event: events.RunReleased | events.RunEnded, name: str, outcome: str) -> None:
        if outcome != SKIPPED:
            self._steps.seconds.observe(event.busy, (event.workflow, name, outcome))
        if outcome == FAILED:
            self._steps.failed.add((event.workflow, name, event.error_type or ""))

    # -- what was told of many ----------------------------------------------------------------------------------------

    def _count(self) -> None:
        """Count what has gathered, under the lock."""
        with self._lock:
            self._records = 0
            self._count_tries()
            for gathered in self._gathered:
                self._take(gathered)

    def _count_tries(self) -> None:
        steps, next_one = self._steps, self._tries.popleft
        for _ in range(len(self._tries)):
            each = next_one()
            steps.seconds.observe(each.seconds, (each.workflow, each.step, each.outcome))
            if each.outcome == FAILED:
                steps.failed.add((each.workflow, each.step, each.error_type or ""))

    def _take(self, gathered: Gathered) -> None:
        runs, steps = self._runs, self._steps
        for queue, ready in gathered.claims.take():
            runs.ready.observe_all(ready, (queue,))
        for (workflow, step), seconds in gathered.steps.take():
            steps.seconds.observe_all(seconds, (workflow, step, COMPLETED))
        for workflow, ends in gathered.ends.take():
            busy, lasted, replayed = zip(*ends, strict=True)
            runs.busy.observe_all(busy, (workflow,))
            runs.lasted.observe_all(lasted, (workflow,))
            runs.ended.add((workflow, COMPLETED, ""), len(ends))
            if any(replayed):
                runs.replayed.add((workflow,), sum(replayed))

    # -- the worker's own ------------------------------------------------------------------------------------------

    def claim_answered(self, event: events.ClaimAnswered) -> None:
        """Note how long a claim took."""
        with self._lock:
            self._work.claims.add(("runs" if event.runs else "nothing",))
            self._work.claim_seconds.observe(event.seconds)

    def flushed(self, event: events.JournalFlushed) -> None:
        """Note how long a flush took, and how much it carried."""
        with self._lock:
            self._work.flush_seconds.observe(event.seconds)
            self._work.flush_records.observe(event.records)
            if event.refused:
                self._work.fenced.add(amount=event.refused)
            self._records += event.records
        if self._records >= _TOGETHER:  # what is gathered goes with a record
            self._count()

    def swept(self, event: events.RunsSwept) -> None:
        """Count what was cleared up."""
        with self._lock:
            self._work.recovered.add(amount=event.recovered)
            self._work.dead_letters.add(amount=event.dead_letters)
            self._work.expired.add(amount=event.expired)


class RunMetrics:
    """What becomes of runs."""

    def __init__(self, caps: Caps) -> None:
        self.started = Counter(
            caps, "stepfast_runs_started_total", "Runs that this process started, children included.", "workflow"
        )
        self.ended = Counter(
            caps, "stepfast_runs_ended_total", "Runs that came to their end at this worker.",
            "workflow", "status", "reason",
        )  # fmt: skip
        self.ready = Histogram(
            caps, "stepfast_run_ready_seconds", "How long runs were ready before they were claimed.",
            "queue", buckets=_READY,
        )  # fmt: skip
        self.lasted = Histogram(
            caps, "stepfast_run_seconds", "From the start of a run to its end, waits included.",
            "workflow", buckets=_LASTED,
        )  # fmt: skip
        self.busy = Histogram(
            caps, "stepfast_run_busy_seconds", "How long a worker had a run, from a claim to its end.",
            "workflow", buckets=_BUSY,
        )  # fmt: skip
        self.replayed = Counter(
            caps, "stepfast_replayed_steps_total", "Calls that were answered from records.", "workflow"
        )
        self.signals = Counter(caps, "stepfast_signals_sent_total", "Signals that this process sent.")


class StepMetrics:
    """What becomes of steps: of workflows and of dags."""

    def __init__(self, caps: Caps) -> None:
        self.seconds = Histogram(
            caps, "stepfast_step_seconds", "How long calls of steps took, by how they ended.",
            "workflow", "step", "outcome", buckets=_BUSY,
        )  # fmt: skip
        self.failed = Counter(
            caps, "stepfast_step_tries_failed_total", "Tries of steps that failed, by the class of the error.",
            "workflow", "step", "error_type",
        )  # fmt: skip


class WorkMetrics:
    """What the worker itself does."""

    def __init__(self, caps: Caps) -> None:
        self.claims = Counter(caps, "stepfast_claims_total", "Claims, by whether they brought runs.", "result")
        self.claim_seconds = Histogram(caps, "stepfast_claim_seconds", "How long claims took.", buckets=_QUICK)
        self.flush_seconds = Histogram(
            caps, "stepfast_flush_seconds", "How long flushes of the journal took: one transaction each.",
            buckets=_QUICK,
        )  # fmt: skip
        self.flush_records = Histogram(
            caps, "stepfast_flush_records", "How many records one flush carried.", buckets=_RECORDS
        )
        self.fenced = Counter(
            caps, "stepfast_fenced_writes_total", "Writes that were refused because the run was another's by then."
        )
        self.recovered = Counter(
            caps, "stepfast_runs_recovered_total", "Runs of dead workers that this worker gave back."
        )
        self.dead_letters = Counter(
            caps, "stepfast_dead_letters_total", "Runs that failed because too many workers had died with them."
        )
        self.expired = Counter(
            caps, "stepfast_runs_expired_total", "Runs that expired or passed their deadline before they were claimed."
        )
        self.leases_lost = Counter(caps, "stepfast_leases_lost_total", "Runs that this worker lost while it had them.")
