"""Seeing what a worker does: observers, and what hangs on them."""

from ..engine.observing import Observer
from ..model.events import (
    ClaimAnswered,
    JournalFlushed,
    RunClaimed,
    RunEnded,
    RunLost,
    RunReleased,
    RunsSwept,
    RunStarted,
    SignalSent,
    StepCalled,
    StepEnded,
    StepRefused,
)

__all__ = [
    "ClaimAnswered",
    "JournalFlushed",
    "Observer",
    "RunClaimed",
    "RunEnded",
    "RunLost",
    "RunReleased",
    "RunStarted",
    "RunsSwept",
    "SignalSent",
    "StepCalled",
    "StepEnded",
    "StepRefused",
]
