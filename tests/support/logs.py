"""The logging of the process that runs the tests, which some verbs set up as their own."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def logging_as_before() -> Iterator[None]:
    """Whatever sets logging up meanwhile, afterwards it is as it was: a handler that stayed would write to a
    stream that is closed by then, in whichever test comes next."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
