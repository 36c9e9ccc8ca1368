"""Exit codes: what each means, which error gives which, and how errors are printed."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from typing import TextIO

from ..errors import (
    CallbackNotFound,
    ConfigurationError,
    DatabaseUnavailable,
    InvalidInput,
    PayloadError,
    RunNotFound,
    ScheduleNotFound,
    StepfastError,
    UnknownWorkflow,
)
from ..model.urls import scrub
from ..monitoring.text import printable

OK = 0
FAILED = 1
USAGE = 2
NOT_FOUND = 3
TIMEOUT = 4
UNAVAILABLE = 5
INTERRUPTED = 130
"""As a shell counts a process that Ctrl+C ended."""
TERMINATED = 143
"""As it counts one that SIGTERM ended."""

EXPLAINED = (
    "Exit codes: 0 all is well; 1 the run failed, or a check or the verb did; 2 wrong usage or bad input; "
    "3 no such run, schedule or callback; 4 timeout; 5 the database is unavailable."
)


def exit_code(error: BaseException) -> int:
    """The code for an error that a verb ended with."""
    if isinstance(error, DatabaseUnavailable):
        return UNAVAILABLE
    if isinstance(error, (RunNotFound, ScheduleNotFound, CallbackNotFound)):
        return NOT_FOUND
    if isinstance(error, TimeoutError):
        return TIMEOUT
    if isinstance(error, (ConfigurationError, InvalidInput, PayloadError, UnknownWorkflow)):
        return USAGE
    return FAILED


_TYPED = {"retry(from_start=True)": "`stepfast retry --from-start`", "cron= or every=": "`--cron` or `--every`"}
"""Calls in error messages, and the commands that replace them here."""


def as_typed(text: str) -> str:
    """Return a message with commands in place of Python calls."""
    for call, command in _TYPED.items():
        text = text.replace(call, command)
    return text


def complain(error: BaseException | str) -> None:
    """Print an error as one sentence, without passwords."""
    put(f"error: {printable(scrub(as_typed(str(error))))}", sys.stderr)


def put(text: str, stream: TextIO) -> None:
    """Write a line, in the middle of other work. A reader that has gone away, as after ``| head -1``, does not stop
    that work halfway."""
    try:
        print(text, file=stream)
    except BrokenPipeError:
        discard(stream)


def discard(stream: TextIO) -> None:
    """Discard all further and all buffered output of a stream."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


@contextlib.contextmanager
def writing_to(stream: TextIO) -> Iterator[None]:
    """Flush the output of a command at its end. A full disk is reported as an error; a reader that has gone away is
    not."""
    try:
        try:
            yield
        finally:
            stream.flush()
    except BrokenPipeError:
        discard(stream)
        sys.exit(FAILED)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        discard(stream)
        complain(f"the output cannot be written: {error.strerror}")
        sys.exit(FAILED)


def is_expected(error: BaseException) -> bool:
    """Whether the message of an error is enough; anything else is a bug and keeps its traceback."""
    return isinstance(error, (StepfastError, TimeoutError))
