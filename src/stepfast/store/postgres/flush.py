"""The journal's flush on Postgres: usually one statement; for everything else the flow of all databases."""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg

from ...model.records import Batch, FlushAnswer
from ..flows.flush import Columns, are_usual, columns_of, flush, is_usual_end
from .connections import Continuity, KeptConnection
from .transactions import Driver

_SEPARATOR, _NULL = "\x1f", "\x1e"
"""Where a statement says ``string_to_array($1, chr(31), chr(30))``. JSON has no bare control characters; in other texts
they are looked for."""


_DIGITS = {number: str(number) for number in range(5000)}
"""The texts of small numbers, because most numbers in a flush are small."""


def numbers(column: Sequence[int]) -> str:
    """A column of numbers as one text, for ``$1::text::integer[]``."""
    try:
        return f"{{{','.join(map(_DIGITS.__getitem__, column))}}}"
    except KeyError:
        return f"{{{','.join(map(str, column))}}}"


def ids(column: Sequence[str]) -> str:
    """A column of ids as one text, for ``$1::text::uuid[]``."""
    return f"{{{','.join(column)}}}"


def texts(column: Sequence[str | None]) -> str | None:
    """A column of texts as one, for ``string_to_array($1, chr(31), chr(30))``; None if one of them cannot be told from
    another there."""
    if not column:
        return ""
    nulls = column.count(None)
    text = _SEPARATOR.join([_NULL if item is None else item for item in column] if nulls else column)  # type: ignore[arg-type]
    if text.count(_SEPARATOR) != len(column) - 1 or text.count(_NULL) != nulls or not text:
        return None
    return text


_RUN_ID, _CLAIM, _BRANCH, _POSITION, _SEQ, _NAME, _KIND, _STATUS = range(8)
_OUTPUT, _ERROR, _ARGUMENTS, _ATTEMPTS, _DURATION, _LINE, _FORMAT, _UNDO, _LOSSES = range(8, 17)
"""The fields of StepDone."""


class Flusher:
    """Writes batches over one connection of its own."""

    def __init__(
        self, kept: KeptConnection, statements: dict[str, str], driver: Driver, continuity: Continuity
    ) -> None:
        self._kept = kept
        self._sql = statements
        self._driver = driver
        self._continuity = continuity
        self.at_once = True
        """Whether the server takes the usual freight as one statement."""

    async def flush(self, worker: str, batch: Batch) -> FlushAnswer:
        """Write what passes the fence; say what did not."""
        if not self.at_once:
            return await self._flush_mixed(worker, batch)
        columns = columns_of(batch.steps)
        if _is_usual(batch, columns):
            answer = await self._flush_usual(worker, batch, columns)
            if answer is not None:
                return answer
        return await self._flush_mixed(worker, batch)

    # -- the usual freight: one statement, one round trip ----------------------------------------------------

    async def _flush_usual(self, worker: str, batch: Batch, columns: Columns) -> FlushAnswer | None:
        """None: not everything could be written, and so nothing was."""
        ended = batch.transitions
        words = [texts(columns[which]) for which in (_NAME, _OUTPUT, _ARGUMENTS, _LINE)]
        outputs = texts([t.output for t in ended])
        children = any(t.child for t in ended)
        if outputs is None or None in words:
            return None
        async with self._kept.use() as connection:
            if batch.unverified and not batch.unverified.keys().isdisjoint(batch.claims):
                return None
            try:
                row = await connection.fetchrow(
                    self._sql["flush_telling" if children else "flush"],
                    worker,
                    ids(columns[_RUN_ID]),
                    numbers(columns[_CLAIM]),
                    numbers(columns[_POSITION]),
                    numbers(columns[_SEQ]),
                    *words,
                    numbers(columns[_DURATION]),
                    ids([t.run_id for t in ended]),
                    numbers([t.claim for t in ended]),
                    outputs,
                    ended[0].format if ended else columns[_FORMAT][0],
                    self._continuity.started,
                )
            except (asyncpg.DivisionByZeroError, asyncpg.UniqueViolationError):
                return None
            answer = FlushAnswer(row["now_ms"], undelivered=children or any(t.named for t in ended))
            if row["asked_ids"]:
                answer.asked = {str(i): what for i, what in zip(row["asked_ids"], row["asked"], strict=True)}
            return answer

    # -- everything else: the flow, a few statements ---------------------------------------------------------

    async def _flush_mixed(self, worker: str, batch: Batch) -> FlushAnswer:
        async with self._kept.use() as connection:
            return await self._driver.run(connection, flush(worker, batch, self._continuity.met))


def _is_usual(batch: Batch, columns: Columns) -> bool:
    """Whether everything has the shape that one short statement writes."""
    if batch.tries or batch.running or batch.joint or batch.values or batch.streams or batch.waits:
        return False
    formats = {*columns[_FORMAT], *(t.format for t in batch.transitions)}
    return all(map(is_usual_end, batch.transitions)) and are_usual(columns) and len(formats) == 1
