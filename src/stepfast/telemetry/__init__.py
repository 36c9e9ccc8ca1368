"""Seeing what a worker does: observers, and what hangs on them."""

from ..engine.observing import Observer
from ..model.events import (
    ClaimAnswered,
    JournalFlushed,
    RemoteEnded,
    RemoteSent,
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
from .health_port import HealthPort
from .metrics import Metrics
from .text import metrics_text

__all__ = [
    "ClaimAnswered",
    "HealthPort",
    "JournalFlushed",
    "Metrics",
    "Observer",
    "RemoteEnded",
    "RemoteSent",
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
    "metrics_text",
]
