"""Calls of the context as coroutines, so that ``asyncio.create_task`` and a TaskGroup take them."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

T_co = TypeVar("T_co", covariant=True)


class AsCoroutine(Coroutine[Any, Any, T_co]):
    """What Python asks of a coroutine, for an awaitable that knows whether it was awaited."""

    __slots__ = ("_awaited", "_iterator")

    _awaited: bool
    _iterator: Generator[Any, None, T_co]
    """Where a task that goes through it stands; made when it is needed, because most calls are awaited instead."""

    def __await__(self) -> Generator[Any, None, T_co]:
        raise NotImplementedError

    def give_up(self) -> None:
        """Note that nobody will await this call."""
        raise NotImplementedError

    def send(self, value: Any, /) -> Any:
        """Go on, as a task does it."""
        return self._begun().send(value)

    def throw(self, *error: Any) -> Any:
        """The task that goes through it is cancelled."""
        return self._begun().throw(*error)

    def close(self) -> None:
        """The task ended before the call did."""
        if not self._awaited:
            self.give_up()
        elif hasattr(self, "_iterator"):
            self._iterator.close()

    def _begun(self) -> Generator[Any, None, T_co]:
        try:
            return self._iterator
        except AttributeError:
            iterator = self._iterator = self.__await__()
            return iterator
