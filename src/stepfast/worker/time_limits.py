"""What bounds an attempt in time: its timeout, waits excluded, and the deadline of the whole run."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from ..engine.execution import Execution
from ..engine.invocation import kind_of
from ..errors import AttemptEnded, AttemptTimeout, DeadlineExceeded
from ..model import status
from .attempt import Attempts
from .kit import Kit
from .slots import Slots


class TimeLimits:
    """One timer for each run that has a limit; it ends the attempt even if the handler ignores being cancelled."""

    def __init__(self, kit: Kit, attempts: Attempts, slots: Slots) -> None:
        self._clock = kit.clock
        self._default: Any = kit.settings.timeout
        self._default_of_step: Any = kit.settings.step_timeout
        self._attempts = attempts
        self._slots = slots
        self._loop = asyncio.get_running_loop()
        self.late: set[asyncio.Task[Any]] = set()
        """Handlers that are nobody's any more, and the ends that are made apart from them."""

    def begin(self, execution: Execution) -> None:
        """An attempt begins. Undos have no limit; nor has a dag run whose steps are all settled."""
        claimed, timeout = execution.claimed, execution.workflow.options.timeout
        if claimed.timeout_ms is not None:
            timeout = claimed.timeout_ms / 1000
        elif timeout is None:
            timeout = self._default if claimed.dag_step is None else self._default_of_step
        if timeout is None and claimed.deadline_in_ms is None:
            return
        if not claimed.undoing and kind_of(execution.workflow).bounded:
            self._set(execution, timeout)

    def _set(self, execution: Execution, timeout: float | None) -> None:
        """Whichever comes first: the timeout of this stretch, or the deadline of the whole run."""
        left, now = execution.claimed.deadline_in_ms, self._clock.now()
        deadline = None if left is None else max(0.0, execution.began + left / 1000 - now)
        if deadline is not None and (timeout is None or deadline <= timeout):
            execution.timer = self._clock.alarm(deadline, self._is_over, execution, status.REASON_DEADLINE)
        elif timeout is not None:
            execution.timer = self._clock.alarm(timeout, self._is_over, execution, status.REASON_TIMEOUT)

    def _is_over(self, execution: Execution, reason: str) -> None:
        """End the attempt; unless some of the time was spent waiting, which does not count for a timeout."""
        if execution.closed is not None:
            return
        waited = execution.waits.take_waited()
        if reason == status.REASON_TIMEOUT and waited > 0:
            self._set(execution, waited)
            return
        if reason == status.REASON_DEADLINE:
            error: Exception = DeadlineExceeded(f"run {execution.run_id} did not end before its deadline")
            end = self._attempts.fail
        else:
            error = AttemptTimeout(f"the attempt took longer than its timeout ({execution.workflow.name})")
            end = self._attempts.retry
        self._slots.give_back(execution)  # from here on its handler has no say, and is not waited for
        execution.close(AttemptEnded(str(error)))
        if execution.task is not None:
            self._keep(execution.task)  # it may go on for as long as it likes, and is nobody's any more
        self._keep(self._loop.create_task(self._end(execution, end(execution, error, reason))))

    async def _end(self, execution: Execution, ending: Coroutine[Any, Any, None]) -> None:
        try:
            await ending
        except Exception as bug:
            await self._attempts.end_by_bug(execution, bug)

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self.late.add(task)
        task.add_done_callback(self.late.discard)
