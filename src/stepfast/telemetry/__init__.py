"""Seeing what a worker does: observers, and what hangs on them."""

from ..engine.observers import Observer
from ..model.events import (
    AttemptFailed,
    ClaimAnswered,
    JournalFlushed,
    RemoteEnded,
    RemoteSent,
    RunClaimed,
    RunEnded,
    RunLost,
    RunReleased,
    RunReleasing,
    RunsSwept,
    RunStarted,
    Sending,
    SendingEnded,
    SignalSent,
    SignalTaken,
    StepCalled,
    StepEnded,
    StepRefused,
    TryFailed,
)
from .health import HealthPort, metrics_text
from .metrics import Metrics

__all__ = [
    "AttemptFailed",
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
    "RunReleasing",
    "RunStarted",
    "RunsSwept",
    "Sending",
    "SendingEnded",
    "SignalSent",
    "SignalTaken",
    "StepCalled",
    "StepEnded",
    "StepRefused",
    "TryFailed",
    "metrics_text",
]
