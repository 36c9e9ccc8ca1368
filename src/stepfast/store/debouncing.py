"""What every store can do with debounced starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ..model.records import NewRun
from ..model.transitions.start import Debounce
from .flows import debouncing
from .flows.debouncing import Debounced
from .flows.requests import Flow, T


class DebounceStore(Protocol):
    """A database that knows which runs wait for more starts of their keys."""

    async def start_debounced(self, run: NewRun, debounce: Debounce) -> Debounced:
        """Start a run that waits for more starts of its key; or put off the one that does, and give it this input."""
        ...


class BaseDebounces:
    """Debounced starts as every database makes them: by flows."""

    async def _drive(self, flow: Callable[..., Flow[T]], *arguments: Any) -> T:
        raise NotImplementedError

    async def start_debounced(self, run: NewRun, debounce: Debounce) -> Debounced:
        """Start a run that waits, or put it off."""
        return await self._drive(debouncing.start_debounced, run, debounce)
