"""Executes the statements of MariaDB and MySQL, and drives flows (``store/flows``) in transactions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec

from ...errors import DatabaseRefused
from ..answers import TransportConnection
from ..dialects import MYSQL, Rendered
from ..flows.base import (
    Ask,
    Commit,
    Flow,
    Put,
    PutAndAsk,
    PutEach,
    Remove,
    Request,
    Rows,
    SendTasks,
    T,
    schedule_columns,
    standing_columns,
)
from ..sql import load_rendered
from .connections import NOW, NOW_WHEN_LOCKED
from .errors import translate
from .transactions import repeatedly, transaction

_ROOM, _CELL = 4096, 10
"""Bytes of a packet that are not of one argument; those by which a value may be longer than in JSON."""
_DECIMAL = 246
"""The type of a column that the servers make of every sum."""
_OTHERWISE = {"record_steps": "replace_steps"}
"""Statements that are executed for the same rows where one has not written all of them."""
_KEYED = frozenset({"start", "start_linked"})
_ID, _KEY, _WORKFLOW, _UNIQUE_NAME = 0, 2, 4, -2
"""Statements that insert runs, and columns of their rows."""
_WORDS = {"still_undelivered": 2}
"""How many columns at the beginning of a row are lists, separated by blanks."""
_TURNS = {"lock_queue": "take_turn"}
"""Questions that lock a row and may change only others, and what is to be changed with them in a cluster: there a lock
holds within a node, and transactions on two nodes meet only where both have changed the same row."""
_WAITS = "FOR UPDATE"
"""At the end of a question that locks the rows that it brings, and waits for locks of others."""
_AT_ONCE = (16, 4, 1)
"""Of so many rows at once a statement is executed that has a query for each; each number is a statement to prepare."""
_SIZES = (2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 25, 32, 40, 50, 64, 80, 100, 128, 160, 200, 256)
"""Rows that are inserted by one statement. Of a single row the server does not say whether it was there: so it is given
twice."""
_LIMITED = re.compile(r"\bLIMIT \S+$|^(?!.*ORDER BY)", re.DOTALL)
_ALL = 2**63 - 1
"""In a part of a UNION an order without a limit has no meaning."""
_COUNTED = re.compile(rb"(Rows matched|Duplicates): (\d+)")
_COMMENT = re.compile(r"('(?:[^']|'')*')|--[^\n]*")
_PLACE = re.compile(r"%%|%s")
_ROW = re.compile(r"\bVALUES (\(\?[^()]*\))")
_FRESH = (
    "(NOT (r.counted_attempt <=> GREATEST(r.attempt, r.first_attempt)) "
    "AND NOT (r.graph IS NOT NULL AND r.dag_id IS NULL))"
)
"""Whether a claim of the run begins an attempt, which a rate counts: a dag run that is finished begins none."""
_WENT_ON = "CONVERT(substr(r.output, 2, 36) USING ascii) COLLATE ascii_bin"
"""The id of the run that one with the reason 'continued' continued as."""


def words_of(namespace: str, listed: int) -> dict[str, str]:
    """What statements of a namespace have in place of words."""
    return {
        "prefix": f"{namespace}_", "now": NOW, "now_when_locked": NOW_WHEN_LOCKED, "listed": str(listed),
        "standing": standing_columns(), "schedule": schedule_columns(), "fresh": _FRESH, "went_on": _WENT_ON,
        "join": "STRAIGHT_JOIN", "server": "NULL", "wide": "", "/wide": "",
    }  # fmt: skip


class Part(NamedTuple):
    """One statement, as the driver takes it, and the numbers of the arguments that its places take."""

    text: str
    order: tuple[int, ...]
    row: str | None = None
    """What stands for a row of those that it inserts as they are given; it has places of its own."""

    def with_rows(self, count: int) -> str:
        """The statement for so many rows."""
        assert self.row is not None, "rows come as JSON"
        return self.text.replace(self.row, ", ".join([self.row.replace("?", "%s")] * count))


class Statement(NamedTuple):
    """What is executed by a name: the rows are those of the first part."""

    parts: tuple[Part, ...]
    each: int | None
    """The number of the argument for each row of which it is executed."""


def load(words: dict[str, str]) -> dict[str, Statement]:
    """The statements of a namespace."""
    return {name: _statement(rendered) for name, rendered in load_rendered(MYSQL, words).items()}


def _statement(rendered: Rendered) -> Statement:
    parts, order = [], list(rendered.order)
    for text in _COMMENT.sub(lambda found: found[1] or "", rendered.text).split(";\n"):
        places = sum(found == "%s" for found in _PLACE.findall(text))
        row = _ROW.search(text)
        plain = text.strip() if places or row else text.strip().replace("%%", "%")
        parts.append(Part(plain, tuple(order[:places]), row and row[1]))
        del order[:places]
    return Statement(tuple(parts), rendered.each)


class Driver:
    """Answers the requests of flows over a connection."""

    def __init__(
        self, statements: dict[str, Statement], packet: Callable[[], int | None],
        in_cluster: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        self._sql = statements
        self._in_cluster = in_cluster
        """Whether the server is a node of a cluster, once it is known."""
        self._packet = packet
        """The largest packet that the server takes, once it is known."""
        self._joined: dict[tuple[str, int], Part] = {}
        self._texts: dict[tuple[str, int], str] = {}
        """Statements for several rows at once."""
        self.carrier: TransportConnection | None = None
        """The transport of remote steps, if it is in this database and open."""

    async def run(self, connection: Any, flow: Callable[..., Flow[T]], *arguments: Any) -> T:
        """Drive a flow in a transaction, or in as many as it requests. The first is begun again where the server has
        rolled it back for the sake of another; a later one cannot be, which is as if the reply to it was lost."""
        committed = False

        async def drive() -> T:
            nonlocal committed
            try:
                driven, answer = flow(*arguments), None
                while True:
                    async with transaction(connection, ours=True):
                        try:
                            while not isinstance(request := driven.send(answer), Commit):
                                answer = await self._answer(connection, request)
                        except StopIteration as end:
                            result: T = end.value
                            return result
                    committed, answer = True, None
            except Exception as error:
                if committed:
                    raise translate(error) from None
                raise

        return await repeatedly(drive)

    async def join(self, connection: Any, flow: Flow[T]) -> T:
        """Drive a flow within a transaction that is open, or one that only reads without any."""
        answer: Any = None
        try:
            while True:
                answer = await self._answer(connection, flow.send(answer))
        except StopIteration as end:
            result: T = end.value
            return result

    async def fetch(self, connection: Any, name: str, *arguments: Any, seconds: float | None = None) -> list[Any]:
        """The rows that a question brings; MariaDB gives it up after so many ``seconds``."""
        statement = self._sql[name]
        limit = "" if seconds is None else f"/*M! SET STATEMENT max_statement_time = {seconds:g} FOR */ "
        if statement.each is None:
            return await self._rows(connection, name, statement.parts, arguments, limit)
        number, found, rows = statement.each, list[Any](), arguments[statement.each]
        for portion in _portions_of(rows):
            values = [
                (*arguments[:number], *(row if isinstance(row, (tuple, list)) else (row,)), *arguments[number + 1 :])
                for row in portion
            ]
            parts = (self._together(name, len(portion), len(values[0])),)
            found += await self._rows(connection, name, parts, [each for given in values for each in given], limit)
        return found

    def _together(self, name: str, count: int, width: int) -> Part:
        """The statement for so many rows of its argument at once, of ``width`` values each."""
        if (made := self._joined.get((name, count))) is None:
            [part] = self._sql[name].parts
            text = part.text if _LIMITED.search(part.text) else f"{part.text} LIMIT {_ALL}"
            text = " UNION ALL ".join([f"({text})"] * count) if count > 1 else part.text
            order = [row * width + number for row in range(count) for number in part.order]
            made = self._joined[name, count] = Part(text, tuple(order))
        return made

    async def put(self, connection: Any, name: str, rows: Sequence[tuple[Any, ...]]) -> int:
        """Execute a statement for many rows; how many it wrote. So many go at once as the server takes. An INSERT that
        finds a key taken locks the row that has it, and counts as its change: of starts, keys and names are looked up
        first."""
        if name in _KEYED:
            rows = await self._free(connection, rows, "by_keys", _KEY)
        if name == "start_linked":
            rows = await self._free(connection, rows, "names_held", _UNIQUE_NAME)
        if not rows:
            return 0
        written = 0
        for portion, text in self._portions(rows):
            count = 0
            for part in self._sql[name].parts:
                if part.row is not None:
                    is_small = (most := self._packet()) is None or 8 * len(text) <= most
                    count += await self._insert(connection, name, part, portion, is_small)
                else:
                    count += _written(await _execute(connection, part.text, [text] * len(part.order)))
            if count < len(portion) and name in _OTHERWISE:
                count += await self.put(connection, _OTHERWISE[name], portion)
            written += count
        return written

    async def _insert(
        self, connection: Any, name: str, part: Part, rows: Sequence[tuple[Any, ...]], is_small: bool
    ) -> int:
        """Insert rows as they are, by statements for certain numbers of them. Where a row that is there may come again,
        the last one does, to fill up, if they are small."""
        repeats, done, written = is_small and "ON DUPLICATE" in part.text, 0, 0
        while done < len(rows):
            some = rows[done : done + _SIZES[-1]]
            size = next((size for size in _SIZES if size >= len(some)), 0) if repeats else len(some)
            some = [*some, *[some[-1]] * (size - len(some))]
            if (text := self._texts.get((name, size))) is None:
                text = self._texts[name, size] = part.with_rows(size)
            written += _written(await _execute(connection, text, [value for row in some for value in row]))
            done += size
        return written

    async def _free(self, connection: Any, rows: Sequence[Any], name: str, column: int) -> Sequence[Any]:
        """The rows whose keys or names, which are in this column, no run has."""
        wanted = Rows((row[_WORKFLOW], row[column], row[_ID]) for row in rows if row[column] is not None)
        taken = {found[0] for found in await self.fetch(connection, name, wanted)} if wanted else set()
        return [row for row in rows if row[_ID] not in taken] if taken else rows

    async def _rows(
        self, connection: Any, name: str, parts: Sequence[Part], arguments: Sequence[Any], limit: str
    ) -> list[Any]:
        first, *others = parts
        locks = first.text.endswith(_WAITS)  # in one order, so that two transactions do not wait for each other
        values = [_encode(sorted(each) if locks else each) if isinstance(each, list) else each for each in arguments]
        cursor = await _execute(connection, limit + first.text, [values[number] for number in first.order])
        if cursor.description is None:
            return [(1,)] * _written(cursor)
        found = _read(cursor.description, await cursor.fetchall())
        for part in others:
            await _execute(connection, part.text, [values[number] for number in part.order])
        if found and name in _TURNS and self._in_cluster():
            await self.fetch(connection, _TURNS[name], *arguments)
        lists = _WORDS.get(name)
        return found if lists is None else [(*(row[n].split() for n in range(lists)), *row[lists:]) for row in found]

    def _portions(self, rows: Sequence[tuple[Any, ...]]) -> Iterator[tuple[Sequence[tuple[Any, ...]], str]]:
        text, most = _encode(rows), self._packet()
        size = len(text) if most is None or len(text) * 4 < most else len(text.encode())
        cells = len(rows[0]) * min(len(rows), _SIZES[-1]) if rows else 0
        if most is None or size + cells * _CELL + _ROOM <= most:
            yield rows, text
        elif len(rows) == 1:
            raise DatabaseRefused(f"it has {size:,} bytes, and the server takes {most:,} at once (max_allowed_packet)")
        else:
            half = len(rows) // 2
            yield from self._portions(rows[:half])
            yield from self._portions(rows[half:])

    async def _answer(self, connection: Any, request: Request) -> Any:
        if isinstance(request, Ask):
            return await self.fetch(connection, request.name, *request.arguments)
        if isinstance(request, Put):
            return await self.put(connection, request.name, request.rows)
        if isinstance(request, (PutEach, PutAndAsk)):
            for name in request.names:
                await self.put(connection, name, request.rows)
            return None if isinstance(request, PutEach) else await self._answer(connection, request.then)
        if isinstance(request, (SendTasks, Remove)):
            return await self._carry(connection, request)
        assert not isinstance(request, Commit), "the transaction is not this flow's"
        return None

    async def _carry(self, connection: Any, request: SendTasks | Remove) -> None:
        """Send tasks, or remove results, in this transaction."""
        assert self.carrier is not None, "the transport is in another database"
        if isinstance(request, SendTasks):
            await self.carrier.dispatch(request.tasks, connection)
        else:
            await self.carrier.remove(request.results, connection)


def _portions_of(rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
    done = 0
    for most in _AT_ONCE:
        while len(rows) - done >= most:
            yield rows[done : done + most]
            done += most


def _encode(values: Sequence[Any]) -> str:
    """Rows or a list as JSON; rows of one column as a list."""
    if values and isinstance(values[0], tuple) and len(values[0]) == 1:
        values = [row[0] for row in values]
    return msgspec.json.encode(values).decode()


async def _execute(connection: Any, text: str, values: list[Any]) -> Any:
    cursor = connection.cursor()
    await cursor.execute(text, values or None)
    return cursor


def _written(cursor: Any) -> int:
    """How many rows were inserted, found for a change, or deleted: one that replaces another counts two at the server,
    and one that is changed to what it is none."""
    found = _COUNTED.search(cursor._result.message or b"")
    if found is None:
        return int(cursor.rowcount)
    return int(found[2]) if found[1] == b"Rows matched" else int(cursor.rowcount) - int(found[2])


def _read(description: Any, rows: Any) -> list[Any]:
    """Rows with numbers in place of decimals."""
    decimals = [column[1] == _DECIMAL for column in description]
    if not any(decimals):
        return list(rows)
    return [tuple(_number(value) if of else value for value, of in zip(row, decimals, strict=True)) for row in rows]


def _number(value: Any) -> Any:
    if not isinstance(value, Decimal):
        return value
    return int(value) if value == value.to_integral_value() and value.as_tuple().exponent == 0 else float(value)
