"""What a flow asks of whoever drives it. Statements are named; each database has them by the same names, with the same
arguments and the same columns."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple, TypeVar

from ...model.records import NewRun
from ...model.remote_steps import Result, Task


class Rows(list[tuple[Any, ...]]):
    """An argument that is several columns of many values, given row by row; at least one."""


class Ask(NamedTuple):
    """A question: brings rows. A list among the arguments is a column of many values."""

    name: str
    arguments: tuple[Any, ...]


class Put(NamedTuple):
    """One statement for many rows of values: brings the number of rows that it wrote."""

    name: str
    rows: Sequence[tuple[Any, ...]]


class PutEach(NamedTuple):
    """Several statements for the same rows of values, none of which needs what another wrote: where each would be a
    round trip, one carries them all."""

    names: tuple[str, ...]
    rows: Sequence[tuple[Any, ...]]


class Start(NamedTuple):
    """Start runs in the same transaction."""

    runs: Sequence[NewRun]


class Carry(NamedTuple):
    """Send tasks over the transport, which is in the same database, in the same transaction."""

    tasks: Sequence[Task]


class Remove(NamedTuple):
    """Delete results from the transport, which is in the same database, in the same transaction."""

    results: Sequence[Result]


class Commit:
    """What was done so far is to be committed, and its locks to be given up; the rest is another transaction."""


COMMIT = Commit()

Request = Ask | Put | PutEach | Start | Carry | Remove | Commit
T = TypeVar("T")
Flow = Generator[Request, Any, T]


def ask(name: str, *arguments: Any) -> Flow[list[Any]]:
    """The rows that a question brings."""
    rows: list[Any] = yield Ask(name, arguments)
    return rows


def put(name: str, rows: Sequence[tuple[Any, ...]]) -> Flow[int]:
    """How many rows a statement wrote; without values it is not asked."""
    if not rows:
        return 0
    count: int = yield Put(name, rows)
    return count


def put_each(names: tuple[str, ...], rows: Sequence[tuple[Any, ...]]) -> Flow[None]:
    """Write by each of these statements; without values nothing is asked."""
    if rows:
        yield PutEach(names, rows)
