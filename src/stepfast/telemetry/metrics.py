"""What a process has done, counted: an observer that keeps counters and histograms."""

from __future__ import annotations

import threading
from collections import deque

from ..engine.observing import Observer
from ..model.events import (
    ClaimAnswered,
    JournalFlushed,
    RemoteEnded,
    RunClaimed,
    RunEnded,
    RunLost,
    RunReleased,
    RunsSwept,
    RunStarted,
    SignalSent,
    StepEnded,
    StepRefused,
)
from ..model.status import FAILED, SKIPPED
from ..settings import Settings
from .exposition import Family
from .series import Caps, Counter, Histogram

_READY = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
_BUSY = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600)
_LASTED = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800, 3600, 21_600, 86_400, 604_800, 2_592_000)
_QUICK = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_TOGETHER = 200
"""How many claims, ends and tries of steps are counted together: each by itself costs nearly twice as much."""
_RECORDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


class Metrics(Observer):
    """Counts what it is told: ``Stepfast(observers=[Metrics()])``. The text is given by ``metrics_text(app)``.

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
        self._told: deque[RunClaimed | RunEnded | StepEnded] = deque()
        """What is not counted yet of that of which there is most."""

    def families(self) -> list[Family]:
        """All that was counted so far. May be called from any thread."""
        self._count()
        with self._lock:
            groups = (self._runs, self._steps, self._work)
            return [metric.family() for group in groups for metric in vars(group).values()]

    # -- runs ------------------------------------------------------------------------------------------------------

    def started(self, event: RunStarted) -> None:
        """Count the start of a run."""
        with self._lock:
            self._runs.started.add((event.workflow,))

    def claimed(self, event: RunClaimed) -> None:
        """Note how long it had been ready."""
        told = self._told
        told.append(event)
        if len(told) >= _TOGETHER:
            self._count()

    def suspended(self, event: RunReleased) -> None:
        """Note how long its worker had it."""
        with self._lock:
            self._runs.busy.observe(event.busy, (event.workflow,))
            if event.replayed:
                self._runs.replayed.add((event.workflow,), event.replayed)
            if event.dag_step is not None and event.error_type is not None:
                self._dag_step(event, event.dag_step, FAILED)

    def ended(self, event: RunEnded) -> None:
        """Count the end. That of a dag's step is the end of a step."""
        told = self._told
        told.append(event)
        if len(told) >= _TOGETHER:
            self._count()

    def lost(self, event: RunLost) -> None:
        """Count a lease that was lost."""
        with self._lock:
            self._runs.busy.observe(event.busy, (event.workflow,))
            self._work.leases_lost.add()

    def signalled(self, event: SignalSent) -> None:
        """Count a signal that was sent."""
        with self._lock:
            self._runs.signals.add()

    # -- steps -----------------------------------------------------------------------------------------------------

    def step_ended(self, event: StepEnded) -> None:
        """Note how long a try took, and why it failed."""
        told = self._told
        told.append(event)
        if len(told) >= _TOGETHER:
            self._count()

    def step_refused(self, event: StepRefused) -> None:
        """Count a try whose result could not be recorded."""
        with self._lock:
            self._steps.failed.add((event.workflow, event.step, event.error_type))

    def remote_ended(self, event: RemoteEnded) -> None:
        """Note how long a remote step took. One that is a step of a dag is noted when that ends."""
        if event.dag_step is None:
            with self._lock:
                self._steps.seconds.observe(event.seconds, (event.workflow, event.step, event.outcome))
                if event.outcome == FAILED:
                    self._steps.failed.add((event.workflow, event.step, event.error_type or ""))

    def _dag_step(self, event: RunReleased | RunEnded, name: str, outcome: str) -> None:
        if outcome != SKIPPED:
            self._steps.seconds.observe(event.busy, (event.workflow, name, outcome))
        if outcome == FAILED:
            self._steps.failed.add((event.workflow, name, event.error_type or ""))

    # -- what was told of many ----------------------------------------------------------------------------------------

    def _count(self) -> None:
        """Count what has gathered. Only whoever has the lock takes it out."""
        with self._lock:
            told = [self._told.popleft() for _ in range(len(self._told))]
            self._runs.ready.observe_all([(each.ready_for, (each.queue,)) for each in told if type(each) is RunClaimed])
            self._count_ends([each for each in told if type(each) is RunEnded])
            self._count_tries([each for each in told if type(each) is StepEnded])

    def _count_ends(self, ends: list[RunEnded]) -> None:
        runs = self._runs
        runs.busy.observe_all([(each.busy, (each.workflow,)) for each in ends])
        for each in ends:
            if each.replayed:
                runs.replayed.add((each.workflow,), each.replayed)
            if each.dag_step is not None:
                self._dag_step(each, each.dag_step, each.status)
            else:
                runs.ended.add((each.workflow, each.status, each.reason or ""))
        runs.lasted.observe_all([(each.lasted, (each.workflow,)) for each in ends if each.dag_step is None])

    def _count_tries(self, tries: list[StepEnded]) -> None:
        self._steps.seconds.observe_all([(each.seconds, (each.workflow, each.step, each.outcome)) for each in tries])
        for each in tries:
            if each.outcome == FAILED:
                self._steps.failed.add((each.workflow, each.step, each.error_type or ""))

    # -- the worker's own ------------------------------------------------------------------------------------------

    def claim_answered(self, event: ClaimAnswered) -> None:
        """Note how long a claim took."""
        with self._lock:
            self._work.claims.add(("runs" if event.runs else "nothing",))
            self._work.claim_seconds.observe(event.seconds)

    def flushed(self, event: JournalFlushed) -> None:
        """Note how long a flush took, and how much it carried."""
        with self._lock:
            self._work.flush_seconds.observe(event.seconds)
            self._work.flush_records.observe(event.records)
            if event.refused:
                self._work.fenced.add(amount=event.refused)

    def swept(self, event: RunsSwept) -> None:
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
