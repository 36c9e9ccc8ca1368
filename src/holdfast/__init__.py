"""Holdfast: durable execution for Python on the database you already run."""

from .app import Holdfast
from .engine.calls import StepCall
from .engine.context import Context, SyncContext
from .engine.scope import cancelled
from .engine.step import step
from .engine.workflow import Workflow
from .errors import (
    AttemptTimeout,
    ConfigurationError,
    ContextMisuse,
    DatabaseRefused,
    DatabaseUnavailable,
    DeadlineExceeded,
    HoldfastError,
    InvalidInput,
    InvalidState,
    LeaseLost,
    NonDeterminismError,
    NonRetryableError,
    PayloadError,
    Released,
    RetryLater,
    RunCancelled,
    RunFailed,
    RunNotFound,
    SchemaError,
    SignalTimeout,
    StepFailed,
    StepTimeout,
    UnknownWorkflow,
)
from .model.backoff import Backoff
from .model.payload import Codec
from .run import Activity, ErrorInfo, Run, RunInfo, StepInfo
from .settings import Settings

__version__ = "0.1.0"

__all__ = [
    "Activity",
    "AttemptTimeout",
    "Backoff",
    "Codec",
    "ConfigurationError",
    "Context",
    "ContextMisuse",
    "DatabaseRefused",
    "DatabaseUnavailable",
    "DeadlineExceeded",
    "ErrorInfo",
    "Holdfast",
    "HoldfastError",
    "InvalidInput",
    "InvalidState",
    "LeaseLost",
    "NonDeterminismError",
    "NonRetryableError",
    "PayloadError",
    "Released",
    "RetryLater",
    "Run",
    "RunCancelled",
    "RunFailed",
    "RunInfo",
    "RunNotFound",
    "SchemaError",
    "Settings",
    "SignalTimeout",
    "StepCall",
    "StepFailed",
    "StepInfo",
    "StepTimeout",
    "SyncContext",
    "UnknownWorkflow",
    "Workflow",
    "__version__",
    "cancelled",
    "step",
]
