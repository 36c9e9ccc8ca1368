"""Stepfast: durable execution for Python on the database you already run."""

from .app import Stepfast
from .bulk import BulkResult
from .compatibility import CheckedRun
from .engine.call import DurableCall
from .engine.callbacks import Callback
from .engine.children import ChildRun
from .engine.concurrency import BranchCall, FirstCall
from .engine.context import Branches, Context
from .engine.dag import Dag, DagContext, DagSyncContext
from .engine.events import Event
from .engine.host import cancelled
from .engine.invocation import current
from .engine.maps import MapCall, Results
from .engine.middleware import MiddlewareCall, Proceed
from .engine.questions import Question
from .engine.step import StepCall, step
from .engine.streams import Stream, stream
from .engine.sync_context import SyncCallback, SyncContext, SyncQuestion
from .engine.workflow import Workflow
from .errors import (
    AlreadyRunning,
    AppClosed,
    AttemptTimeout,
    CallbackDone,
    CallbackFailed,
    CallbackNotFound,
    CallbackTimeout,
    ChildFailed,
    CompensationFailed,
    ConfigurationError,
    ContextMisuse,
    DatabaseRefused,
    DatabaseUnavailable,
    DeadlineExceeded,
    EventTimeout,
    GraphError,
    InvalidInput,
    InvalidState,
    LeaseLost,
    MapFailed,
    NamespaceMoved,
    NonDeterminismError,
    NonRetryableError,
    PayloadError,
    QuestionRefused,
    QuestionTimeout,
    QueueFull,
    RecordedError,
    Released,
    RemoteStepError,
    RemoteTimeout,
    RetryLater,
    RunCancelled,
    RunEnded,
    RunFailed,
    RunNotFound,
    ScheduleNotFound,
    SchemaError,
    SignalTimeout,
    StepFailed,
    StepfastError,
    StepInterrupted,
    StepTimeout,
    StreamFull,
    UnknownOption,
    UnknownWorkflow,
    WaitTimeout,
    WorkerBroken,
)
from .events import EventInfo
from .info import Activity, ErrorInfo, ExecutedBy, RunInfo, StepInfo
from .model.backoff import Again, Backoff, Done
from .model.payload import Codec
from .model.queue_config import Rate
from .queues import QueueInfo
from .run import Run
from .schedules import ScheduleInfo
from .settings import Settings
from .stats import Stats
from .streams import LogLine, StreamItem

__version__ = "0.1.0"

__all__ = [
    "Activity",
    "Again",
    "AlreadyRunning",
    "AppClosed",
    "AttemptTimeout",
    "Backoff",
    "BranchCall",
    "Branches",
    "BulkResult",
    "Callback",
    "CallbackDone",
    "CallbackFailed",
    "CallbackNotFound",
    "CallbackTimeout",
    "CheckedRun",
    "ChildFailed",
    "ChildRun",
    "Codec",
    "CompensationFailed",
    "ConfigurationError",
    "Context",
    "ContextMisuse",
    "Dag",
    "DagContext",
    "DagSyncContext",
    "DatabaseRefused",
    "DatabaseUnavailable",
    "DeadlineExceeded",
    "Done",
    "DurableCall",
    "ErrorInfo",
    "Event",
    "EventInfo",
    "EventTimeout",
    "ExecutedBy",
    "FirstCall",
    "GraphError",
    "InvalidInput",
    "InvalidState",
    "LeaseLost",
    "LogLine",
    "MapCall",
    "MapFailed",
    "MiddlewareCall",
    "NamespaceMoved",
    "NonDeterminismError",
    "NonRetryableError",
    "PayloadError",
    "Proceed",
    "Question",
    "QuestionRefused",
    "QuestionTimeout",
    "QueueFull",
    "QueueInfo",
    "Rate",
    "RecordedError",
    "Released",
    "RemoteStepError",
    "RemoteTimeout",
    "Results",
    "RetryLater",
    "Run",
    "RunCancelled",
    "RunEnded",
    "RunFailed",
    "RunInfo",
    "RunNotFound",
    "ScheduleInfo",
    "ScheduleNotFound",
    "SchemaError",
    "Settings",
    "SignalTimeout",
    "Stats",
    "StepCall",
    "StepFailed",
    "StepInfo",
    "StepInterrupted",
    "StepTimeout",
    "Stepfast",
    "StepfastError",
    "Stream",
    "StreamFull",
    "StreamItem",
    "SyncCallback",
    "SyncContext",
    "SyncQuestion",
    "UnknownOption",
    "UnknownWorkflow",
    "WaitTimeout",
    "WorkerBroken",
    "Workflow",
    "__version__",
    "cancelled",
    "current",
    "step",
    "stream",
]
