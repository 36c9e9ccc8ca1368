"""Noticing a blocked event loop: code that waits without ``await`` stops every run of the process, and says nothing.

The thread of the heartbeat sends a word to the event loop about once a second. If the word is not taken for a while,
the thread looks at what the loop's thread is doing, and names the run, the step and the line. Only code that never lets
go of Python's own lock cannot be seen so.
"""

from __future__ import annotations

import asyncio
import os
import sys
import sysconfig
from types import FrameType
from typing import NamedTuple

from ..engine.execution import Execution
from ..engine.step import StepCall
from .kit import Kit

_SAY_AGAIN = 60.0
"""Seconds between two warnings at least."""
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_PYTHONS = tuple({sysconfig.get_paths()[name] + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})


class Site(NamedTuple):
    """Which code a thread executes: whose, and at which line."""

    run: str | None
    workflow: str | None
    attempt: int | None
    step: str | None
    line: str


class LoopWatch:
    """Looked after by the thread of the heartbeat; told by the event loop that it moves."""

    def __init__(self, kit: Kit, loop_thread: int) -> None:
        self._after = kit.settings.blocked_after
        self._logger, self._clock = kit.logger, kit.clock
        self._loop_thread = loop_thread
        self._loop = asyncio.get_running_loop()
        self._sent: float | None = None
        """When the word was sent that has not been taken yet."""
        self._told: float | None = None
        """Since when the loop is blocked, if that was said."""
        self._ids: dict[str, str | int] = {}
        """Of whom it was said."""
        self._silent_until = 0.0

    @property
    def every(self) -> float:
        """Seconds between two looks; 0: nobody wants to know."""
        return min(1.0, self._after / 3)

    def examine(self) -> None:
        """In the thread: send a word, or see how long the last one has been lying there."""
        now, sent = self._clock.now(), self._sent  # read once: the loop may take the word meanwhile
        if sent is None:
            self._sent = now
            self._loop.call_soon_threadsafe(self._taken)
        elif now - sent >= self._after and now >= self._silent_until:
            self._silent_until = now + _SAY_AGAIN
            if self._told is None:
                self._ids = {}
            self._told = self._told or sent  # before it is said: the loop may move again while it is
            self._say(now - sent)

    def forgive(self) -> None:
        """The whole process was stopped for a while: that was not the loop's fault."""
        if self._sent is not None:
            self._sent = self._clock.now()

    def _taken(self) -> None:
        """In the event loop: it moves."""
        since, self._sent, self._told = self._told, None, None
        if since is not None:
            told = "the event loop moves again; it was blocked for %.1f s"
            self._logger.warning(told, self._clock.now() - since, extra=self._ids)

    def _say(self, seconds: float) -> None:
        frame = sys._current_frames().get(self._loop_thread)
        site = Site(None, None, None, None, "unknown code") if frame is None else find_site(frame)
        ids = self._ids = _ids(site)
        who = "" if site.run is None else f" by run {site.run} ({site.workflow})"
        step = "" if site.step is None else f", step {site.step!r}"
        self._logger.warning(
            "the event loop has been blocked for %.1f s%s%s, at %s. Nothing else of this process moves meanwhile: "
            "await something that does not block, or block in a plain def step, which runs in a thread",
            seconds, who, step, site.line, extra=ids,
        )  # fmt: skip


def _ids(site: Site) -> dict[str, str | int]:
    """The ids that every record of the log about a run carries, as far as they are known here."""
    known = {"run_id": site.run, "workflow": site.workflow, "attempt": site.attempt, "step": site.step}
    return {name: value for name, value in known.items() if value is not None}


def find_site(innermost: FrameType) -> Site:
    """The run and the step whose code a thread executes, and the line of the user's own code in it."""
    run = workflow = attempt = step = line = None
    frame: FrameType | None = innermost
    while frame is not None:
        if line is None and not frame.f_code.co_filename.startswith((_OURS, *_PYTHONS)):
            line = _line(frame)
        if frame.f_code.co_filename.startswith(_OURS):
            call, execution = _known(frame)
            if call is not None and step is None:
                step = call.name
            if execution is not None:
                run, workflow, attempt = execution.run_id, execution.workflow.name, execution.claimed.attempt
                break
        frame = frame.f_back
    return Site(run, workflow, attempt, step, line or _line(innermost))


def _known(frame: FrameType) -> tuple[StepCall[object] | None, Execution | None]:
    """What a frame of ours knows by its variables: the step or the execution that it works for."""
    names = frame.f_locals
    for name in ("self", "step", "execution"):
        value = names.get(name)
        if isinstance(value, StepCall):
            return value, value.execution
        if isinstance(value, Execution):
            return None, value
    return None, None


def _line(frame: FrameType) -> str:
    code = frame.f_code
    return f"{os.path.basename(code.co_filename)}:{frame.f_lineno} in {code.co_name}"
