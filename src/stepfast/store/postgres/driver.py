"""Drives flows (``store/flows``) over a connection to Postgres."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from ...model.records import NewRun
from ..answers import TransportConnection
from ..flows.base import Ask, Commit, Flow, Put, PutEach, Remove, Request, Rows, SendTasks, T
from .transactions import transaction

_OWN_PARTS = re.compile(r"\A((?:--.*\n)*)WITH ")
"""The beginning of a statement that has parts itself, behind what is said of it."""


class Inserter(Protocol):
    """Whoever starts runs in a transaction that is open."""

    async def insert(self, connection: Any, runs: Sequence[NewRun]) -> None:
        """Start these runs within the transaction."""


class Driver:
    """Knows the statements, and who starts runs."""

    def __init__(self, statements: dict[str, str], starts: Inserter | None) -> None:
        self._sql = statements
        self._starts = starts
        self._joined: dict[tuple[str, ...], str] = {}
        self.carrier: TransportConnection | None = None
        """The transport of remote steps, if it is in this database and open."""

    async def run(self, connection: Any, flow: Flow[T]) -> T:
        """The whole of a flow, in a transaction, or in as many as it asks for."""
        answer: Any = None
        while True:
            async with transaction(connection):
                try:
                    while not isinstance(request := flow.send(answer), Commit):
                        answer = await self._answer(connection, request)
                except StopIteration as end:
                    result: T = end.value
                    return result
            answer = None

    async def join(self, connection: Any, flow: Flow[T]) -> T:
        """A flow as part of a transaction that is open."""
        answer: Any = None
        try:
            while True:
                answer = await self._answer(connection, flow.send(answer))
        except StopIteration as end:
            result: T = end.value
            return result

    def _all_in_one(self, names: tuple[str, ...]) -> str:
        """One statement that does what these do. Made once, so that the server has it prepared."""
        if names not in self._joined:
            *others, last = names
            parts = ", ".join(f"{name} AS (\n{self._sql[name]}\n)" for name in others)
            rest = _OWN_PARTS.sub(r"\1, ", self._sql[last], count=1)
            self._joined[names] = f"WITH {parts}\n{rest}"
        return self._joined[names]

    async def _carry(self, connection: Any, request: SendTasks | Remove) -> None:
        """What the transport does in this transaction."""
        assert self.carrier is not None, "the transport is in another database"
        if isinstance(request, SendTasks):
            await self.carrier.dispatch(request.tasks, connection)
        else:
            await self.carrier.remove(request.results, connection)

    async def _answer(self, connection: Any, request: Request) -> Any:
        if isinstance(request, Ask):
            return await connection.fetch(self._sql[request.name], *as_columns(request.arguments))
        if isinstance(request, Put):
            columns = map(list, zip(*request.rows, strict=True))
            tag = await connection.execute(self._sql[request.name], *columns)
            return int(tag.rsplit(" ", 1)[-1])
        if isinstance(request, PutEach):
            columns = map(list, zip(*request.rows, strict=True))
            return await connection.execute(self._all_in_one(request.names), *columns)
        if isinstance(request, (SendTasks, Remove)):
            return await self._carry(connection, request)
        assert not isinstance(request, Commit), "the transaction is not this flow's"
        if self._starts is None:
            return None
        await self._starts.insert(connection, request.runs)
        return True


def as_columns(arguments: Sequence[Any]) -> Iterator[Any]:
    """Rows of values as columns; anything else as it is."""
    for argument in arguments:
        if isinstance(argument, Rows):
            yield from map(list, zip(*argument, strict=True))
        else:
            yield argument
