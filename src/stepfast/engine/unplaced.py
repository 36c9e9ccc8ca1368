"""Calls of the context that take no position and leave no record: ``ctx.set``, ``ctx.gather``.

They know whether they were awaited, as all calls do: one that was forgotten is an error of the run, by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import ContextMisuse
from .as_coroutine import AsCoroutine
from .cursor import Cursor

if TYPE_CHECKING:
    from .execution import Execution

T_co = TypeVar("T_co", covariant=True)


class UnplacedCall(AsCoroutine[T_co]):
    """A call that takes no position, and begins when it is awaited."""

    __slots__ = ("_execution", "_work", "branch", "name", "position")

    def __init__(
        self, execution: Execution, cursor: Cursor, name: str, work: Callable[[], Coroutine[Any, Any, T_co]]
    ) -> None:
        self._execution = execution
        self._work = work
        self._awaited = False
        self.name = name
        self.branch = cursor.branch
        self.position = cursor.position
        """Of the call that comes next in its branch: where the code stood."""
        execution.unawaited.add(self)

    def __await__(self) -> Generator[Any, None, T_co]:
        if self._awaited:
            raise ContextMisuse(f"{self.name} was awaited twice; keep its result in a variable instead")
        self.give_up()
        if self._execution.closed is not None:
            raise self._execution.closed
        return self._work().__await__()

    def __repr__(self) -> str:
        return f"<{self.name} in run {self._execution.run_id}>"

    def give_up(self) -> None:
        """Note that the call is awaited, or that nobody will await it: what it belongs to was stopped."""
        self._awaited = True
        self._execution.unawaited.discard(self)
