"""The heartbeat: one statement for all that a worker holds, in a thread of its own, which also notices a blocked event
loop.
"""

from __future__ import annotations

import asyncio
import os
import sys
import sysconfig
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple

from ..engine.execution import Execution
from ..engine.step import StepCall
from ..errors import StepfastError, sentence
from ..model.records import BeatAnswer
from ..store.answers import Pulse
from .context import WorkerContext

if TYPE_CHECKING:
    from .worker import WorkerRuntime


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
    """Looked after by the thread of the heartbeat; the event loop reports that it moves."""

    def __init__(self, context: WorkerContext, loop_thread: int) -> None:
        self._after = context.settings.blocked_after
        self._logger, self._clock = context.logger, context.clock
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
        """Seconds between two checks; 0: there are none."""
        return min(1.0, self._after / 3)

    def examine(self) -> None:
        """In the thread: send a word, or see how long the last one has been lying there."""
        now, sent = self._clock.now(), self._sent  # read once: the loop may take the word in between
        if sent is None:
            self._sent = now
            self._loop.call_soon_threadsafe(self._taken)
        elif now - sent >= self._after and now >= self._silent_until:
            self._silent_until = now + _SAY_AGAIN
            if self._told is None:
                self._ids = {}
            self._told = self._told or sent  # before it is said: the loop may move again while it is
            self._say(now - sent)

    def reset_failures(self) -> None:
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
            "the event loop has been blocked for %.1f s%s%s, at %s. Nothing else of this process moves until then: "
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


_STOPPED = 2.0
"""A wait that takes longer by so many seconds than it was to take: the whole process was stopped."""
_NOTHING, _FAILURE, _LEASE_PASSED = 0, 1, 2
"""What the log knows of heartbeats that do not succeed."""
_HURRY = 0.2
"""Seconds between two beats at least, however much one is hurried."""


class Heartbeat:
    """Beats until stopped; reports to the event loop."""

    def __init__(self, context: WorkerContext, runtime: WorkerRuntime) -> None:
        self._store, self._logger, self._me, self._clock = context.store, context.logger, context.me, context.clock
        self._interval, self._lease = context.settings.beat, context.settings.lease
        self._runtime = runtime
        self._loop = asyncio.get_running_loop()
        self._stop = self._clock.bell()
        self._hurried = self._clock.bell()
        self._thread = self._clock.thread("stepfast-heartbeat", self._run)
        self.unbroken_since = self._clock.now()
        """Since when no beat has failed. A worker reaps others only after a whole lease of its own beats."""
        self._last = self._heard = self._clock.now()
        self._said = _NOTHING
        self._watch: LoopWatch | None = None
        """Told to look at the event loop between two beats."""
        if context.settings.blocked_after > 0:
            self._watch = LoopWatch(context, threading.get_ident())

    @property
    def unbroken(self) -> float:
        """For how many seconds the beats have come through without an error or a gap; 0 while one is overdue."""
        now = self._clock.now()
        return 0.0 if now - self._last > self._lease else now - self.unbroken_since

    @property
    def age(self) -> float:
        """Seconds since the last beat that came through was sent."""
        return self._clock.now() - self._last

    @property
    def unheard(self) -> float:
        """Seconds since the last beat was sent of which the event loop knows that the worker lived then."""
        return self._clock.now() - self._heard

    @property
    def alive(self) -> bool:
        """Whether the thread is at work."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin to send heartbeats."""
        self._thread.start()

    def hurry(self) -> None:
        """An operator may have asked something of what we hold: do not wait for the next beat to hear of it."""
        self._hurried.set()

    def tell_to_stop(self) -> None:
        """Let no further heartbeat begin."""
        self._stop.set()
        self._hurried.set()

    async def stop(self) -> None:
        """End, and wait for the thread."""
        self.tell_to_stop()
        if not self._thread.is_alive():
            return
        await self._clock.joined(self._thread, 5.0)

    def _run(self) -> None:
        try:
            self._beat_until_stopped()
        except BaseException as error:  # ends here: a thread is not cancelled
            if not self._stop.is_set():
                self._tell(self._runtime.heartbeat_broke, error)

    def _beat_until_stopped(self) -> None:
        # A connection may be dead without an error having been raised. One beat is lost on it; within the lease there
        # must be time for others, over a new one.
        pulse = self._store.pulse(max(0.2, (self._lease - self._interval) / 3))
        try:
            while not self._stop.is_set():
                if self._wait(self._pause()):
                    self._stop.wait(max(0.0, self._last + _HURRY - self._clock.now()))
                self._hurried.clear()
                if not self._stop.is_set():
                    self._beat_once(pulse)
        finally:
            pulse.close()

    def _wait(self, seconds: float) -> bool:
        """Until it is time for the next beat, or one is requested at once; watch the event loop while waiting."""
        watch, until = self._watch, self._clock.now() + seconds
        if watch is None:
            return self._hurried.wait(seconds)
        while (left := until - self._clock.now()) > 0:
            watch.examine()
            began = self._clock.now()
            if self._hurried.wait(min(left, watch.every)):
                return True
            if self._clock.now() - began > watch.every + _STOPPED:
                watch.reset_failures()
        return False

    def _pause(self) -> float:
        late = self._clock.now() - self._last
        return self._interval if late < self._interval * 1.5 else min(self._interval, 0.25)

    def _beat_once(self, pulse: Pulse) -> None:
        worker, known = self._me.id, self._me.registered
        before = dict(self._runtime.holding())
        sent = self._clock.now()
        try:
            answer = pulse.beat(worker, len(before))
        except Exception as error:
            self.unbroken_since = self._clock.now()
            self._say_failed(error)
        else:
            if self._said:
                self._said = _NOTHING
                self._logger.info("worker %s: heartbeats succeed again", worker)
            if self._clock.now() - self._last > self._lease:
                self.unbroken_since = self._clock.now()  # no error, but a gap: we were stopped, or the answer hung
            self._last = sent
            if known or answer.alive:  # else the query was sent before the new id was registered
                self._tell(self._answered, worker, answer, before, sent)
            return
        if self._clock.now() - self._last > self._lease:
            self._tell(self._runtime.lease_expired)

    def _say_failed(self, error: Exception) -> None:
        """Log the first failure, and once more when a lease has passed: further ones say nothing new."""
        if self._clock.now() - self._last > self._lease:
            if self._said != _LEASE_PASSED:
                self._said = _LEASE_PASSED
                self._logger.error(
                    "worker %s: no heartbeat has succeeded for a whole lease (%g s): other workers take over its runs, "
                    "and it claims none until one succeeds: %s", self._me.id, self._lease, sentence(error),
                )  # fmt: skip
        elif self._said == _NOTHING:
            self._said = _FAILURE
            unexpected = None if isinstance(error, StepfastError) else error
            self._logger.warning(
                "worker %s: a heartbeat failed, and is tried again: %s", self._me.id, sentence(error),
                exc_info=unexpected,
            )  # fmt: skip

    def _answered(self, worker: str, answer: BeatAnswer, before: dict[str, int], sent: float) -> None:
        """Pass the answer on, unless the worker was given a new id since it asked: it is not about that one."""
        if worker == self._me.id:
            if answer.alive:
                self._heard = sent
            self._runtime.beat_answered(answer, before)

    def _tell(self, callback: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            self._stop.set()
            self._hurried.set()  # the loop is gone, and the worker with it
