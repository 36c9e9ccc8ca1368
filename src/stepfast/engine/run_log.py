"""Logs of a run: what its code logs goes into a stream of the run's own, of a bounded number of lines.

A line leaves with the next commit, as an item of a stream does. Lines that find no room are counted. A replay logs
nothing; code that a crash makes a worker call again logs again.
"""

from __future__ import annotations

import logging
import sys
import threading
from typing import TYPE_CHECKING, Any

from ..model.names import LOGS
from ..model.records import StreamItem
from .history import Cursor
from .host import current_call, current_cursor, current_execution
from .observers import ids_of

if TYPE_CHECKING:
    from .execution import Execution

_LONGEST = 8000
"""Characters of a message, and of a traceback, that are kept."""
_SOURCE = "~"
_KEPT = "stepfast_kept"
"""Marks a record that was kept where it was made."""


class RunLines:
    """What one attempt logs, on its way into the stream. Lines beyond the bound are only counted here: an endless loop
    that logs needs no memory."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._source = execution.streams.source("~", _SOURCE)
        self._lock = threading.Lock()
        self._lines: list[str] = []
        self._logged = 0
        self._sent = 0
        self._leaving = False

    def take(self, text: str) -> None:
        """Take a line; safe to call from any thread."""
        recorder = self._execution.recorder
        with self._lock:
            if self._logged < recorder.settings.max_log_lines:
                self._lines.append(text)
            self._logged += 1
            if self._leaving:
                return
            self._leaving = True
        if threading.get_ident() == recorder.loop_thread:
            self.leave()
        else:
            recorder.loop.call_soon_threadsafe(self.leave)

    def leave(self) -> None:
        """Journal what was taken, in the thread of the event loop."""
        with self._lock:
            lines, self._lines = self._lines, []
            logged, self._leaving = self._logged, False
        for text in lines:
            self._append(self._sent, text)
            self._sent += 1
        if logged > self._sent:
            self._append(logged, None)
            self._sent = logged

    def _append(self, number: int, text: str | None) -> None:
        claimed, streams = self._execution.claimed, self._execution.streams
        format_ = self._execution.recorder.payloads.format
        streams.append(
            StreamItem(streams.owner, LOGS, self._source, claimed.claim, number, claimed.attempt, text, format_)
        )


def _is_silent(execution: Execution, cursor: Cursor) -> bool:
    """Whether code of the workflow only comes again to where it has been. A step is not called on a replay."""
    call = current_call.get()
    if call is not None and call.execution is execution:
        return False
    return execution.replaying is not None or execution.history.goes_on(cursor.branch, cursor.position)


def _keep(execution: Execution, record: logging.LogRecord) -> None:
    if execution.closed is not None:
        return
    call = current_call.get()
    message = record.getMessage()
    said = message if len(message) <= _LONGEST else f"{message[:_LONGEST]}… ({len(message)} characters)"
    if record.exc_info:
        said += "\n" + logging.Formatter().formatException(record.exc_info)[-_LONGEST:]
    line = {
        "at": execution.database_now(),
        "level": record.levelname,
        "logger": record.name,
        "message": said.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0"),
        "step": call.name if call is not None and call.execution is execution else execution.claimed.dag_step,
    }
    execution.lines.take(execution.recorder.payloads.encode_own(line))


class ContextLog(logging.LoggerAdapter[logging.Logger]):
    """``ctx.log``: a logger with the ids of the run, silent on replay."""

    def __init__(self, execution: Execution, cursor: Cursor) -> None:
        super().__init__(execution.recorder.logger.getChild("run"), {})
        self._execution = execution
        self._cursor = cursor

    def isEnabledFor(self, level: int) -> bool:
        """Whether a line of this level goes anywhere: into the log of the run, or to handlers."""
        if _is_silent(self._execution, self._cursor):
            return False
        return self._is_kept(level) or self.logger.isEnabledFor(level)

    def _is_kept(self, level: int) -> bool:
        least = self._execution.recorder.run_logs
        return least is not None and level >= least

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log a line, unless the code is replayed."""
        if not self.isEnabledFor(level):
            return
        call, exc_info = current_call.get(), kwargs.get("exc_info")
        if isinstance(exc_info, BaseException):
            exc_info = (type(exc_info), exc_info, exc_info.__traceback__)
        elif exc_info and not isinstance(exc_info, tuple):
            exc_info = sys.exc_info()
        extra = {**ids_of(self._execution, None if call is None else call.name), **(kwargs.get("extra") or {})}
        file, line, function, stack = self.logger.findCaller(
            kwargs.get("stack_info", False), kwargs.get("stacklevel", 1) + 1
        )
        record = self.logger.makeRecord(
            self.logger.name, level, file, line, msg, args, exc_info or None, function, extra, stack
        )
        if self._is_kept(level):
            setattr(record, _KEPT, True)
            _keep(self._execution, record)
        if self.logger.isEnabledFor(level):
            self.logger.handle(record)


class RunLogHandler(logging.Handler):
    """Keeps what the code of a run logs by any logger of the process, if its application keeps such lines."""

    def __init__(self) -> None:
        super().__init__()
        self._busy = threading.local()
        self._users: set[object] = set()
        self._changing = threading.Lock()

    def createLock(self) -> None:
        """Have no lock: lines of many threads need not wait for each other."""
        self.lock = None

    def begin(self, worker: object) -> None:
        """Listen, until this worker ends."""
        with self._changing:
            self._users.add(worker)
            logging.getLogger().addHandler(self)

    def end(self, worker: object) -> None:
        """Listen no more, if no other worker wants it."""
        with self._changing:
            self._users.discard(worker)
            if not self._users:
                logging.getLogger().removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line of the code of a run."""
        execution = current_execution.get()
        least = None if execution is None else execution.recorder.run_logs
        if execution is not None and least is not None and record.levelno >= least and not hasattr(record, _KEPT):
            self._keep(execution, record)
        last = logging.lastResort
        if last is not None and record.levelno >= last.level and not self._is_handled(record):
            last.handle(record)  # as if this handler were not there

    def _keep(self, execution: Execution, record: logging.LogRecord) -> None:
        if getattr(self._busy, "busy", False) or _is_silent(execution, current_cursor.get() or execution.main):
            return
        self._busy.busy = True  # a codec may log, too
        try:
            _keep(execution, record)
        except Exception:
            self.handleError(record)
        finally:
            self._busy.busy = False

    def _is_handled(self, record: logging.LogRecord) -> bool:
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None:
            if any(handler is not self for handler in logger.handlers):
                return True
            logger = logger.parent if logger.propagate else None
        return False


HANDLER = RunLogHandler()
"""The handler of this process: on the root logger while a worker keeps lines."""
