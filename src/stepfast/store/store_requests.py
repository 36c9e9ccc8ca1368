"""What a database adds to its queries: how a statement is asked, and how a flow is driven."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..settings import Settings
from .flows.base import Flow, T
from .run_lists import Filters


class StoreRequests:
    """Asks statements and drives flows, which are named by ``Queries``; each database does it in its own way."""

    _settings: Settings

    async def _fetch(self, name: str, *arguments: Any) -> Sequence[Any]:
        """The rows that a question brings; a list among the arguments is a column of many values."""
        raise NotImplementedError

    async def _fetch_of_dags(self, name: str, *arguments: Any) -> Sequence[Any]:
        """The rows that a question about dag runs brings. Workers ask them: a database may keep a connection for it."""
        return await self._fetch(name, *arguments)

    async def _drive(self, flow: Callable[..., Flow[T]], *arguments: Any) -> T:
        """Drive a flow, which is made when it begins, because it may have to begin again."""
        raise NotImplementedError

    async def _on(self, duty: str, flow: Callable[..., Flow[T]], *arguments: Any) -> T:
        """Drive a flow that belongs to a duty of workers: flush, claim, limited, start, sweep, mail. A database may
        keep a connection for each of them."""
        return await self._drive(flow, *arguments)

    async def _sweep(self, flow: Callable[..., Flow[T]], *arguments: Any) -> T:
        """Drive a flow that is a duty of a sweeper."""
        return await self._on("sweep", flow, *arguments)

    async def _page(self, filters: Filters, oldest_first: bool) -> Sequence[Any]:
        """A page of a list of runs."""
        raise NotImplementedError

    async def _count(self, filters: Filters) -> int:
        """How many runs such a list has, without a bound."""
        raise NotImplementedError
