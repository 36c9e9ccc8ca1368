"""Nothing new is begun before the replay is over.

Code that was changed may call something new before it comes to what is recorded, and what was called cannot be taken
back. So a call of which nothing is recorded, or only that it was under way, is held until the code has asked for all
that is recorded. If the code comes to rest before that, it depends on what is left: if that lies further on in the
branch of a held call, the code has taken another way than the recorded one; if not, the replay is over as far
as it goes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ..errors import NonDeterminismError
from .clock import CHANCE, TURNS
from .cursor import Cursor
from .matching import CAUSES, recorded_as

if TYPE_CHECKING:
    from .durable_call import DurableCall
    from .execution import Execution

_ELSEWHERE = 5.0
"""Seconds that the code is given where a call is awaited by a task of the user's: the code of its branch may await
something else."""


class Holds:
    """The calls of one run that are held."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._held: dict[asyncio.Future[None], DurableCall[Any]] = {}
        self._elsewhere = False
        """Whether one of them is awaited by a task that is not known here."""
        self._moves = 0
        """Counts what has moved, so that it is known whether nothing has since."""
        self._over = False
        """Whether the replay is over, as far as it goes."""

    def __bool__(self) -> bool:
        return bool(self._held)

    def holds(self, cursor: Cursor) -> bool:
        """Whether a call of this branch must wait."""
        if not self._over:
            self._over = self._execution.history.first_left() is None
            return not self._over
        return behind(self._execution, cursor) is not None

    async def wait(self, call: DurableCall[Any], cursor: Cursor) -> None:
        """Until the code has asked for what is recorded."""
        execution = self._execution
        while self.holds(cursor):
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._held[future] = call
            self._elsewhere |= not execution.knows_task(cursor)
            self._moves += 1
            execution.busy -= 1
            self.check_rest_soon()
            try:
                await future
            finally:
                del self._held[future]
                execution.busy += 1
                self._moves += 1

    def moved(self) -> None:
        """The code has made a call: perhaps the last one that was waited for."""
        self._moves += 1
        for future, call in self._held.items():
            if not future.done() and self._goes(call):
                future.set_result(None)

    def _goes(self, call: DurableCall[Any]) -> bool:
        """Whether a held call may go on; asked at every call that the code makes, so it looks at no record."""
        if not self._over:
            return not self._execution.history.untaken
        return behind(self._execution, call.cursor) is None

    def check_rest_soon(self) -> None:
        """See whether the code is at rest, when it has had a chance to go on."""
        if self._held and not self._execution.busy:
            self._execution.clock.after(CHANCE, self._check_rest, TURNS, self._moves)

    def _check_rest(self, turns: int, moves: int) -> None:
        if moves != self._moves or self._execution.busy or self._execution.closed is not None or not self._held:
            return
        if turns:
            asyncio.get_running_loop().call_soon(self._check_rest, turns - 1, moves)
        else:
            self._rest(moves)

    def _rest(self, moves: int) -> None:
        """The code has come to rest: nothing of it moves any more."""
        ahead = [(call, cursor) for call in self._held.values() if (cursor := behind(self._execution, call.cursor))]
        if ahead and self._elsewhere:
            self._execution.clock.after(_ELSEWHERE, self._diverge, *ahead[0], moves)
        elif ahead:
            self._diverge(*ahead[0], moves)
        else:
            self._over = True
            self.moved()

    def _diverge(self, call: DurableCall[Any], cursor: Cursor, moves: int) -> None:
        execution = self._execution
        record = execution.history.next_of(cursor.branch, cursor.position)
        if moves != self._moves or execution.closed is not None or record is None:
            return
        error = NonDeterminismError(
            f"{recorded_as(record)}, but before it the code now calls {call.kind} {call.name!r} (at {call.line}), of "
            f"which nothing is recorded. It was not begun. {CAUSES}"
        )
        execution.diverge(error)

    def close(self) -> None:
        """The run leaves: nobody waits any more."""
        for future in list(self._held):
            if not future.done():
                future.cancel()


def behind(execution: Execution, cursor: Cursor) -> Cursor | None:
    """Where a branch stands, or the innermost one around it, of which more is recorded than its code has called."""
    history, each = execution.history, cursor
    if history.is_left_out(cursor.branch):
        return None
    while not history.goes_on(each.branch, each.position):
        if each.outer is None:
            return None
        each = each.outer
    return each
