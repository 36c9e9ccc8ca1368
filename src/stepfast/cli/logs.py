"""Logging of a worker process: lines for people or JSON for collectors, each with the run it belongs to, on stderr.

Payloads are never logged by Stepfast; what handlers log is their own.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from datetime import UTC, datetime

import msgspec

from ..errors import ConfigurationError
from ..logs import NAMES, RunFilter
from ..telling.words import printable

LEVELS = ("debug", "info", "warning", "error", "critical")
_LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_IDS = (*NAMES, "step_id")


def log_to_stderr(level: str, *, as_json: bool) -> None:
    """Set logging up before the application's module is imported, so that its ``basicConfig`` changes nothing."""
    if level.lower() not in LEVELS:
        raise ConfigurationError(f"there is no log level {level!r}; there are {', '.join(LEVELS)}")
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(RunFilter())
    handler.setFormatter(JsonLines() if as_json else Lines(_LINE))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def say(text: str) -> None:
    """A line for whoever has just typed Ctrl+C, whatever the log level. It is written past Python's own streams, which
    must not be entered twice: a signal may come in the midst of another line."""
    fields = {"name": "stepfast.worker", "levelname": "INFO", "levelno": logging.INFO, "msg": text}
    record = logging.makeLogRecord(fields)
    handlers = logging.getLogger().handlers
    line = handlers[0].format(record) if handlers else text
    with contextlib.suppress(OSError):
        os.write(2, f"{line}\n".encode(errors="backslashreplace"))


class Lines(logging.Formatter):
    """Lines for people, with times in UTC: what an error says cannot take over the terminal on which they are read."""

    converter = time.gmtime  # type: ignore[assignment]
    default_msec_format = "%s.%03dZ"

    def format(self, record: logging.LogRecord) -> str:
        """The line, and an error's traceback below it."""
        return printable(super().format(record))


class JsonLines(logging.Formatter):
    """One JSON object per record: time, level, logger, message, ids where there are some, and an error's traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """The record of the log as one line of JSON."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: getattr(record, name) for name in _IDS if getattr(record, name, None) is not None}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        try:
            return msgspec.json.encode(line, enc_hook=str).decode()
        except UnicodeEncodeError:  # a lone surrogate, in whatever a handler has met; the line is worth more than it
            return msgspec.json.encode({name: _writable(value) for name, value in line.items()}).decode()


def _writable(value: object) -> object:
    return value if isinstance(value, datetime) else str(value).encode("utf-8", "backslashreplace").decode()
