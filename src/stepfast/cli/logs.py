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
from importlib.util import find_spec

import msgspec

from ..errors import ConfigurationError
from ..log_context import NAMES, RunFilter
from ..monitoring.text import printable

LEVELS = ("debug", "info", "warning", "error", "critical")
_LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_IDS = (*NAMES, "step_id")
_OWN = frozenset((*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", *_IDS))
"""What a record has of its own, without what a caller gave."""


def log_to_stderr(level: str, *, as_json: bool) -> None:
    """Set logging up before the application's module is imported, so that its ``basicConfig`` changes nothing."""
    if level.lower() not in LEVELS:
        raise ConfigurationError(f"there is no log level {level!r}; there are {', '.join(LEVELS)}")
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(RunFilter())
    handler.setFormatter(JsonLines() if as_json else Lines(_LINE))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    if as_json:
        _join_structlog()


def say_in_log(text: str) -> None:
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
    """One JSON object per record: time, level, logger, message, ids where there are some, an error's traceback, and
    what the caller gave beside the message: ``extra={…}``, or the values of a call of structlog."""

    def format(self, record: logging.LogRecord) -> str:
        """The record of the log as one line of JSON."""
        said = dict(record.msg) if isinstance(record.msg, dict) else {}  # by structlog's bridge to Python's own logging
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": said.pop("event", "") if isinstance(record.msg, dict) else record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        ids = {name: getattr(record, name) for name in _IDS if getattr(record, name, None) is not None}
        given = {name: value for name, value in vars(record).items() if name not in _OWN and not name.startswith("_")}
        for name, value in (ids | given | said).items():
            if name not in line:
                line[name] = value
            elif line[name] != value:
                line[f"{name}_"] = value
        try:
            return msgspec.json.encode(line, enc_hook=str).decode()
        except Exception:  # a lone surrogate, or a value that is no JSON; the line is worth more than it
            return msgspec.json.encode({_text(name): _writable(value) for name, value in line.items()}).decode()


def _writable(value: object) -> object:
    return value if isinstance(value, datetime) else _text(value)


def _text(value: object) -> str:
    """A text that can be written, whatever it is made of."""
    try:
        return str(value).encode("utf-8", "backslashreplace").decode()
    except Exception:  # its own __str__ raises
        return f"<{type(value).__name__}>"


def _join_structlog() -> None:
    """Send what structlog logs to Python's own logging, unless the application sets it up otherwise. This comes before
    the application is imported: a logger that is bound at import time keeps what was set up by then."""
    if find_spec("structlog") is None:
        return
    import structlog

    if structlog.is_configured():
        return
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.contextvars.merge_contextvars,
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
